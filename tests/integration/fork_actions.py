# SPDX-License-Identifier: Apache-2.0
"""What peers do for the tests of forks among threads that hold locks."""

import gc
import inspect
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import crossmem
from crossmem.conformance import actions, forks
from crossmem.locks import DebugLock, Rank
from crossmem.sharing.base import process

_WITHIN_S = 15.0
_MOMENT_S = 0.2

TAKEN_BY_A_FORK = frozenset({Rank.FORK, Rank.PROCESS, Rank.LEASES})
"""A fork waits for who holds these, so no child finds them held."""

_OF_THE_CLASS = (classmethod, staticmethod, type)

_objects: dict[str, Any] = {}


def set_up(blob: bytes, tree: bytes) -> list[str]:
    """Make one of everything, and return the names of the objects."""
    device = actions.device()
    allocation = device.allocate(4096)
    allocation.export()
    imported = crossmem.import_handle(blob)
    addresses = device.reserve(1 << 20)
    pool = device.pool(4096, 4)
    block = pool.allocate()
    shared = crossmem.share({"a": crossmem.empty(8)})
    received = crossmem.Shared.from_bytes(tree)
    # Both have looked at the version, so they have all that they will ever have.
    assert (shared.version, received.version) == (0, 0)
    _objects.update(
        device=device,
        allocation=allocation,
        imported=imported,
        mapping=crossmem.attach(blob),
        mapped=imported.map(),
        addresses=addresses,
        piece=addresses.map(allocation, at=0),
        shared=shared,
        received=received,
        handle=allocation.export(),
        pool=pool,
        block=block,
        own_block=crossmem.attach(block.export().to_bytes()),
    )
    return list(_objects)


def members() -> dict[str, list[str]]:
    """Return the names of all that is public of each object, and of the protocols it has."""
    protocols = ["__enter__", "__exit__", "__dlpack__", "__array_interface__", "__dlpack_device__"]
    return {
        name: [
            member
            for member in (*dir(type(one)), *protocols)
            if hasattr(type(one), member)
            and (not member.startswith("_") or member in protocols)
            and not isinstance(inspect.getattr_static(type(one), member), _OF_THE_CLASS)
        ]
        for name, one in _objects.items()
    }


_ARGUMENTS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "__exit__": lambda _: (None, None, None),
    "adopt": lambda _: (4096, 1),
    "allocate": lambda _: (1,),
    "copy_from": lambda one: (one,),
    "done": lambda _: (1,),
    "for_mechanism": lambda one: (one.mechanism,),
    "pool": lambda _: (4096, 1),
    "queue": lambda _: (1, 4096),
    "reserve": lambda _: (1,),
    "slice": lambda _: (0, 1),
    "update": lambda _: ({},),
    "wait": lambda one: () if isinstance(one, crossmem.Mapping) else (0,),
    "wait_for_readers": lambda _: (1,),
    "withdraw": lambda _: (_objects["handle"],),
    "write": lambda _: (b"x",),
}
_OPTIONS: dict[str, dict[str, Any]] = {
    "__dlpack__": {"max_version": (1, 0)},
    "adopt": {"owner": "somebody"},
}


def _try(name: str, member: str) -> str:
    """Use a member of an object; return the name of the error's class."""
    one = _objects[name]
    try:
        value = getattr(one, member)
        if inspect.isroutine(value):
            if name == "addresses" and member == "map":
                value(_objects["allocation"], at=1 << 18)
            else:
                arguments = _ARGUMENTS.get(member, lambda _: ())(one)
                value(*arguments, **_OPTIONS.get(member, {}))
    except Exception as error:  # noqa: BLE001 - the test compares its class
        return type(error).__name__
    return "no error"


def _try_all(names: dict[str, list[str]]) -> dict[str, str]:
    found = {f"{name}.{one}": _try(name, one) for name, some in names.items() for one in some}
    for name, one in _objects.items():
        found[f"repr({name})"] = "no error" if repr(one) else "empty"
        try:
            pickle.dumps(one)
        except crossmem.CrossmemError as error:
            found[f"pickled {name}"] = type(error).__name__
        else:
            found[f"pickled {name}"] = "no error"
    # At last: what is left of the objects gives nothing back, and waits for nobody.
    _objects.clear()
    gc.collect()
    with crossmem.device("emulated:0").allocate(1) as own:
        found["own memory"] = str(own.view().nbytes)
    return found


def ranks() -> list[str]:
    """Return the ranks of which this process has locks, the highest last."""
    return [one.name for one in sorted({lock.rank for lock in _locks()})]


def _locks() -> set[DebugLock]:
    # The first one is as old as the module, and the peer's parent has frozen such objects.
    return {one for one in (process._lock, *gc.get_objects()) if isinstance(one, DebugLock)}


def outcomes_under(rank: str | None) -> dict[str, str]:
    """Fork while other threads hold every lock of a rank, or of all; say what the child gets.

    A lock for which a fork waits is let go after a moment.
    """
    found = [one for one in _locks() if rank in {None, one.rank.name}]
    kept = [one for one in found if one.rank not in TAKEN_BY_A_FORK]
    waited_for = [one for one in found if one.rank in TAKEN_BY_A_FORK]
    names = members()
    with ExitStack() as held:
        held.enter_context(_held_by_threads(kept, None))
        held.enter_context(_held_by_threads(waited_for, _MOMENT_S))
        answers: dict[str, str] = forks.in_child(_try_all, names, within=_WITHIN_S)
    return answers


@contextmanager
def _held_by_threads(locks: list[DebugLock], for_s: float | None) -> Iterator[None]:
    done = threading.Event()
    ready = threading.Barrier(len(locks) + 1)

    def hold(lock: DebugLock) -> None:
        with lock:
            ready.wait(30)
            if for_s is None:
                done.wait(60)
            else:
                time.sleep(for_s)

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
