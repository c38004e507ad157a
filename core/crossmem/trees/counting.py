# SPDX-License-Identifier: Apache-2.0
"""Counts the values in the JSON of a tree, before the JSON is parsed.

The writer of a tree counts the values in all containers, and refuses a tree with more than
``MAX_VALUES`` (:func:`crossmem.trees.nodes.write`). The receiver of an untrusted message counts the
same values in the text of the JSON. The count reads the text once, and needs a bounded amount of
memory.
"""

import re
from typing import Final

__all__ = ["MAX_VALUES", "check_values"]

MAX_VALUES: Final = 2**21
"""The largest number of values in all containers of a tree together. A container that occurs twice
counts twice."""

_MAX_NESTING: Final = 200
"""The largest depth of nested brackets. The JSON parser refuses a larger depth, too."""

_MIN_ROW_NBYTES: Final = 24
"""A lower bound for the size of an array's description in the JSON. Such a description has at most
three opening brackets. So a valid text of n bytes has at most ``3 * n / _MIN_ROW_NBYTES`` opening
brackets outside the tree."""

_TEXT: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+'
_TOKENS: Final = re.compile(
    rb"""
    ((?:,|%(text)s|[^\[\]{},"]++|\[[ ]*+\]|\{"[a-z]":(?:\[\]|%(text)s|[0-9]++)\}){1,4096}+)
    | (\[|\{(?:[ \t\r\n]*+"(?P<tag>[a-z])")?)
    | [\]}]
    """
    % {b"text": _TEXT},
    re.VERBOSE | re.DOTALL,
)
"""A token is an opening bracket, a closing bracket, or a run of other text. A run can also contain
empty lists, and objects whose only value is a string, a number or an empty list. The key of an
object of the tree is a letter, the tag. The object's opening bracket and its tag form one token."""
_RUN, _OPENING = 1, 2

_TEXTS: Final = re.compile(_TEXT, re.DOTALL)
_TREE_KEY: Final = re.compile(rb'"tree"[ \t\r\n]*+:[ \t\r\n]*+\Z')

# The role of a list says what the list contains. Only the values in lists of the first two roles
# are counted.
_VALUES, _PAIRS, _PAIR, _ORDERED, _CLASS, _NAMED, _TEXT_PAIR, _AGAIN = range(8)
_FLAT, _TREE, _BODY = range(8, 11)
"""The roles of values that are not lists of the tree: ``_FLAT`` is a list outside the tree,
``_TREE`` is the value of the key "tree", and ``_BODY`` is the outermost object."""
_FIRST_TAGGED: Final = 16
"""The role of an object in the tree is this number plus the character code of its tag."""

_HOLDS_NODES: Final = frozenset({_VALUES, _PAIR, _AGAIN, _TREE})
_LIST_IN: Final[dict[int, int]] = {
    **dict.fromkeys(_HOLDS_NODES, _VALUES),
    _PAIRS: _PAIR,
    _ORDERED: _PAIRS,
    _CLASS: _PAIRS,
    _NAMED: _VALUES,
    _FLAT: _FLAT,
    _BODY: _FLAT,
    **{
        _FIRST_TAGGED + ord(tag): role
        for tag, role in {
            "t": _VALUES,
            "d": _PAIRS,
            "o": _ORDERED,
            "c": _CLASS,
            "n": _NAMED,
            "z": _TEXT_PAIR,
            "s": _TEXT_PAIR,
            "i": _AGAIN,
        }.items()
    },
}
"""The role of a list in another list or in an object. The key is the role of the outer list or
object."""

_COMMAS: Final = {
    **dict.fromkeys((_PAIR, _ORDERED, _CLASS, _NAMED, _TEXT_PAIR, _AGAIN), 1),
    _BODY: 3,
}
"""The largest number of commas in a list or object whose values are not counted. The key is the
role of the list or object. A role that is missing here, such as that of an object of the tree,
allows no comma."""


def check_values(text: bytes, most: int = MAX_VALUES) -> None:
    """Refuse the JSON of a message if its tree has more than ``most`` values.

    A text that passes may still be invalid.

    Raises
    ------
    ValueError
        The tree has more than ``most`` values, the text has more brackets than any writer produces,
        or the text is not the JSON of a tree.
    """
    # The number of commas and opening brackets in the text, including those in strings, is an upper
    # bound of the number of values. So most messages pass without the slower count.
    if text.count(b",") + text.count(b"[") + text.count(b"{") > most:
        _count(text, most)


def _count(text: bytes, most: int) -> int:
    """Return the number of values in the tree. The errors are those of :func:`check_values`."""
    values = brackets = 0
    most_brackets = 3 * len(text) // _MIN_ROW_NBYTES
    stack: list[tuple[int, int]] = []
    role, commas, is_tree = _BODY, 0, False
    for match in _TOKENS.finditer(text):
        kind = match.lastindex
        if kind == _RUN:
            run = match[0]
            is_tree = role == _BODY and _TREE_KEY.search(run) is not None
            bare = _TEXTS.sub(b"", run) if b'"' in run else run
            found = bare.count(b",")
            if role <= _PAIRS:
                values += found
            elif role == _FLAT:
                brackets += bare.count(b"[")
            elif found:
                commas += found
                if commas > _COMMAS.get(role, 0):
                    raise _malformed()
        elif kind == _OPENING:
            inner = _role_of(_TREE if is_tree else role, match) if stack else _BODY
            stack.append((role, commas))
            role, commas, is_tree = inner, 0, False
            brackets += role == _FLAT
            values += role <= _PAIRS
            if len(stack) > _MAX_NESTING:
                raise _malformed()
        elif not stack:
            raise _malformed()
        else:
            role, commas = stack.pop()
        if values > most or brackets > most_brackets:
            msg = f"the tree has more than {most} values"
            raise ValueError(msg)
    return values


def _role_of(role: int, match: "re.Match[bytes]") -> int:
    """Return the role of a list or object. ``role`` is the role of the list or object around it."""
    tag = match["tag"]
    if tag is not None and role in _HOLDS_NODES:
        return _FIRST_TAGGED + tag[0]
    inner = _LIST_IN.get(role) if match[0] == b"[" else None
    if inner is None:
        raise _malformed()
    return inner


def _malformed() -> ValueError:
    return ValueError("the JSON does not have the structure of a tree")
