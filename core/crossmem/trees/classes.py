# SPDX-License-Identifier: Apache-2.0
"""The classes of objects in a tree: the sender names them, and the receiver looks them up.

The receiver looks only in modules that it has imported. A dataclass in the receiver must have
exactly the fields that were sent. A named tuple in the receiver must have one field for each value
that was sent. When a received object is made or deleted, no code of its class may run. The only
exceptions are ``__hash__`` and ``__eq__``, which run if the object is a key of a dict. Therefore, a
class with ``__del__`` is refused. A dataclass is also refused if a field is a data descriptor other
than a slot, because an assignment to the field would call the descriptor.
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
        Other processes cannot find the class, or the class defines ``__del__``.
    """
    name = f"{kind.__module__}:{kind.__qualname__}"
    if _find(kind.__module__, kind.__qualname__) is not kind:
        msg = f"{where()} has a class that other processes cannot find: {clause(name, 90)}"
        hint = "define the class at the top level of a module"
        raise UnsupportedError(msg, operation="share", hint=hint)
    _refuse_end(kind, "share")
    return name


def values_of(value: Any, where: Callable[[], str]) -> list[tuple[str, Any]]:
    """Return the fields of an object of a dataclass, as pairs of name and value.

    Raises
    ------
    UnsupportedError
        Other processes cannot make the same object from the fields.
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
    """Refuse an object with attributes that are not fields: a message contains only the fields.

    Cached properties are allowed, because the receiver computes them again. ``__orig_class__``,
    which ``typing`` sets on objects of generic classes, is allowed, because it has no effect.
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
    """Yield the names of an object's attributes, in its ``__dict__`` and in slots."""
    yield from getattr(value, "__dict__", ())
    for kind in type(value).__mro__:
        for name, one in vars(kind).items():
            if type(one) is MemberDescriptorType and hasattr(value, name):
                yield name


def make_dataclass(pairs: list[tuple[Any, Any]], name: str) -> Any:
    """Return an object of the class ``name``. ``pairs`` has the names and values of its fields.

    Raises
    ------
    UnsupportedError
        One of these causes:

        - This process has not imported the class.
        - The class is not a dataclass, or the names of its fields differ from those in ``pairs``.
        - The class defines ``__del__``.
    TypeError
        An assignment to a field would run code of the class.
    """
    kind, values = _class(name), dict(pairs)
    if not is_dataclass(kind) or set(_field_names(kind)) != values.keys():
        raise _not_the_same(name)
    made = object.__new__(kind)
    for field, value in values.items():
        object.__setattr__(made, field, value)
    return made


def make_named_tuple(values: list[Any], name: str) -> Any:
    """Return a named tuple of the class ``name``. ``values`` has the values of its fields.

    Raises
    ------
    UnsupportedError
        One of these causes:

        - This process has not imported the class.
        - The class is not a named tuple, or the number of its fields is not the number of values.
        - The class defines ``__del__``.
    """
    kind = _class(name)
    if not issubclass(kind, tuple) or len(getattr(kind, "_fields", ())) != len(values):
        raise _not_the_same(name)
    return tuple.__new__(kind, values)


def _field_names(kind: type) -> list[str]:
    """Return the names of a dataclass's fields.

    Raises
    ------
    TypeError
        An assignment to a field would run code of the class.
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
    """Refuse a class with ``__del__``: this method would run on objects from another process."""
    if getattr_static(kind, "__del__", None) is not None:
        msg = f"class {clause(kind.__qualname__)} defines __del__, which would run on received data"
        raise UnsupportedError(msg, operation=operation, hint="share the fields as a dict")


def _find(module_name: str, path: str) -> Any:
    """Return the object at a dotted name in an imported module; None if there is none."""
    found: Any = sys.modules.get(module_name)
    for step in path.split("."):
        # getattr() would run the module's own __getattr__, so the dictionary is read instead.
        found = vars(found).get(step) if isinstance(found, type | ModuleType) else None
    return found


def _not_the_same(name: str) -> UnsupportedError:
    msg = f"class {shorten(name)} has other fields in the process that shared the tree"
    return UnsupportedError(
        msg, operation="receive", hint="run the same version of the program in both processes"
    )
