# SPDX-License-Identifier: Apache-2.0
"""Arrays of CuPy go to another process, and come back."""

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import crossmem
from crossmem.trees import tree_memory

cupy = pytest.importorskip("cupy", reason="CuPy cannot be imported", exc_type=ImportError)
np = pytest.importorskip("numpy")
actions = pytest.importorskip("cupy_actions")

crossmem.install()
UNIT_NBYTES = 2 << 20
said = actions.said


@pytest.fixture(autouse=True)
def _in_default_pool(gpu: str) -> Iterator[None]:
    """Let each test begin with a pool that keeps nothing of another test's."""
    pool = cupy.cuda.MemoryPool()
    cupy.cuda.set_allocator(pool.malloc)
    yield
    cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
    gc.collect()
    crossmem.collect()


def leases() -> list[tuple[int, int]]:
    """Return size and number of leases of all that is exported here and leased."""
    return sorted((one.nbytes, len(one.leases)) for one in crossmem.exports() if one.leases)


def managed(count: int) -> Any:
    """Return an array in managed memory."""
    pointer = cupy.cuda.runtime.mallocManaged(4 * count)
    memory = cupy.cuda.UnownedMemory(pointer, 4 * count, None, 0)
    return actions.numbers(cupy.ndarray(count, "float32", cupy.cuda.MemoryPointer(memory, 0)))


def test_from_birth_and_back(gpu: str, peer: Any) -> None:
    array = actions.numbers(crossmem.empty((4, 5), "float32", device=f"{gpu}:0"))
    tree = {"whole": array, "part": array[1:, ::-2], "again": array, "none": cupy.empty((0, 5))}
    with crossmem.share(tree) as shared:
        assert len(shared.message.handles) == 1
        peer("receive", "tree", shared.to_bytes(), {})
        there = peer("tell", "tree")

        assert there == {name: said(one) for name, one in tree.items()}
        assert leases() == [(80, 1)]

    peer("receive", "array", crossmem.share(array).to_bytes(), {})
    peer("write", "array", 7)
    assert actions.look(array).tolist() == [[7.0] * 5] * 4


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "complex64", "complex128"])
def test_dtypes(dtype: str, gpu: str, peer: Any) -> None:
    array = actions.numbers(crossmem.empty((2, 3), dtype, device=f"{gpu}:0"))
    peer("receive", "array", crossmem.share(array).to_bytes(), {})

    assert peer("tell", "array") == said(array)


def test_a_whole_allocation_of_cupy_s_is_adopted(gpu: str, peer: Any) -> None:
    cupy.cuda.set_allocator(None)
    array = actions.numbers(cupy.empty(UNIT_NBYTES, "uint8"))
    with crossmem.share([array, array[::-3], array[7:9]]) as shared:
        peer("receive", "list", shared.to_bytes(), {})

        assert peer("tell", "list") == [said(array), said(array[::-3]), said(array[7:9])]
        # One adoption and one lease, however many arrays lie in it.
        assert leases() == [(UNIT_NBYTES, 1)]
    pointer, device = array.data.ptr, crossmem.device(f"{gpu}:0")
    del array

    # CuPy would have freed it: the lease keeps it.
    assert crossmem.how_can_share(pointer, device).mechanisms
    peer("clear")
    crossmem.collect()
    assert not crossmem.how_can_share(pointer, device).mechanisms


def test_each_tree_adopts_for_itself(gpu: str, peer: Any) -> None:
    cupy.cuda.set_allocator(None)
    array = actions.numbers(cupy.empty(UNIT_NBYTES, "uint8"))
    shared = crossmem.share(array)
    with crossmem.share([array]):
        pass
    for _ in range(3):
        peer("receive", "array", shared.to_bytes(), {})
        assert peer("tell", "array") == said(array)
        # The tree before this one is dropped when this one is there.
        shared = crossmem.share(array)
        peer("clear")
        crossmem.collect()

    # A message holds what a tree has adopted, whatever becomes of the tree.
    peer.pipe.send(("take", "array", array))
    shared.close()
    peer.pipe.recv()
    assert peer("tell", "array") == said(array)
    assert leases() == [(UNIT_NBYTES, 1)]


