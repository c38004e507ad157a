# SPDX-License-Identifier: Apache-2.0
"""What a driver of Ray does for the tests, with two nodes on this machine."""

import asyncio
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
import ray.cloudpickle
from ray._common.utils import get_default_ray_temp_dir
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import crossmem
from crossmem.ray import reservations

if TYPE_CHECKING:
    from tests.frameworks import ray_observer
else:
    import ray_observer

DEADLINE_S = 30.0
STORE_NBYTES = 80 * 2**20
COUNT = 1000
NBYTES = 8 * COUNT
MANY = 24 * 2**20
"""So many take a while, and more than an object store has room for."""

Seen = list[tuple[str, int]]
HANDLE = ("received", NBYTES)
COPY = ("received-copy", NBYTES)

_cluster: list[Cluster] = []
_nodes: dict[str, str] = {}


# The cluster ------------------------------------------------------------------------------


def start(folder: str) -> None:
    """Start two nodes and connect to the first."""
    # The cluster's class writes its address there, and expects the folder.
    Path(get_default_ray_temp_dir()).mkdir(parents=True, exist_ok=True)
    small = {"num_cpus": 1, "object_store_memory": STORE_NBYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "temp_dir": folder})
    _cluster.append(cluster)
    cluster.add_node(**small)
    ray.init(
        address=cluster.address,
        logging_level="ERROR",
        log_to_driver=False,
        runtime_env={
            "worker_process_setup_hook": crossmem.install,
            "env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        },
    )
    crossmem.install()
    here = ray.get_runtime_context().get_node_id()
    (there,) = {one["NodeID"] for one in ray.nodes()} - {here}
    _nodes.update(here=here, there=there)


def stop() -> None:
    """Stop them."""
    ray.shutdown()
    for cluster in _cluster:
        cluster.shutdown()


# What actors do ---------------------------------------------------------------------------


def filled(value: float, count: int = COUNT) -> Any:
    array = crossmem.empty(count, "float64")
    array[:] = value
    return array


def leases() -> list[int]:
    """Return how many leases each array of this process has. Versions of trees are no arrays."""
    crossmem.collect()
    return [len(one.leases) for one in crossmem.exports() if one.nbytes != 4096]


def owner_of(array: Any) -> int:
    """Return which process allocated an array's memory."""
    with crossmem.share(array) as shared:
        return shared.message.handles[0].owner.pid


class Actor:
    """Does what it is told; one of each kind below."""

    def __init__(self) -> None:
        self.kept: Any = None

    def pid(self) -> int:
        return os.getpid()

    def make(self, value: float) -> Any:
        return filled(value)

    def put(self, value: float, count: int = COUNT) -> list[Any]:
        """Put an array, forget it, and return the reference."""
        return [ray.put(filled(value, count))]

    def put_tree(self) -> list[Any]:
        """Put a tree and keep it: versions end with what publishes them."""
        array = filled(1)
        self.kept = crossmem.share({"all": array, "back": array[::-2], "name": "tree"})
        return [ray.put(self.kept)]

    def put_own(self, value: float) -> list[Any]:
        """Put an array in memory that only free() gives back, and keep all of it."""
        allocation = crossmem.device("emulated:0").allocate(NBYTES)
        array = allocation.as_array(COUNT, "float64")
        array[:] = value
        self.kept = allocation
        return [ray.put(array)]

    def free(self) -> None:
        self.kept.free()

    def forward(self, array: Any) -> list[Any]:
        """Put what was received, and forget it."""
        return [ray.put(array)]

    def take(self, array: Any) -> tuple[float, Seen]:
        """Return the first element and what was received, and write the first element."""
        first = float(array[0])
        array[0] = -first
        return first, self.seen()

    def take_late(self, array: Any) -> float:
        time.sleep(1)
        return float(array[0])

    def get(self, refs: list[Any]) -> tuple[float, Seen]:
        return float(ray.get(refs[0])[0]), self.seen()

    def get_in_thread(self, refs: list[Any]) -> float:
        return float(refs[0].future().result(timeout=DEADLINE_S)[0])

    def keep(self, array: Any) -> int:
        self.kept = array
        return owner_of(array)

    def drop(self) -> None:
        self.kept = None

    def seen(self) -> Seen:
        """Return what was received since this was asked for the last time."""
        seen = list(ray_observer.received)
        ray_observer.received.clear()
        return seen

    def state(self) -> tuple[list[int], int]:
        """Return the leases of the arrays that are exported, and how many messages hold some."""
        return leases(), len(reservations._reserved)

    def answer(self, consume: Any, produce: Any) -> str:
        """Open two queues, and answer an item of the first one by the second."""
        with (
            crossmem.open_queue(consume) as requests,
            crossmem.open_queue(produce) as answers,
            requests.get(timeout=DEADLINE_S) as found,
        ):
            made = answers.allocate()
            made.write(found.read(found.data_length).upper())
            made.data_length = found.data_length
            answers.put(made)
            return found.user_data.decode()


class Async(Actor):
    async def take_now(self, array: Any) -> float:
        return float(array[0])

    async def wait(self, refs: list[Any]) -> float:
        return float((await refs[0])[0])

    async def wait_in_thread(self, refs: list[Any]) -> float:
        return float((await asyncio.to_thread(ray.get, refs[0]))[0])


@contextmanager
def actor(where: str, kind: type = Actor, **options: Any) -> Iterator[Any]:
    """Lend an actor on one of the nodes."""
    place = NodeAffinitySchedulingStrategy(_nodes[where], soft=False)
    made = ray.remote(kind).options(num_cpus=0, scheduling_strategy=place, **options).remote()
    try:
        yield made
    finally:
        ray.kill(made)


def wait_until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def is_given_back(sender: Any) -> bool:
    """Whether a sender has no memory any more, and holds nothing for messages."""
    return wait_until(lambda: ray.get(sender.state.remote()) == ([], 0))


# The scenarios ----------------------------------------------------------------------------


def send(sender: str, receiver: str) -> dict[str, Any]:
    """Send as result, argument, nested reference; say what was received, and whose memory it is."""
    with actor(sender) as one, actor(receiver) as other:
        result, after_result = ray.get(other.take.remote(one.make.remote(2.0)))
        argument = filled(3.0)
        first, after_argument = ray.get(other.take.remote(argument))
        nested, after_nested = ray.get(other.get.remote(ray.get(one.put.remote(4.0))))
        return {
            "values": (result, first, nested),
            "events": [*after_result, *after_argument, *after_nested],
            "written": float(argument[0]),
        }


def send_twice() -> dict[str, Any]:
    """Receive one object again and again, long after its sender forgot the array."""
    with actor("here") as one, actor("here") as two, actor("there") as three:
        refs = ray.get(one.put.remote(5.0))
        held = ray.get(one.state.remote())
        values = [ray.get(each.get.remote(refs))[0] for each in (two, three, two, three)]
        del refs
        return {"held": held, "values": values, "is given back": is_given_back(one)}


def send_and_forget() -> dict[str, Any]:
    """Forget arrays while calls with them wait behind others, and results that nobody got yet."""
    with actor("here") as one, actor("here") as two:
        refs = [two.take_late.remote(filled(value)) for value in (6.0, 7.0)]
        result = one.make.remote(8.0)
        ray.wait([result])
        held = ray.get(one.state.remote())
        values = [float(ray.get(result)[0]), *ray.get(refs)]
        del result, refs
        return {
            "held": held,
            "values": values,
            "is given back": is_given_back(one),
            "mine": wait_until(lambda: leases() == [] and not reservations._reserved),
        }


def forward() -> dict[str, Any]:
    """Send on what was received; the first receiver forgets it."""
    with actor("here") as one, actor("here") as two, actor("here") as three:
        refs = ray.get(two.forward.remote(one.make.remote(9.0)))
        owner = ray.get(three.keep.remote(refs[0]))
        middle = ray.get(two.state.remote())
        ray.kill(two)
        del refs
        wait_until(lambda: ray.get(one.state.remote())[0] == [1])
        left = ray.get(one.state.remote())
        ray.get(three.drop.remote())
        return {
            "is the first one's": owner == ray.get(one.pid.remote()),
            "middle": middle,
            "left": left,
            "is given back": is_given_back(one),
        }


def send_trees(sender: str) -> dict[str, Any]:
    """Receive a shared tree from a node, here."""
    with actor(sender) as one:
        (ref,) = ray.get(one.put_tree.remote())
        ray_observer.received.clear()
        shared = ray.get(ref)
        tree = crossmem.receive(shared)
        tree["all"][-1] = 11
        try:
            version: Any = shared.version
        except crossmem.CrossmemError as error:
            version = str(error)
        answer = {
            "name": tree["name"],
            "overlaps": bool(tree["back"][0] == 11 and tree["back"].strides == (-16,)),
            "version": version,
            "events": list(ray_observer.received),
        }
        del tree, shared, ref
        ray.get(one.drop.remote())
        return {**answer, "is given back": is_given_back(one)}


def send_others() -> dict[str, Any]:
    """Send what Ray sends without crossmem."""
    plain = np.arange(200_000.0)
    objects = np.array([1, "two", None], dtype=object)
    shared = filled(12.0)
    ray_observer.received.clear()
    got = ray.get(ray.put({"plain": plain, "objects": objects, "empty": shared[:0]}))
    at_home = ray.cloudpickle.loads(ray.cloudpickle.dumps({"array": shared}))["array"]
    shared[0] = 13
    buffers: list[Any] = []
    pickle.dumps(plain, protocol=5, buffer_callback=buffers.append)
    return {
        "is equal": bool((got["plain"] == plain).all() and (got["objects"] == objects).all()),
        # An array that was pickled in band could be written.
        "is Ray's own": not got["plain"].flags.writeable,
        "empty": got["empty"].shape,
        "at home": float(at_home[0]),
        "events": list(ray_observer.received),
    }


def send_read_only() -> dict[str, bool]:
    """Send what was received for reading, or shared for that; return which can be written."""
    array = filled(21)
    answer = {}
    ways: list[tuple[Any, Any]] = [("ro", False), ("rw", True), ("rw", "advisory"), ("rw", False)]
    for access, readonly in ways:
        with crossmem.share(array, access=access) as shared:
            received = crossmem.receive(shared, readonly=readonly)
            got = ray.get(ray.put(received))
        answer[f"{access} {readonly}"] = got.flags.writeable
    return answer


def send_tensors(receiver: str) -> dict[str, Any]:
    """Send tensors of PyTorch."""
    import torch

    tensor = crossmem.empty(COUNT, torch.float64)
    tensor.fill_(14.0)
    learning = tensor[10:].requires_grad_()
    with actor(receiver) as one:
        first, seen = ray.get(one.take.remote(tensor))
    got = ray.get(ray.put([learning, torch.ones(3)]))
    with torch.no_grad():
        got[0][0] = 15
    return {
        "first": first,
        "events": seen,
        "written": float(tensor[0]),
        "shared": float(tensor[10]),
        "learns": got[0].requires_grad,
        "other": got[1].tolist(),
    }


def send_queues(*, as_bytes: bool) -> tuple[str, bytes]:
    """Send the handles of queues to an actor, which answers what was put."""
    device = crossmem.device("host")
    with (
        device.queue(2, 256) as requests,
        device.queue(2, 256) as answers,
        actor("here") as one,
    ):
        handles = requests.export(role="consume"), answers.export(role="produce")
        sent = [each.to_bytes() for each in handles] if as_bytes else handles
        result = one.answer.remote(*sent)
        buffer = requests.allocate()
        buffer.write(b"some bytes")
        buffer.data_length, buffer.user_data = 10, b"number 1"
        requests.put(buffer)
        with answers.get(timeout=DEADLINE_S) as found:
            data = found.read(found.data_length)
        return ray.get(result), data


def wait_in_ways(sender: str) -> dict[str, Any]:
    """Receive in an actor whose methods are coroutines, and on threads."""
    with actor(sender) as one, actor("here", Async) as two:
        with actor("here", max_concurrency=2) as three:
            refs = ray.get(one.put.remote(16.0))
            threads = ray.get([three.get.remote(refs), three.get.remote(refs)])
        calls = {
            "argument": two.take_now.remote(refs[0]),
            "await": two.wait.remote(refs),
            "in a thread": two.wait_in_thread.remote(refs),
            "future": two.get_in_thread.remote(refs),
        }
        answer: dict[str, Any] = {"threads": [value for value, _ in threads]}
        for name, call in calls.items():
            try:
                answer[name] = ray.get(call)
            except ray.exceptions.RayError as error:
                answer[name] = str(error)
        return answer


def free_early(receiver: str) -> str:
    """Free memory that a message speaks of; return what the receiver is told."""
    with actor("here") as one, actor(receiver) as two:
        refs = ray.get(one.put_own.remote(17.0))
        ray.get(one.free.remote())
        try:
            ray.get(two.get.remote(refs))
        except ray.exceptions.RayError as error:
            return str(error)
    return "received"


def kill_sender(receiver: str) -> str:
    """Kill the process that has the memory; return what the receiver is told."""
    with actor("here") as one, actor(receiver) as two:
        ref = one.make.remote(18.0)
        ray.wait([ref])
        pid = ray.get(one.pid.remote())
        ray.kill(one)
        wait_until(lambda: not Path(f"/proc/{pid}").exists())
        try:
            ray.get(two.take.remote(ref))
        except ray.exceptions.RayError as error:
            return str(error)
    return "received"


def kill_receivers() -> dict[str, Any]:
    """Kill processes that have received; one of them while a call with the array runs."""
    with actor("here") as one, actor("here") as two, actor("here") as three:
        pids = ray.get([two.pid.remote(), three.pid.remote()])
        array = one.make.remote(19.0)
        ray.get([two.keep.remote(array), three.keep.remote(array)])
        before = ray.get(one.state.remote())
        busy = three.take_late.remote(array)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        del array, busy
        return {"before": before, "is given back": is_given_back(one)}


def kill_while_copying(victim: str) -> dict[str, Any]:
    """Kill who reads the memory, or who receives, as soon as bytes are on their way."""
    with actor("there") as one, actor("here") as two:
        pid = ray.get(two.pid.remote())
        refs = ray.get(one.put.remote(20.0, MANY))
        call = two.get.remote(refs)
        readers: list[int] = []

        def is_read() -> bool:
            readers.extend(tasks("read_out"))
            return bool(readers)

        wait_until(is_read)
        os.kill(pid if victim == "receiver" else readers[0], signal.SIGKILL)
        try:
            got: Any = ray.get(call)[0]
        except ray.exceptions.ActorDiedError:
            got = "died"
        del refs, call
        return {"got": got, "is given back": is_given_back(one)}


def tasks(name: str) -> list[int]:
    """Return processes of this cluster that run a task of Ray's; it names them so."""
    mark = f"CROSSMEM_RUN_DIR={os.environ['CROSSMEM_RUN_DIR']}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_task = (folder / "cmdline").read_bytes().startswith(f"ray::{name}".encode())
            if is_task and mark in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found
