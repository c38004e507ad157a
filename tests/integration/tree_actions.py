# SPDX-License-Identifier: Apache-2.0
"""What peers do for the tests of shared trees. NumPy is all that they need."""

import gc
import hashlib
import os
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np

import crossmem

_kept: dict[str, Any] = {}


def digest_of(tree: Any) -> str:
    """Return a digest of all arrays and of how they lie in a tree."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, np.ndarray):
            found.update(repr((value.shape, value.dtype.str, value.dtype.names)).encode())
            found.update(value.tobytes())
        elif isinstance(value, dict):
            for key, one in value.items():
                found.update(repr(key).encode())
                add(one)
        elif isinstance(value, list | tuple):
            found.update(type(value).__name__.encode())
            for one in value:
                add(one)
        else:
            found.update(repr(value).encode())

    add(tree)
    return found.hexdigest()


def make(seed: int) -> dict[str, Any]:
    """Return a tree in ordinary memory, the same in every process."""
    random = np.random.default_rng(seed)
    base = random.standard_normal((64, 64)).astype("float32")
    return {
        "base": base,
        "views": [base[::2, ::-1], base.T, base[3]],
        "numbers": random.integers(0, 255, 1000, dtype="uint8"),
        "step": seed,
    }


# The process that shares -------------------------------------------------------------------------


def share(name: str, seed: int, **options: Any) -> bytes:
    """Share a copy of :func:`make`'s tree, and keep nothing but what was returned."""
    _kept[name] = crossmem.share(make(seed), copy="allow", **options)
    return bytes(_kept[name].to_bytes())


def share_born(name: str, nbytes: int, **options: Any) -> bytes:
    """Share bytes that were born in crossmem; the array is kept by the shared tree alone."""
    array = crossmem.empty(nbytes, "uint8")
    array[:] = 7
    _kept[name] = crossmem.share(array, **options)
    return bytes(_kept[name].to_bytes())


def share_many(count: int) -> list[bytes]:
    """Share as many trees, and keep them."""
    _kept["many"] = [crossmem.share({"number": i}) for i in range(count)]
    return [bytes(one.to_bytes()) for one in _kept["many"]]


def publish_each(name: str) -> list[int]:
    """Publish the tree of that number as often, and once."""
    return [one.publish() for i, one in enumerate(_kept[name]) for _ in range(i % 3)]


def publish(name: str, value: int | None = None) -> int:
    """Overwrite a tree that was born in crossmem, and publish it."""
    shared = _kept[name]
    if value is not None:
        crossmem.receive(shared)[:] = value
    return int(shared.publish())


def train(name: str, seed: int, value: int, *, in_place: bool) -> int:
    """Overwrite a tree that :func:`share` copied: in shared memory itself, or by an update."""
    shared = _kept[name]
    state = shared.value if in_place else make(seed)
    for key in ("base", "numbers"):
        state[key][...] = value
    return int(shared.publish() if in_place else shared.update(state))


def take_value(name: str, new_name: str) -> None:
    """Keep the arrays of a tree that this process shares."""
    _kept[new_name] = _kept[name].value


def share_again(name: str, new_name: str, **options: Any) -> bytes:
    """Share what was received, or a part of it."""
    _kept[new_name] = crossmem.share(_kept[name], **options)
    return bytes(_kept[new_name].to_bytes())


def put(name: str) -> bytes:
    """Make a message of what was received, as queues do."""
    crossmem.install()
    return bytes(ForkingPickler.dumps(_kept[name]))


# The process that receives -----------------------------------------------------------------------


def receive(name: str, blob: bytes, **options: Any) -> str:
    """Receive a tree, and keep it; return what is in it."""
    _kept[name] = crossmem.receive(blob, **options)
    return digest_of(_kept[name])


def get(name: str, message: bytes) -> str:
    """Receive a message, and keep it; return what is in it."""
    _kept[name] = ForkingPickler.loads(message)
    return digest_of(_kept[name])


