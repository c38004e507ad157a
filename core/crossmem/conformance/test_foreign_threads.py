# SPDX-License-Identifier: Apache-2.0
"""Law C19 for adopted memory: threads that adopt, attach or unmap at the same time."""

from typing import Any

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.patterns import pattern
from crossmem.conformance.peers import Peer
from crossmem.conformance.strangers import MakeStranger, needs_foreign, took
from crossmem.driver import TracingDriver

pytestmark = pytest.mark.crossmem_not_of_blocks("adopted memory lies in no pool")


@needs_foreign
def test_c19_threads_adopt_and_export_once(stranger: MakeStranger, tracer: TracingDriver) -> None:
    memory = stranger(1, b"data")
    before = dict(tracer.calls)

    def work(number: int) -> crossmem.Adoption:
        adopted = memory.adopt()
        adopted.export()
        return adopted

    made = actions.in_threads(8, work)

    assert all(isinstance(one, crossmem.Adoption) for one in made), made
    calls = took(tracer, before)
    assert (calls["adopt"], calls["export"]) == (1, 1)

    actions.in_threads(8, lambda number: made[number].free())

    assert took(tracer, before)["disown"] == 1
    assert memory.read(4) == b"data"


@needs_foreign
def test_c19_threads_open_once(stranger: MakeStranger, peer: Peer) -> None:
    memory = stranger(1, pattern(800, 2))
    parts = [memory.adopt(100, at=100 * number, neighbours="expose") for number in range(8)]
    blobs = [one.export().to_bytes() for one in parts]
    for _ in range(5):
        before = peer.call(actions.calls)

        assert peer.call(_attach_in_threads, blobs) == [
            pattern(800, 2)[100 * number :][:100] for number in range(8)
        ]

        after = peer.call(actions.calls)
        assert after["import_"] - before.get("import_", 0) == 1
        assert after["map"] - before.get("map", 0) == 1
        assert actions.in_threads(1, lambda _: peer.call(_unmap_in_threads)) == [None]
        assert peer.call(actions.live)["imports"] == 0
    for one in parts:
        one.free(busy="wait", timeout=5)


def _attach_in_threads(blobs: list[bytes]) -> list[Any]:
    def work(number: int) -> bytes:
        mapping = actions.objects[f"m{number}"] = crossmem.attach(blobs[number])
        return mapping.read()

    return actions.in_threads(len(blobs), work)


def _unmap_in_threads() -> None:
    names = [name for name in actions.objects if name.startswith("m")]
    results = actions.in_threads(len(names), lambda number: actions.unmap(names[number]))
    assert results == [None] * len(names), results
    for name in names:
        del actions.objects[name]


@needs_foreign
def test_c19_open_and_close_over_and_over(stranger: MakeStranger, peer: Peer) -> None:
    memory = stranger(1, b"abcd")
    parts = [memory.adopt(1, at=number, neighbours="expose") for number in range(4)]

    peer.call(_churn, [one.export().to_bytes() for one in parts], within=40)

    for one in parts:
        one.free(busy="wait", timeout=5)


def _churn(blobs: list[bytes]) -> None:
    def work(number: int) -> None:
        for _ in range(50):
            with crossmem.attach(blobs[number]) as mapping:
                assert mapping.read() == b"abcd"[number : number + 1]

    results = actions.in_threads(len(blobs), work)
    assert results == [None] * len(blobs), results