def test_a_block_of_a_pool_has_neighbours(peer: Any) -> None:
    one, other = (actions.numbers(cupy.empty(100, "int32")) for _ in range(2))
    with pytest.raises(crossmem.UnsupportedError, match="shares only whole blocks") as raised:
        crossmem.share([1, one])
    assert str(raised.value).startswith("x[1] cannot be shared without a copy: ")
    assert 'neighbours="expose", or pass copy=True' in str(raised.value)

    with crossmem.share([one, one[::-1]], copy="allow") as shared:
        assert shared.copied_nbytes == 400
        peer("receive", "list", shared.to_bytes(), {})
        assert peer("tell", "list") == [said(one), said(one[::-1])]

    with crossmem.share({"a": one, "b": one[::-1], "c": other}, neighbours="expose") as shared:
        peer("receive", "tree", shared.to_bytes(), {})
        there = peer("tell", "tree")

    assert there == {"a": said(one), "b": said(one[::-1]), "c": said(other)}


def test_the_vendor_is_asked_once_for_what_lies_together(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask(pointer: int, device: crossmem.Device) -> crossmem.ShareReport:
        asked.append(pointer)
        return crossmem.how_can_share(pointer, device)

    monkeypatch.setattr(tree_memory, "how_can_share", ask)
    one, other = (actions.numbers(cupy.empty((50, 10), "float32")) for _ in range(2))
    with crossmem.share([*one, *other], neighbours="expose") as shared:
        handles = shared.message.handles

    assert len(asked) == len(handles) == 2


def test_an_array_in_several_allocations_of_the_vendor_s_is_copied(
    monkeypatch: pytest.MonkeyPatch, peer: Any
) -> None:
    def ask(pointer: int, device: crossmem.Device) -> crossmem.ShareReport:
        report = crossmem.how_can_share(pointer, device)
        halves = [replace(way, nbytes=UNIT_NBYTES) for way in report.ways if way.obstacle is None]
        return replace(report, ways=tuple(halves))

    monkeypatch.setattr(tree_memory, "how_can_share", ask)
    cupy.cuda.set_allocator(None)
    array = actions.numbers(cupy.empty(2 * UNIT_NBYTES, "uint8"))
    tree = [array[:9], array[7:]]
    with pytest.raises(crossmem.UnsupportedError, match=r"x\[1\] .* spans several allocations"):
        crossmem.share(tree, neighbours="expose")
    with crossmem.share(tree, copy="allow", neighbours="expose") as shared:
        assert shared.copied_nbytes == array.nbytes - 7
        peer("receive", "list", shared.to_bytes(), {})

        assert peer("tell", "list") == [said(one) for one in tree]


def test_managed_memory_is_copied_where_that_is_allowed(gpu: str, peer: Any) -> None:
    array = managed(64)
    with pytest.raises(crossmem.UnsupportedError, match="managed memory") as raised:
        crossmem.share({"it": array})
    assert "x['it']" in str(raised.value)
    assert raised.value.hint == "make it with crossmem.empty(), or pass copy=True"
    assert "- vmm: no" in raised.value.details

    expected = said(array)
    with crossmem.share({"it": array}, copy="allow") as shared:
        assert shared.copied_nbytes == 256
        assert [one.device for one in shared.message.handles] == [
            crossmem.device(f"{gpu}:0").identity
        ]
        peer("receive", "tree", shared.to_bytes(), {})
        actions.put(array, 0)

        assert peer("tell", "tree") == {"it": expected}


def test_a_pipe_carries_handles_and_the_receiver_sends_on(gpu: str, peer: Any) -> None:
    array = actions.numbers(crossmem.empty((3, 4), "float32", device=f"{gpu}:0"))
    peer("take", "array", array[1:])
    peer("write", "array", 5)
    back = peer("give", "array")

    # It comes back as what it is: the same memory.
    assert (back.data.ptr, back.shape) == (array[1:].data.ptr, (2, 4))
    assert actions.look(array)[2].tolist() == [5.0] * 4
    # While it is here, it has a lease of its own.
    assert leases() == [(48, 2)]
    del back
    crossmem.collect()
    assert leases() == [(48, 1)]


def test_what_is_dropped_after_it_was_sent_arrives(gpu: str, peer: Any) -> None:
    array = actions.numbers(crossmem.empty((3,), "float32", device=f"{gpu}:0"))
    expected = said(array)
    peer.pipe.send(("take", "array", array))
    del array
    crossmem.collect()
    peer.pipe.recv()

    assert peer("tell", "array") == expected


def test_what_came_by_a_raw_handle_is_sent_on_by_copy(gpu: str, peer: Any) -> None:
    with crossmem.device(f"{gpu}:0").allocate(8) as memory:
        memory.write(b"original")
        peer("attach", "array", memory.export(lease=False).to_bytes())
        back = peer("give", "array")

        assert bytes(said(back)[-1]) == b"original"
        assert back.data.ptr != memory.ptr
        assert leases() == []
        peer("clear")


def test_arrays_that_are_no_memory_of_crossmem_go_as_before(peer: Any) -> None:
    array = actions.numbers(cupy.empty(8, "float32"))
    peer("take", "array", array)

    assert peer("tell", "array") == said(array)
    peer("write", "array", 5)
    assert said(array)[-1] == list(range(8))


def test_what_was_received_is_passed_on_by_its_handle(gpu: str, peer: Any) -> None:
    blob = peer("make", "array", (6,), f"{gpu}:0")
    received = crossmem.receive(blob)
    theirs = crossmem.Shared.from_bytes(blob).message.handles

    with crossmem.share([received[2:]]) as shared:
        assert shared.message.handles == theirs
        assert shared.message.rows[0].layout.offset == 8
    with pytest.raises(crossmem.UnsupportedError, match="was imported from process"):
        crossmem.device(f"{gpu}:0").adopt(received.data.ptr, 24, owner=received)


def test_versions(gpu: str, peer: Any) -> None:
    array = actions.numbers(crossmem.empty((4,), "float32", device=f"{gpu}:0"))
    with crossmem.share(array) as shared:
        peer("receive", "array", shared.to_bytes(), {})
        for version in (1, 2):
            host = np.full(4, 10 * version, "float32")
            array.set(host)
            assert shared.publish() == version
            assert peer("wait", shared.to_bytes(), version - 1) == version
            assert peer("tell", "array")[-1] == [10.0 * version] * 4


def test_copies_are_updated_and_written_where_they_are_shared(gpu: str, peer: Any) -> None:
    def full(value: int) -> Any:
        array = cupy.empty(4, "float32")
        array.set(np.full(4, value, "float32"))
        return array

    # What lies in CuPy's pool has neighbours.
    with crossmem.share({"w": full(1)}, copy="allow") as shared:
        assert shared.copied_nbytes == 4 * 4
        peer("receive", "tree", shared.to_bytes(), {})
        for version in (1, 2):
            if version == 1:
                assert shared.update({"w": full(7)}) == version
            else:
                shared.value["w"].set(np.full(4, 8, "float32"))
                assert shared.publish() == version
            assert peer("wait", shared.to_bytes(), version - 1) == version
            assert peer("tell", "tree")["w"][-1] == [6.0 + version] * 4


def test_new_arrays_are_on_the_device_of_the_others(gpu: str) -> None:
    array = actions.numbers(cupy.empty((4, 2), "float32"))
    new = crossmem.empty_like({"w": array, "back": array[::-1], "host": np.zeros(2)})

    assert (type(new["w"]), new["w"].shape, new["w"].device) == (
        cupy.ndarray,
        (4, 2),
        array.device,
    )
    assert new["back"].data.ptr - new["w"].data.ptr == 3 * 2 * 4
    assert type(new["host"]) is np.ndarray
    with crossmem.share(new) as shared:
        assert shared.copied_nbytes == 0
        assert {one.backend for one in shared.message.handles} == {gpu, "host"}
    with pytest.raises(crossmem.UnsupportedError, match="numpy cannot address memory of"):
        crossmem.empty_like(np.zeros(2), f"{gpu}:0")


def test_into_arrays_of_the_receiver_s_own(gpu: str, peer: Any) -> None:
    array = actions.numbers(crossmem.empty((4, 2), "int32", device=f"{gpu}:0"))
    shared = crossmem.share(array)
    peer("overwrite", "array", (4, 2), "int32", shared.to_bytes())

    assert peer("tell", "array") == said(array)
    peer("write", "array", 9)
    assert said(array)[-1] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert peer("overwrite", "other", (4, 2), "float32", shared.to_bytes()) == "ConfigurationError"


@pytest.mark.parametrize(("source", "current"), [(0, 0), (0, 1), (1, 0)])
def test_into_an_array_of_another_device(
    two_gpus: str, slow_peer: Any, source: int, current: int
) -> None:
    array = actions.numbers(crossmem.empty(1000, "int32", device=f"{two_gpus}:{source}"))
    with crossmem.share(array) as shared:
        slow_peer("overwrite", "array", (1000,), "int32", shared.to_bytes(), 1, current)

        assert slow_peer("tell", "array")[-1] == list(range(1000))


def test_readonly(gpu: str, peer: Any) -> None:
    shared = crossmem.share(actions.numbers(crossmem.empty(4, "int8", device=f"{gpu}:0")))
    peer("receive", "array", shared.to_bytes(), {"readonly": "advisory"})

    assert peer("tell", "array")[-1] == [0, 1, 2, 3]
    # No vendor of GPUs can keep a process from writing.
    assert peer("receive", "none", shared.to_bytes(), {"readonly": True}) == "UnsupportedError"


def test_a_tree_over_two_devices_and_one_device_for_all(two_gpus: str, peer: Any) -> None:
    tree = [
        actions.numbers(crossmem.empty(4, "float32", device=f"{two_gpus}:{ordinal}"))
        for ordinal in range(2)
    ]
    with crossmem.share(tree) as shared:
        peer("receive", "tree", shared.to_bytes(), {})
        assert peer("tell", "tree") == [said(one) for one in tree]
        assert [one[4] for one in peer("tell", "tree")] == [0, 1]

        peer("receive", "here", shared.to_bytes(), {"device": f"{two_gpus}:1"})
        assert [one[4] for one in peer("tell", "here")] == [1, 1]
        assert [one[-1] for one in peer("tell", "here")] == [[0.0, 1.0, 2.0, 3.0]] * 2


def test_more_than_an_array_is_refused() -> None:
    own = type("Own", (cupy.ndarray,), {})
    with pytest.raises(crossmem.UnsupportedError, match="a Own may hold more than its elements"):
        crossmem.share(cupy.empty(3, "float32").view(own))


def test_arrays_are_copied_into_buffers_of_a_queue(gpu: str) -> None:
    array = actions.numbers(cupy.empty((3, 4), "float32"))
    host = cupy.asnumpy(array)
    with crossmem.device(f"{gpu}:0").queue(2, array.nbytes) as queue:
        # The emulation runs no kernels, so CuPy copies whole arrays alone.
        for one in (array, host, host.T, array[:0]):
            queue.put(one, copy="allow")
            with queue.get(timeout=0) as buffer:
                assert buffer.data_length == one.nbytes
                found = cupy.asnumpy(buffer.as_array(one.shape, "float32"))
            assert (found == cupy.asnumpy(one)).all()
    with crossmem.device("host").queue(1, array.nbytes) as queue:
        queue.put(array, copy="allow")
        with queue.get(timeout=0) as buffer:
            assert buffer.read() == host.tobytes()
