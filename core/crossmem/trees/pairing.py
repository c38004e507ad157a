# SPDX-License-Identifier: Apache-2.0
"""Pairs each array of a tree with the array at the same path of another tree."""

from collections.abc import Iterator
from typing import Any, Final, Literal

from crossmem.errors import ConfigurationError, InvalidHandleError, UnsupportedError
from crossmem.guards import clause, shorten
from crossmem.trees.nodes import FORMS, read

__all__ = ["pair_arrays"]


def pair_arrays(
    theirs: Any, mine: Any, where: str, operation: Literal["receive", "update"]
) -> Iterator[tuple[int, int, str]]:
    """For each path to an array, yield the array's number in each of the two trees, and the path.

    The trees may differ in the ``_metadata`` of an OrderedDict and in the order of keys. Plain
    values may differ, too, unless the operation is an update.

    Parameters
    ----------
    theirs, mine
        The JSON of the shared tree, and of the other tree.
    where
        The name of the other tree in errors. The last item of each result is this name, followed
        by the path to the array.

    Raises
    ------
    ConfigurationError
        The trees differ in structure or, for an update, in a plain value.
    """
    tag, inner, name = _open(theirs)
    other_tag, others, other_name = _open(mine)
    what = hint = None
    if (tag, name) != (other_tag, other_name):
        what = f"is {_in_words(other_tag, other_name)}, but {_in_words(tag, name)} was shared"
    elif tag is None and operation == "update" and theirs != mine:
        what = f"is {_value_of(mine)}, but {_value_of(theirs)} was shared"
        hint = "plain values stay as they were shared; if a value changes, share it in an array"
    for place in inner.keys() - others.keys():
        what = what or f"lacks {clause(str(place), 100)}, which was shared"
    for place in others.keys() - inner.keys():
        what = what or f"has {clause(str(place), 100)}, which was not shared"
    if what is not None:
        raise ConfigurationError(f"{clause(where, 50)} {what}", operation=operation, hint=hint)
    if tag == "a":
        yield inner[tag], others[tag], where
        return
    for place, one in inner.items():
        yield from pair_arrays(one, others[place], f"{where}[{place}]", operation)


_IN_WORDS: Final = {
    "a": "an array",
    "d": "a dict",
    "list": "a list",
    "o": "an OrderedDict",
    "t": "a tuple",
    None: "a plain value",
}


def _value_of(node: Any) -> str:
    """Return the ``repr`` of a node's plain value, shortened."""
    try:
        return shorten(read(node, ()), 60)
    except (InvalidHandleError, UnsupportedError):
        return shorten(node, 60)


def _in_words(tag: str | None, name: str | None) -> str:
    return _IN_WORDS.get(tag) or f"a {shorten(name, 60)}"


def _open(node: Any) -> tuple[str | None, dict[object, Any], str | None]:
    """Return the tag of a node, a dict of its inner nodes, and the name of its class.

    The keys of the returned dict are the places of the inner nodes. If ``node`` is a dict of the
    tree, a place is the text of one of that dict's keys. If ``node`` is a dataclass, a place is the
    text of a field's name. In other nodes, a place is an index. For an array, the returned dict is
    ``node``. A plain value has the tag None.
    """
    if type(node) is list:
        return "list", dict(enumerate(node)), None
    if type(node) is not dict:
        return None, {}, None
    ((tag, content),) = node.items()
    if tag == "i":
        return _open(content[1])
    if tag == "a":
        return tag, node, None
    form = FORMS.get(tag)
    if form is None:
        return None, {}, None
    inner, beside = form.split(content)
    # A key of a dict may be a container, such as a tuple. The node of this key is not hashable, so
    # the text of the node is used.
    parts = (
        ((repr(_without_numbers(key)), one) for key, one in inner)
        if form.has_keys
        else enumerate(inner)
    )
    return tag, dict(parts), beside if form.is_named else None


def _without_numbers(node: Any) -> Any:
    """Return a node without the numbers of repeated containers.

    Without these numbers, equal keys in two trees have equal texts.
    """
    if type(node) is list:
        return [_without_numbers(one) for one in node]
    if type(node) is dict:
        ((tag, content),) = node.items()
        return _without_numbers(content[1]) if tag == "i" else {tag: _without_numbers(content)}
    return node
