# SPDX-License-Identifier: Apache-2.0
"""Law C18: views that a forked child inherits, and locks for which the child must not wait."""

import gc
import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.forks import answer_of, in_child, waiting_child
from crossmem.conformance.harness import Allocate, FreshPeer
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S
from crossmem.conformance.speed import SLOWNESS
from crossmem.sharing.base.process import current

_NBYTES: Final = 4096
_VIEWED: Final = ("allocation", "mapping", "mapped")
_AT_ONCE_S: Final = 8.0 * SLOWNESS


def _set_up(blob: bytes) -> None:
    """Allocate memory, and map another process's memory by ``attach`` and by ``map``."""
    actions.offer("allocation", _NBYTES, b"parent's")
    actions.attach("mapping", blob)
    actions.import_("imported", blob)
    actions.map_("mapped", "imported")


def _set_up_views(blob: bytes) -> None:
    _set_up(blob)
    for name in _VIEWED:
        actions.call(name, "view", keep=_view_of(name))


def _view_of(name: str) -> str:
    return f"view of {name}"


def _look(nbytes: int = 8, offset: int = 0) -> list[bytes]:
    return [bytes(actions.objects[_view_of(one)][offset : offset + nbytes]) for one in _VIEWED]


def _touch() -> None:
    for name in _VIEWED:
        actions.objects[_view_of(name)][8:13] = b"child"


# Views that were inherited ------------------------------------------------------------------


@pytest.mark.crossmem_not_of_blocks("the memory of a pool is not mapped in a forked child")
@pytest.mark.crossmem_requires("host_visible")
@pytest.mark.crossmem_core
def test_c18_a_child_reads_and_writes_through_inherited_views(
    allocate: Allocate, peer: Peer
) -> None:
    allocation = allocate(_NBYTES, b"exporter")
    peer.call(_set_up_views, allocation.export().to_bytes())

    assert peer.call(in_child, _look) == [b"parent's", b"exporter", b"exporter"]

    peer.call(in_child, _touch)

    assert peer.call(_look, 5, 8) == [b"child"] * 3
    assert allocation.read(5, offset=8) == b"child"


@pytest.mark.crossmem_not_of_blocks("the memory of a pool is not mapped in a forked child")
@pytest.mark.crossmem_requires("host_visible")
def test_c18_a_child_sees_what_others_write_after_the_fork(
    allocate: Allocate, fresh_peer: FreshPeer, tmp_path: Path
) -> None:
    allocation, peer = allocate(_NBYTES), fresh_peer()
    peer.call(_set_up_views, allocation.export().to_bytes())
    peer.call(waiting_child, tmp_path, _look)

    allocation.write(b"exporter")
    peer.call(actions.write, "allocation", b"parent's")

    assert answer_of(tmp_path) == repr([b"parent's", b"exporter", b"exporter"])


@pytest.mark.crossmem_not_of_blocks("the memory of a pool is not mapped in a forked child")
@pytest.mark.crossmem_requires("host_visible")
@pytest.mark.crossmem_core
@pytest.mark.parametrize("how", ["gives everything back", "exits", "is killed"])
def test_c18_inherited_views_outlive_what_the_parent_had(
    allocate: Allocate, fresh_peer: FreshPeer, tmp_path: Path, how: str
) -> None:
    allocation, peer = allocate(_NBYTES, b"exporter"), fresh_peer()
    peer.call(_set_up_views, allocation.export().to_bytes())
    peer.call(waiting_child, tmp_path, _look)

    if how == "gives everything back":
        peer.call(_give_everything_back)
        assert peer.call(actions.live) == dict.fromkeys(peer.call(actions.live), 0)
    elif how == "exits":
        peer.exit()
    else:
        peer.kill()
    # The pages are mapped in the child, but the child holds no lease. So free() does not wait for
    # the child.
    allocation.free(busy="wait", timeout=SOON_S)
    for _ in range(4):
        allocate(_NBYTES, b"somebody else's")
        if peer.exitcode is None:
            peer.call(_allocate_and_fill)

    assert answer_of(tmp_path) == repr([b"parent's", b"exporter", b"exporter"])


def _give_everything_back() -> None:
    for name in _VIEWED:
        actions.objects.pop(_view_of(name)).release()
    actions.unmap("mapping", "mapped")
    actions.close("imported")
    actions.free("allocation", busy="raise")
    crossmem.collect()


def _allocate_and_fill() -> None:
    with actions.device().allocate(_NBYTES) as allocation:
        allocation.write(b"\xff" * _NBYTES)


