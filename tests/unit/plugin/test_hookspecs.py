# SPDX-License-Identifier: Apache-2.0
"""Every hook says all that its implementer has to know."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from crossmem.plugin import hookspecs

HOOKS: dict[str, Callable[..., Any]] = {
    name: function
    for name, function in vars(hookspecs).items()
    if hasattr(function, "crossmem_spec")
}


def test_hooks() -> None:
    assert sorted(HOOKS) == [
        "crossmem_backends",
        "crossmem_emulate",
        "crossmem_event",
        "crossmem_runtime",
    ]
    assert set(HOOKS) < set(hookspecs.__all__)


@pytest.mark.parametrize("name", HOOKS)
def test_hook_is_documented(name: str) -> None:
    text = inspect.getdoc(HOOKS[name]) or ""
    parameters = inspect.signature(HOOKS[name]).parameters

    for item in ("When:", "How often:", "Thread:", "Must not:", "Raises\n", "Since 0."):
        assert item in text
    for parameter in parameters:
        assert f"\n{parameter}\n    " in text


@pytest.mark.parametrize("name", HOOKS)
def test_hook_is_typed(name: str) -> None:
    signature = inspect.signature(HOOKS[name])

    assert signature.return_annotation is not inspect.Signature.empty
    assert all(
        one.annotation is not inspect.Parameter.empty for one in signature.parameters.values()
    )


@pytest.mark.parametrize("name", HOOKS)
def test_specification_is_not_an_implementation(name: str) -> None:
    arguments = [None for _ in inspect.signature(HOOKS[name]).parameters]

    with pytest.raises(NotImplementedError):
        HOOKS[name](*arguments)
