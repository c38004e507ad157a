# SPDX-License-Identifier: Apache-2.0
"""The receiver of a message counts its values as the writer did, before anything is built."""

import json
import os
import resource
import struct
import subprocess
import sys
from binascii import crc32
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st

from crossmem import ConfigurationError, InvalidHandleError
from crossmem.conformance.speed import SLOWNESS
from crossmem.trees import counting
from crossmem.trees.counting import MAX_VALUES, check_values
from crossmem.trees.message import MAX_MESSAGE_NBYTES, Message
from crossmem.trees.nodes import read, write

HEADER = struct.Struct("<4sHHII")
ROOM = MAX_MESSAGE_NBYTES - 200
MOST_NBYTES = 100 << 20
"""What a refused message may cost: a few copies of itself."""


def body(tree: str, arrays: str = "[]", more: str = "") -> bytes:
    return f'{{"handles":[],"arrays":{arrays},"tree":{tree},"timeline":null{more}}}'.encode()


def wrap(text: bytes) -> bytes:
    """Return a text with a header that is right."""
    return HEADER.pack(b"XMTR", 1, 0, HEADER.size + len(text), crc32(text)) + text


def many(unit: str, nbytes: int = ROOM) -> str:
    """Return a list as long as that."""
    return "[" + ",".join([unit] * (nbytes // (len(unit) + 1))) + "]"


HOSTILE: dict[str, Callable[[], bytes]] = {
    "lists": lambda: body(many("[]")),
    "lists with blanks": lambda: body(many("[ ]")),
    "lists in lists": lambda: body(many("[[[0]]]")),
    "objects": lambda: body(many("{}")),
    "objects in objects": lambda: body(many('{"t":{}}')),
    "numbers": lambda: body(many("1")),
    "texts": lambda: body(many('""')),
    "texts of commas": lambda: body(many('","')),
    "depth": lambda: body("[" * ROOM),
    "depth of objects": lambda: body('{"t":[' * (ROOM // 6)),
    "closing": lambda: body("]" * ROOM),
    "a pair of many": lambda: body('{"d":[' + many("[]") + "]}"),
    "many members": lambda: body("{" + ",".join(['"t":[]'] * (ROOM // 7)) + "}"),
    "quotes": lambda: body('"' + '\\"' * (ROOM // 2)),
    "rows": lambda: body("0", arrays=many("[]")),
    "objects for rows": lambda: body("0", arrays=many("{}")),
    "an unknown member": lambda: body("0", more=',"x":' + many("[]")),
    "many unknown members": lambda: body("0", more=',"x":[]' * (ROOM // 7)),
    "the tree twice": lambda: body(many("1", ROOM // 2), more=',"tree":' + many("1", ROOM // 2)),
    "a tree under another name": lambda: body("0", more=',"tr\\u0065e":' + many("[]")),
    "a number": lambda: body("1" * ROOM),
    "a negative number in a list": lambda: body("[-" + "1" * ROOM + "]"),
}


def receive_hostile() -> None:
    """Print by how many bytes a process grows while it refuses each message."""
    with pytest.raises(InvalidHandleError):
        Message.from_bytes(wrap(body("[")))
    costs = {}
    for name, make in HOSTILE.items():
        blob = wrap(make())
        assert len(blob) <= MAX_MESSAGE_NBYTES
        reading, writing = os.pipe()
        # In a process of its own: what this one reached before hides what a message costs.
        child = os.fork()
        if not child:
            os.write(writing, str(cost_of(blob)).encode())
            os._exit(0)
        os.close(writing)
        costs[name] = int(os.read(reading, 100) or MAX_VALUES**2)
        os.close(reading)
        os.waitpid(child, 0)
    print(json.dumps(costs))


def cost_of(blob: bytes) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidHandleError):
        Message.from_bytes(blob)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


@pytest.fixture(scope="module")
def costs(unmeasured: None) -> dict[str, int]:
    """Return by how many bytes a process grows while it refuses each hostile message."""
    script = (
        f"import runpy, sys; sys.path[:0] = {sys.path!r}; "
        f"runpy.run_path({__file__!r})['receive_hostile']()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=50 * SLOWNESS,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.ci
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_message_costs_little(costs: dict[str, int], name: str) -> None:
    assert costs[name] < MOST_NBYTES


def test_the_bound_is_the_writers() -> None:
    most = [None] * MAX_VALUES
    text = body(json.dumps(write(most, lambda _value, _where: None), separators=(",", ":")))

    assert read(Message.from_bytes(wrap(text)).tree, []) == most

    most.append(None)
    with pytest.raises(ConfigurationError, match=f"more than {MAX_VALUES} values"):
        write(most, lambda _value, _where: None)
    with pytest.raises(InvalidHandleError, match=f"more than {MAX_VALUES} values"):
        Message.from_bytes(wrap(body(json.dumps(most, separators=(",", ":")))))


keys = st.one_of(st.text(), st.integers(), st.tuples(st.integers()), st.binary(), st.just("tree"))
values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(),
        st.sampled_from(['",[{\\', "tree", '"tree":', "\ud800"]),
        st.binary(),
        st.complex_numbers(),
    ),
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(keys, inner),
        st.dictionaries(keys, inner).map(OrderedDict),
        inner.map(lambda one: [one, one, (one,)]),
    ),
    max_leaves=30,
)


@given(value=values)
@examples(300)
def test_the_count_is_the_writers(value: Any) -> None:
    node = write(value, lambda _value, _where: None)
    text = body(json.dumps(node, separators=(",", ":")))
    found = counting._count(text, MAX_VALUES)  # the count of the writer

    assert found == values_in(node)
    check_values(text, found)
    if found:
        with pytest.raises(ValueError, match=f"more than {found - 1} values"):
            check_values(text, found - 1)


def values_in(node: Any) -> int:
    """Return how many values a written tree has, counted container by container."""
    if isinstance(node, list):
        return len(node) + sum(map(values_in, node))
    if not isinstance(node, dict):
        return 0
    ((tag, content),) = node.items()
    if tag == "t":
        return values_in(content)
    if tag == "i":
        return values_in(content[1])
    if tag == "d":
        return pairs_in(content)
    return sum(map(pairs_in, content)) if tag == "o" else 0


def pairs_in(pairs: list[Any]) -> int:
    return len(pairs) + sum(values_in(one) for pair in pairs for one in pair)
