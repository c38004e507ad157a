# SPDX-License-Identifier: Apache-2.0
"""How crossmem is broken on purpose: functions and values replaced where they stand."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

MUTANTS: dict[str, Callable[[], None]] = {}
"""What breaks crossmem, by name."""
TIMELINES: set[str] = set()
"""Mutants that only streams show."""
FOREIGN: set[str] = set()
"""Mutants that only a device with foreign memory shows."""


VENDOR: set[str] = set()
"""Mutants that only a device with queues of the vendor shows."""


def mutant(apply: Callable[[], None]) -> Callable[[], None]:
    """Register a mutant under the name of the function that makes it."""
    MUTANTS[apply.__name__] = apply
    return apply


def foreign_mutant(apply: Callable[[], None]) -> Callable[[], None]:
    """Register a mutant for the backend ``foreign``."""
    FOREIGN.add(apply.__name__)
    return mutant(apply)


def timeline_mutant(apply: Callable[[], None]) -> Callable[[], None]:
    """Register a mutant for timelines of emulated GPUs with slow streams."""
    TIMELINES.add(apply.__name__)
    return mutant(apply)


def vendor_mutant(apply: Callable[[], None]) -> Callable[[], None]:
    """Register a mutant for Ascend's own queues."""
    VENDOR.add(apply.__name__)
    return mutant(apply)


def instead(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Replace a function of a module or class; the new one gets the old one first."""
    old = getattr(owner, name)

    def replace(new: Callable[..., Any]) -> None:
        @functools.wraps(old)
        def function(*args: Any, **options: Any) -> Any:
            return new(old, *args, **options)

        setattr(owner, name, function)

    return replace


@contextmanager
def changed(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give a variable of a module another value for a moment."""
    old = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, old)


def always(owner: Any, name: str, value: Any) -> None:
    """Let a function return the same value whatever happens."""
    instead(owner, name)(lambda _old, *_args, **_options: value)


def property_is(owner: type, name: str, value: Any) -> None:
    """Let a property have the same value whatever happens."""
    assert isinstance(vars(owner)[name], property)
    setattr(owner, name, property(lambda _self: value))
