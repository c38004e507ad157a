# SPDX-License-Identifier: Apache-2.0
"""Arrays and trees cross queues, pipes and pools of multiprocessing without a copy."""

import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
from programs import script
from typing_extensions import override

import crossmem
import crossmem.multiprocessing
from crossmem.conformance.speed import SLOWNESS

crossmem.install()
np = pytest.importorskip("numpy")
sys.path.insert(0, str(Path(__file__).parent))
queue_actions = pytest.importorskip("queue_actions")

_DEADLINE_S = 60 * SLOWNESS
METHODS = ("spawn", "forkserver")
# What the processes of these tests would import anew; `queue_actions` is not found by then.
PRELOADED = ["crossmem.activation", "crossmem_emulated.host", "numpy", "pytest.__main__"]


class Scene:
    """Queues and processes of one start method; none of these survives the test."""

    def __init__(self, method: str) -> None:
        self.context: Any = multiprocessing.get_context(method)
        self.requests = self.context.Queue()
        self.answers = self.context.Queue()
        self.processes: list[BaseProcess] = []

    def start(self, work: Callable[..., None], *arguments: Any) -> BaseProcess:
        process: BaseProcess = self.context.Process(target=work, args=arguments)
        process.start()
        self.processes.append(process)
        return process

    def echo(self) -> BaseProcess:
        return self.start(queue_actions.echo, self.requests, self.answers)

    def answer(self) -> Any:
        return self.answers.get(timeout=_DEADLINE_S)

    def end(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join(_DEADLINE_S)
        for queue in (self.requests, self.answers):
            queue.cancel_join_thread()
            queue.close()


@pytest.fixture(scope="module", autouse=True)
def forkserver_of_its_own() -> Iterator[None]:
    """Start a forkserver with the modules of these tests, and end it: others want their own."""
    # What the standard library's own tests call; there is no public way.
    stop = forkserver._forkserver._stop  # type: ignore[attr-defined]
    stop()
    multiprocessing.set_forkserver_preload(PRELOADED)
    yield
    stop()
    multiprocessing.set_forkserver_preload(["__main__"])


@pytest.fixture
def scene() -> Iterator[Scene]:
    # The start method is the subject of the tests that have it as a parameter; here, the fast one.
    made = Scene("forkserver")
    yield made
    made.end()
    gc.collect()
    crossmem.collect()


def held() -> int:
    """Return how many messages of this process hold its memory."""
    return sum(one.in_message for export in crossmem.exports() for one in export.leases)


def until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + _DEADLINE_S
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)
        crossmem.collect()


@pytest.mark.parametrize("method", METHODS)
def test_an_array_crosses_a_queue_both_ways_and_is_one(method: str) -> None:
    scene = Scene(method)
    try:
        scene.echo()
        array = crossmem.empty((100, 10), "float32")
        array[:] = 1
        part = array[10:20, ::-2]
        scene.requests.put(part)

        name, seen, back = scene.answer()
        back[0, 0] = 7

        assert (name, seen) == ("ndarray", float(part.size))
        assert back.strides == part.strides
        assert array[10, 9] == 7
    finally:
        scene.end()


def test_what_is_no_memory_of_crossmem_goes_as_before(scene: Scene) -> None:
    scene.echo()
    before = len(crossmem.exports())
    array = np.arange(6.0)

    scene.requests.put(array)
    name, seen, back = scene.answer()

    assert (name, seen) == ("ndarray", 15.0)
    back[0] = 9
    assert array[0] == 0
    assert len(crossmem.exports()) == before
    assert pickle.loads(pickle.dumps(crossmem.empty(3, "int8"))).base is not array  # noqa: S301


@pytest.mark.parametrize(
    ("access", "readonly", "is_writable"),
    [("rw", True, False), ("rw", "advisory", True), ("ro", False, False)],
)
def test_what_is_kept_from_being_written_stays_so_where_it_is_sent(
    access: Any, readonly: Any, is_writable: bool
) -> None:
    before = held()
    with crossmem.share(crossmem.empty(3, "int8"), access=access) as shared:
        array = crossmem.receive(shared, readonly=readonly)

        found = pickle.loads(ForkingPickler.dumps(array))  # noqa: S301
        unused = ForkingPickler.dumps(array)

    assert found.flags.writeable is is_writable
    assert held() == before + 1
    crossmem.multiprocessing.discard(unused)
    assert held() == before


@pytest.mark.parametrize("dtype", [[], [(f"f{i}", "i1") for i in range(600)], "V0"])
def test_arrays_that_cannot_be_shared_go_as_before(dtype: Any) -> None:
    crossmem.empty(1, "int8")
    array = np.zeros(2, dtype)

    found = pickle.loads(ForkingPickler.dumps(array))  # noqa: S301

    assert found.dtype == array.dtype


def test_ordinary_arrays_go_as_before_at_exit() -> None:
    code = (
        "import atexit, crossmem, numpy\n"
        "crossmem.install()\n"
        "from multiprocessing.reduction import ForkingPickler as Pickler\n"
        "atexit.register(lambda: print(len(Pickler.dumps(numpy.arange(3)))))\n"
        "crossmem.share(crossmem.empty(3, 'int8')).close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=True,
    )

    assert done.stderr == ""
    assert int(done.stdout) > 0