@pytest.mark.crossmem_not_of_blocks("the memory of a pool is not mapped in a forked child")
@pytest.mark.crossmem_requires("host_visible", "readonly_imports")
def test_c18_an_inherited_view_that_is_read_only_stays_so(allocate: Allocate, peer: Peer) -> None:
    blob = allocate(_NBYTES, b"exporter").export().to_bytes()
    peer.call(actions.attach, "mapping", blob, readonly=True)
    peer.call(actions.call, "mapping", "view", keep="view")

    assert peer.call(in_child, _read_and_try_to_write) == (b"exporter", "TypeError")


def _read_and_try_to_write() -> tuple[bytes, str]:
    view = actions.objects["view"]
    try:
        view[0] = 1
    except TypeError as error:
        return bytes(view[:8]), type(error).__name__
    return bytes(view[:8]), "no error"


@pytest.mark.crossmem_not_of_blocks("the memory of a pool is not mapped in a forked child")
@pytest.mark.crossmem_requires("host_visible", "address_ranges")
@pytest.mark.parametrize("kind", ["own", "imported"])
def test_c18_a_child_has_the_viewed_pieces_of_a_range(
    allocate: Allocate, peer: Peer, kind: str
) -> None:
    blob = allocate(_NBYTES, b"exporter").export().to_bytes()
    peer.call(_set_up, blob)
    peer.call(_view_a_piece, "allocation" if kind == "own" else "imported")

    found = peer.call(in_child, _read_the_piece)

    assert found == (b"parent's" if kind == "own" else b"exporter")


def _view_a_piece(memory: str) -> None:
    actions.place_alone("piece", "addresses", memory)
    actions.call("piece", "view", keep="view")


def _read_the_piece() -> bytes:
    return bytes(actions.objects["view"][:8])


@pytest.mark.crossmem_not_of_blocks("the memory of a pool is not mapped in a forked child")
@pytest.mark.crossmem_requires("host_visible")
def test_c18_dropping_inherited_views_gives_nothing_back(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(_NBYTES, b"exporter")
    peer.call(_set_up_views, allocation.export().to_bytes())
    # A mapping of the peer's own allocation has the address of the allocation (C8). The child keeps
    # a view at this address. When the child drops the mapping, the view's memory must stay mapped.
    peer.call(_attach_own)
    before = peer.call(actions.calls)

    assert peer.call(in_child, _drop_all_but_one_view) == (b"parent's", [])
    assert peer.call(_run_to_its_end) == 0

    assert peer.call(_look) == [b"parent's", b"exporter", b"exporter"]
    with pytest.raises(crossmem.BusyError):
        allocation.free(busy="raise")
    after = peer.call(actions.calls)
    assert all(after.get(name, 0) == before.get(name, 0) for name in ("free", "unmap", "close"))


def _attach_own() -> None:
    own = crossmem.attach(actions.objects["allocation"].export())
    actions.objects["own"], actions.objects[_view_of("own")] = own, own.view()


def _drop_all_but_one_view() -> tuple[bytes, list[int]]:
    """Drop all objects but one view.

    Returns
    -------
    tuple
        The first bytes of the view, and the descriptors that this function opened but that are
        closed now.
    """
    # These files get the numbers of descriptors that the child has inherited and closed. If an
    # object of crossmem closed its descriptor again, one of these files would be closed instead.
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(50)]
    kept = actions.objects[_view_of("allocation")]
    actions.objects.clear()
    gc.collect()
    crossmem.collect()
    return bytes(kept[:8]), [one for one in opened if not _is_null(one)]


def _run_to_its_end() -> int | None:
    # A child of multiprocessing runs finalisers at its end. The parent's finalisers must do nothing
    # in the child.
    process = multiprocessing.get_context("fork").Process(target=_touch)
    process.start()
    process.join(30)
    return process.exitcode


@pytest.mark.crossmem_not_of_blocks("the memory of a pool is not mapped in a forked child")
@pytest.mark.crossmem_requires("host_visible", "fork_safe")
def test_c18_sharing_an_inherited_array_is_a_copy(fresh_peer: FreshPeer) -> None:
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
    peer = fresh_peer()
    peer.call(actions.offer, "allocation", _NBYTES, b"parent's")
    peer.call(actions.call, "allocation", "as_array", keep="array")

    with pytest.raises(crossmem.UnsupportedError, match="ordinary host memory"):
        peer.call(in_child, _share_the_array)
    copied, blob = peer.call(in_child, _share_the_array, copy="allow", stays=True)
    peer.call(actions.write, "allocation", b"PARENT'S")
    array = crossmem.receive(blob)

    assert copied == _NBYTES
    assert array[:8].tobytes() == b"parent's"
    assert numpy.count_nonzero(array[8:]) == numpy.count_nonzero(array) - 8


