# SPDX-License-Identifier: Apache-2.0
"""The classes of what is in a tree: named where it is shared, found where it is received.

A class is only ever looked up among the modules that the reader has imported, must be a dataclass
or named tuple with exactly these fields, and none of its code is run, but for ``__hash__`` and
``__eq__`` of what is a key. So fields that a descriptor of its own computes are refused, and
classes with ``__del__``.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property
from inspect import getattr_static
from types import MemberDescriptorType, ModuleType
from typing import Any

from crossmem.errors import UnsupportedError
from crossmem.guards import clause, shorten

__all__ = ["make_dataclass", "make_named_tuple", "name_of", "refuse_more", "values_of"]


def name_of(kind: type, where: Callable[[], str]) -> str:
    """Return the name by which other processes find a class.

    Raises
    ------
    UnsupportedError
        Where they cannot, or must not.
    """
    name = f"{kind.__module__}:{kind.__qualname__}"
    if _find(kind.__module__, kind.__qualname__) is not kind:
        msg = f"{where()} has a class that other processes cannot find: {clause(name, 90)}"
        hint = "define the class at the top level of a module"
        raise UnsupportedError(msg, operation="share", hint=hint)
    _refuse_end(kind, "share")
    return name


def values_of(value: Any, where: Callable[[], str]) -> list[tuple[str, Any]]:
    """Return the fields of a dataclass, by name.

    Raises
    ------
    UnsupportedError
        Where others could not make the same object of them.
    """
    kind = type(value)
    try:
        object.__new__(kind)
        found = [(one, getattr(value, one)) for one in _field_names(kind)]
    except (TypeError, AttributeError) as error:
        msg = f"{where()} cannot be rebuilt from its fields: {clause(str(error), 100)}"
        raise UnsupportedError(msg, operation="share") from error
    refuse_more(value, where)
    return found


def refuse_more(value: Any, where: Callable[[], str]) -> None:
    """Refuse attributes that are no fields, as ``__post_init__`` may set: they would be missing.

    What a cached property keeps is computed again, and what ``typing`` notes means nothing.
    """
    kind = type(value)
    names = {one.name for one in fields(kind)} if is_dataclass(kind) else set()
    for name in _attributes(value):
        if name in names or isinstance(getattr_static(kind, name, None), cached_property):
            continue
        if name != "__orig_class__":
            kept = f"{shorten(name, 50)}, which is not a field of {clause(kind.__qualname__, 50)}"
            raise UnsupportedError(
                f"{where()} has the attribute {kept}",
                operation="share",
                hint="declare it as a field, or share the fields as a dict",
            )


def _attributes(value: Any) -> Iterator[str]:
    """Yield the names of what is kept at an object, in its ``__dict__`` and in slots."""
    yield from getattr(value, "__dict__", ())
    for kind in type(value).__mro__:
        for name, one in vars(kind).items():
            if type(one) is MemberDescriptorType and hasattr(value, name):
                yield name


def make_dataclass(pairs: list[tuple[Any, Any]], name: str) -> Any:
    """Return an object of a class that others have named, with values for its fields.

    Raises
    ------
    UnsupportedError
        Where this process does not have the class, or not with these fields.
    """
    kind, values = _class(name), dict(pairs)
    if not is_dataclass(kind) or set(_field_names(kind)) != values.keys():
        raise _not_the_same(name)
    made = object.__new__(kind)
    for field, value in values.items():
        object.__setattr__(made, field, value)
    return made


def make_named_tuple(values: list[Any], name: str) -> Any:
    """Return a named tuple as :func:`make_dataclass` does a dataclass."""
    kind = _class(name)
    if not issubclass(kind, tuple) or len(getattr(kind, "_fields", ())) != len(values):
        raise _not_the_same(name)
    return tuple.__new__(kind, values)


def _field_names(kind: type) -> list[str]:
    """Return the fields of a dataclass.

    Raises
    ------
    TypeError
        Where code of the class would run to set one.
    """
    names = [one.name for one in fields(kind)]
    for name in names:
        found = getattr_static(kind, name, None)
        if hasattr(type(found), "__set__") and type(found) is not MemberDescriptorType:
            msg = f"field {name} is a {type(found).__name__}"
            raise TypeError(msg)
    return names


def _class(name: str) -> type:
    module_name, _, path = name.partition(":")
    found = _find(module_name, path)
    if not isinstance(found, type):
        place = f"class {shorten(path, 70)} of module {shorten(module_name, 70)}"
        msg = f"{place} is not imported in this process"
        raise UnsupportedError(msg, operation="receive", hint="import the module first")
    _refuse_end(found, "receive")
    return found


def _refuse_end(kind: type, operation: str) -> None:
    """Refuse a class whose objects run code when they are dropped, with fields of a stranger's."""
    if getattr_static(kind, "__del__", None) is not None:
        msg = f"class {clause(kind.__qualname__)} defines __del__, which would run on received data"
        raise UnsupportedError(msg, operation=operation, hint="share the fields as a dict")


def _find(module_name: str, path: str) -> Any:
    """Return what a module that was imported has under a dotted name; None where nothing."""
    found: Any = sys.modules.get(module_name)
    for step in path.split("."):
        # Not getattr: a module's own __getattr__ is code.
        found = vars(found).get(step) if isinstance(found, type | ModuleType) else None
    return found


def _not_the_same(name: str) -> UnsupportedError:
    msg = f"class {shorten(name)} has other fields in the process that shared the tree"
    return UnsupportedError(
        msg, operation="receive", hint="run the same version of the program in both processes"
    )