def test_a_batch_that_is_dropped_right_after_put_arrives(scene: Scene) -> None:
    before = held()
    for number in range(8):
        array = crossmem.empty(1000, "int64")
        array[:] = number
        scene.requests.put(array)
        del array
    # The queue's thread has pickled all of it, and the message is all that holds it now.
    until(lambda: held() == before + 8)
    gc.collect()
    crossmem.collect()
    scene.echo()

    sums = [scene.answer()[1] for _ in range(8)]

    assert sums == [1000.0 * number for number in range(8)]
    until(lambda: held() == before)


def test_a_shared_tree_arrives_though_it_was_closed(scene: Scene) -> None:
    before = held()
    with crossmem.share({"a": np.ones(5), "b": np.ones(7)}, copy="allow") as shared:
        number = shared.message.handles[0].allocation
        scene.requests.put(shared)
        until(lambda: held() == before + 1)
    scene.echo()

    def waits() -> bool:
        return any(one.handle.allocation == number for one in crossmem.exports() if one.waiting)

    name, seen, back = scene.answer()

    assert (name, seen) == ("dict", 12.0)
    # What comes back is this process's own memory, and in use here.
    assert waits()
    del back
    until(lambda: not waits())


def test_mappings_and_allocations_arrive_as_mappings(scene: Scene) -> None:
    scene.echo()
    with crossmem.device("emulated:0").allocate(4096) as allocation:
        allocation.write(b"abcd")
        scene.requests.put(allocation)
        assert scene.answer() == ("Mapping", b"abcd", False)
        with crossmem.attach(allocation.export(), readonly="advisory") as mapping:
            scene.requests.put(mapping)
            assert scene.answer() == ("Mapping", b"abcd", True)