def _share_the_array(**options: Any) -> tuple[int, bytes]:
    array = actions.objects["array"]
    shared = actions.objects["shared"] = crossmem.share(array, device=actions.device(), **options)
    return shared.copied_nbytes, shared.to_bytes()


# Locks and descriptors that a child must not touch ------------------------------------------


@pytest.mark.crossmem_not_of_blocks("a block has no lock that a child could wait for")
@pytest.mark.crossmem_core
def test_c18_inherited_objects_wait_for_no_lock(allocate: Allocate, peer: Peer) -> None:
    peer.call(_set_up, allocate(_NBYTES).export().to_bytes())

    outcomes = peer.call(_call_under_locks)

    assert len(outcomes) == len(_CALLS)
    assert {what: one for what, one in outcomes.items() if one != "ForkedProcessError"} == {}


_CALLS: Final = [
    *((name, method) for name in _VIEWED for method in ("as_array", "as_tensor", "view", "read")),
    *(("allocation", method) for method in ("export", "free", "__exit__")),
    *(("imported", method) for method in ("map", "close")),
    *((name, "unmap") for name in ("mapping", "mapped")),
    *((name, "dlpack") for name in _VIEWED),
]


def _call_under_locks() -> dict[str, str]:
    """Fork while threads hold crossmem's locks; return the exceptions of calls in the child."""
    process = current()
    locks = [process.state, process.index_lock]
    for name in ("allocation", "imported"):
        record = actions.objects[name]._record
        locks.append(record.lock if name == "allocation" else record.record.lock)
    with _held_by_threads(locks):
        found: dict[str, str] = in_child(_try_each, within=_AT_ONCE_S)
    return found


@contextmanager
def _held_by_threads(locks: list[Any]) -> Iterator[None]:
    done = threading.Event()
    ready = threading.Barrier(len(locks) + 1)

    def hold(lock: Any) -> None:
        with lock:
            ready.wait(30)
            done.wait(60)

    threads = [threading.Thread(target=hold, args=(lock,)) for lock in locks]
    for thread in threads:
        thread.start()
    try:
        ready.wait(30)
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join(30)


def _try_each() -> dict[str, str]:
    found = {}
    for name, method in _CALLS:
        try:
            if method == "dlpack":
                actions.objects[name].__dlpack__(max_version=(1, 0))
            else:
                actions.call(name, method, *([None] * 3 if method == "__exit__" else []))
        except Exception as error:  # noqa: BLE001 - its class is what the test compares
            found[f"{name}.{method}"] = type(error).__name__
        else:
            found[f"{name}.{method}"] = "no error"
    return found


@pytest.mark.crossmem_core
def test_c18_a_fork_after_exit_closes_no_descriptor(fresh_peer: FreshPeer) -> None:
    peer = fresh_peer(CROSSMEM_EXIT_WAIT="0")
    # The peer imports from this process and exports to it, so the peer has two pidfds
    # of this process.
    with actions.device().allocate(_NBYTES) as allocation:
        peer.call(actions.attach, "mapping", allocation.export().to_bytes())
        with crossmem.attach(peer.call(actions.offer, "allocation", _NBYTES)):
            numbers, closed = peer.call(_fork_after_exit)

    assert len(numbers) > 3
    assert closed == []


def _fork_after_exit() -> tuple[list[int], list[int]]:
    """Shut crossmem down, give its descriptor numbers to other files, and fork.

    Returns
    -------
    tuple of list
        The descriptor numbers, and the numbers among them that the child has closed.
    """
    before = _open_numbers()
    current().shut_down()
    numbers = sorted(before - _open_numbers())
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for number in numbers:
        # If `null` itself has one of the numbers, dup2() does nothing for this number.
        os.dup2(null, number, inheritable=False)
    return numbers, in_child(_not_null, numbers)


def _not_null(numbers: list[int]) -> list[int]:
    return [one for one in numbers if not _is_null(one)]


def _is_null(descriptor: int) -> bool:
    try:
        # No file is opened here, because a new file could get the number under test.
        return os.path.samestat(os.fstat(descriptor), os.stat(os.devnull))  # noqa: PTH116
    except OSError:
        return False


def _open_numbers() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd")}  # noqa: PTH208 - descriptors