def digest(name: str) -> str:
    """Return what is in a tree now."""
    return digest_of(_kept[name])


def open_(name: str, blob: bytes) -> None:
    """Read a tree's description."""
    _kept[name] = crossmem.Shared.from_bytes(blob)


def wait(name: str, after: int, timeout: float) -> int:
    """Wait for a newer version."""
    return int(_kept[name].wait(after, timeout=timeout))


def version(name: str) -> int:
    """Return the version that was published last."""
    return int(_kept[name].version)


def version_of(name: str, blob: bytes) -> int:
    """Return the version of a tree that was not opened before."""
    return int(crossmem.Shared.from_bytes(blob).version)


def versions_of(name: str, blobs: list[bytes]) -> list[int]:
    """Open many trees, keep them, and return their versions."""
    _kept[name] = [crossmem.Shared.from_bytes(one) for one in blobs]
    return versions_again(name)


def versions_again(name: str) -> list[int]:
    """Return the versions of many trees."""
    return [one.version for one in _kept[name]]


def follow(name: str, array: str, versions: int) -> list[tuple[int, int, int]]:
    """Return each version that was seen, and the bytes that were seen then."""
    seen = []
    known = 0
    while known < versions:
        known = _kept[name].wait(known, timeout=20)
        found = _kept[array]
        seen.append((known, int(found.min()), int(found.max())))
    return seen


def bounds(name: str) -> list[tuple[int, int]]:
    """Return the smallest and the largest element of each array of a tree of :func:`make`."""
    tree = _kept[name]
    arrays = [tree["base"], *tree["views"], tree["numbers"]]
    return [(int(one.min()), int(one.max())) for one in arrays]


def is_writeable(name: str) -> bool:
    """Whether NumPy takes an array for writable."""
    return bool(_kept[name].flags.writeable)


def write(name: str, value: int) -> None:
    """Write through an array."""
    _kept[name][0] = value


def write_all_the_same(name: str, value: int) -> None:
    """Write to an array's address, which NumPy cannot refuse."""
    import ctypes

    ctypes.memset(_kept[name].ctypes.data, value, 1)


def look_in_a_child(name: str, blob: bytes) -> list[str]:
    """Fork, and say what the child could do with a tree of its parent."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        words = []
        for act in (
            lambda: _kept[name].version,
            _kept[name].publish,
            lambda: _kept[name].wait(0, timeout=0.1),
            lambda: crossmem.receive(_kept[name]),
            _kept[name].close,
            lambda: digest_of(crossmem.receive(blob)),
        ):
            try:
                words.append(str(act()))
            except crossmem.CrossmemError as error:
                words.append(type(error).__name__)
        os.write(writer, " ".join(words).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as answer:
        return answer.read().decode().split()


# Both --------------------------------------------------------------------------------------------


def close(name: str) -> None:
    """Close a shared tree, but keep the object."""
    _kept[name].close()


def drop(*names: str) -> None:
    """Forget what was kept; nobody waits for the garbage collector."""
    for name in names:
        del _kept[name]


def collect_garbage() -> None:
    """Run the garbage collector, then crossmem's own."""
    gc.collect()
    crossmem.collect()


def mapped() -> int:
    """Return how many ranges of shared memory this process has mapped, besides those of leases."""
    crossmem.collect()
    maps = Path("/proc/self/maps").read_text("utf-8")
    return maps.count("memfd:") - maps.count("memfd:crossmem-")


def lessees() -> list[list[int]]:
    """Return who holds leases on each export of this process."""
    return [[lease.pid for lease in one.leases] for one in crossmem.exports()]


def proportional_nbytes() -> int:
    """Return this process's part of the shared memory that it has mapped, in bytes."""
    total, is_shared = 0, False
    for line in Path("/proc/self/smaps").read_text("utf-8").splitlines():
        if "-" in line.split()[0]:
            is_shared = "memfd:" in line
        elif is_shared and line.startswith("Pss:"):
            total += int(line.split()[1]) * 1024
    return total