def test_a_sender_may_exit_once_the_message_was_received(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # For the sender, which waits that long: first for this process to receive, then for its lease.
    monkeypatch.setenv("CROSSMEM_EXIT_WAIT", f"{1.5 * SLOWNESS}")
    scene = Scene("spawn")  # a forkserver has the variables that it started with
    try:
        process = scene.start(queue_actions.send_and_exit, scene.answers, 500)

        array = scene.answer()
        process.join(_DEADLINE_S)

        assert process.exitcode == 0
        assert array.sum() == 1000
    finally:
        scene.end()


def test_what_was_received_is_sent_on_as_the_handle_that_it_came_with(scene: Scene) -> None:
    scene.start(queue_actions.forward, scene.requests, scene.answers)
    array = crossmem.empty(100, "float64")
    array[:] = 3
    before = len(crossmem.exports())

    scene.requests.put(array)
    back = scene.answer()
    back[:] = 4

    assert array[0] == 4
    assert len(crossmem.exports()) <= before + 1


def test_any_number_of_consumers(scene: Scene) -> None:
    for _ in range(3):
        scene.echo()
    array = crossmem.empty(50, "float32")
    array[:] = 1

    for _ in range(9):
        scene.requests.put(array)

    assert [scene.answer()[1] for _ in range(9)] == [50.0] * 9


def test_a_killed_consumer_leaves_nothing(scene: Scene) -> None:
    ours, theirs = scene.context.Pipe()
    scene.start(queue_actions.hold_forever, scene.requests, theirs)
    array = crossmem.empty(50, "float32")
    array[:] = 5
    number = len(crossmem.exports())
    scene.requests.put(array)
    pid, first = ours.recv()
    del array

    os.kill(pid, signal.SIGKILL)

    assert first == 5.0
    until(lambda: len(crossmem.exports()) <= number)
    assert all(one.pid != pid for export in crossmem.exports() for one in export.leases)


@pytest.mark.parametrize("method", METHODS)
def test_pools_share_their_arguments_and_results(method: str) -> None:
    array = crossmem.empty(4, "float64")
    array[:] = 1
    context = multiprocessing.get_context(method)

    with ProcessPoolExecutor(2, mp_context=context) as executor:
        (done,) = executor.map(queue_actions.double, [array])
    with context.Pool(1) as pool:
        (again,) = pool.map(queue_actions.double, [array])

    assert list(array) == list(done) == list(again) == [4.0] * 4


class Outer:
    class Inner:
        """Has a name with a dot in it."""


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_message_that_nobody_receives_can_be_discarded(protocol: int) -> None:
    array = crossmem.empty(10, "uint8")
    allocation = crossmem.device("emulated:0").allocate(64)
    shared = crossmem.share([array])
    before = held()
    message = ForkingPickler.dumps([array, allocation, shared, "text", Outer.Inner()], protocol)
    assert held() == before + 3

    crossmem.multiprocessing.discard(bytes(message))

    assert held() == before
    allocation.free()
    shared.close()


def test_a_sender_waits_where_messages_hold_too_much(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import crossmem\n"
        "crossmem.install()\n"
        "from multiprocessing.reduction import ForkingPickler\n"
        "array = crossmem.empty(8, 'uint8')\n"
        "for _ in range(3): ForkingPickler.dumps(array)\n"
        "try: ForkingPickler.dumps(array)\n"
        "except crossmem.BusyError as error: print(error)\n"
    )
    done = script(
        program, CROSSMEM_MAX_RESERVATIONS="3", CROSSMEM_TIMEOUT="0.2", CROSSMEM_EXIT_WAIT="0"
    )

    assert done.returncode == 0, done.stderr
    assert "CROSSMEM_MAX_RESERVATIONS" in done.stdout


def test_plain_pickles_are_bytes_of_handles() -> None:
    with crossmem.device("emulated:0").allocate(16) as allocation:
        allocation.write(b"x")
        with pickle.loads(pickle.dumps(allocation)) as mapping:  # noqa: S301 - made here
            assert mapping.read(1) == b"x"
            with pickle.loads(pickle.dumps(mapping)) as again:  # noqa: S301 - made here
                assert again.handle == mapping.handle
        with (
            crossmem.attach(allocation.export(), readonly=True) as mapping,
            pickle.loads(pickle.dumps(mapping)) as again,  # noqa: S301 - made here
        ):
            assert again.readonly
    with crossmem.share([np.ones(2)], copy="allow") as shared:
        found = pickle.loads(pickle.dumps(shared))  # noqa: S301 - made here
        assert crossmem.receive(found)[0].sum() == 2


def test_a_message_that_cannot_be_received_holds_nothing_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise crossmem.OutOfMemoryError("no room to map it")

    with crossmem.device("emulated:0").allocate(64) as allocation:
        array = crossmem.empty(10, "uint8")
        before = held()
        with crossmem.share([array]) as shared:
            messages = [bytes(ForkingPickler.dumps(one)) for one in (array, allocation, shared)]
        assert held() == before + 3
        with monkeypatch.context() as patch:
            patch.setattr("crossmem.multiprocessing.attach_reserved", fail)
            patch.setattr("crossmem.trees.shared.attach_reserved", fail)
            for message in messages:
                with pytest.raises(crossmem.OutOfMemoryError):
                    pickle.loads(message)  # noqa: S301 - made here
        assert held() == before


# Messages that are not complete ------------------------------------------------------------------


class Failing:
    """Cannot be pickled, and says so late."""

    @override
    def __reduce__(self) -> Any:
        raise ZeroDivisionError


def test_a_message_that_cannot_be_pickled_holds_nothing() -> None:
    before = held()
    arrays = [crossmem.empty(8) for _ in range(3)]

    with pytest.raises(ZeroDivisionError):
        ForkingPickler.dumps([*arrays, Failing()])

    assert held() == before


def test_a_message_with_more_than_may_be_held_does_not_end_sending(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import crossmem\n"
        "crossmem.install()\n"
        "from multiprocessing.reduction import ForkingPickler\n"
        "try:\n"
        "    ForkingPickler.dumps([crossmem.empty(8) for _ in range(9)])\n"
        "except crossmem.BusyError:\n"
        "    print(len(bytes(ForkingPickler.dumps(crossmem.empty(8)))) > 0)\n"
    )
    done = script(
        program, CROSSMEM_MAX_RESERVATIONS="8", CROSSMEM_TIMEOUT="0.2", CROSSMEM_EXIT_WAIT="0"
    )

    assert done.stdout == "True\n", done.stderr


class Loud:
    """Runs code when it is unpickled."""

    made = 0

    def __init__(self, array: Any) -> None:
        type(self).made += 1
        self.array, self.size = array, array.shape[0]

    @override
    def __reduce__(self) -> Any:
        return Loud, (self.array,)


def test_discarding_runs_none_of_what_is_sent() -> None:
    before = held()
    arrays = [crossmem.empty(8) for _ in range(3)]
    tree = [Loud(arrays[0]), {"more": {1, 2}, "od": OrderedDict(a=arrays[1])}, Path("/"), arrays[2]]
    message = ForkingPickler.dumps(tree)
    assert held() == before + 3

    crossmem.multiprocessing.discard(message)

    assert held() == before
    assert Loud.made == 1


def test_arrays_in_address_ranges_go_as_before() -> None:
    device = crossmem.device("emulated:0")
    allocation = device.allocate(1 << 16)
    addresses = device.reserve(1 << 17)
    imported = crossmem.import_handle(allocation.export())
    piece = addresses.map(imported, at=0)
    array = piece.as_array((10,), "uint8")
    array[:] = 7
    before = held()

    found = pickle.loads(ForkingPickler.dumps(array))  # noqa: S301 - our own

    assert (list(found), held()) == ([7] * 10, before)
    with pytest.raises(crossmem.UnsupportedError, match="address range"):
        crossmem.share(array)
    with crossmem.share(array, copy="allow") as shared:
        assert list(crossmem.receive(shared)) == [7] * 10
    del array, found
    crossmem.collect()
    piece.unmap()
    imported.close()
    addresses.release()
    allocation.free()


def test_a_library_that_must_not_be_imported_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(crossmem.multiprocessing, "_unregistered", {"cupy"})

    assert pickle.loads(ForkingPickler.dumps([1, 2])) == [1, 2]  # noqa: S301 - our own
