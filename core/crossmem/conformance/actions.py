# SPDX-License-Identifier: Apache-2.0
"""The actions of peers: functions that a test lets a peer call.

Arguments and results are pickled. Objects such as allocations stay in the peer, under names that
the test chooses. The test's own process can call these functions, too.
"""

import ctypes
import gc
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import crossmem
from crossmem.conformance import blocks, resources
from crossmem.conformance.ends import ends
from crossmem.driver import Driver, TracingDriver, witness_of
from crossmem.sharing.base.process import current
from crossmem.sharing.importer import messages
from crossmem.sharing.importer.attach import attach_reserved as attach_message
from crossmem.sharing.timelines.memory import HOST, Pages

__all__ = [
    "allocate",
    "attach",
    "attach_many",
    "attach_reserved",
    "attribute",
    "begin",
    "busy",
    "call",
    "calls",
    "close",
    "collect",
    "device",
    "drop",
    "export",
    "exports",
    "free",
    "import_",
    "in_threads",
    "keep_tracer",
    "live",
    "map_",
    "objects",
    "offer",
    "pid",
    "place",
    "place_alone",
    "poke",
    "read",
    "reserve",
    "reset",
    "send",
    "state",
    "tracer",
    "unmap",
    "use_device",
    "use_environment",
    "vendor_violations",
    "violations",
    "write",
]

objects: dict[str, Any] = {}
"""The peer's named objects, such as allocations, imports, mappings and views."""

_spec = "host"
_runtime: str | None = None
_mechanism: str | None = None


def begin(
    spec: str,
    runtime: str | None,
    mechanism: str | None,
    tracing: bool,  # noqa: FBT001
    on_blocks: bool = False,  # noqa: FBT001, FBT002
) -> None:
    """Set the device under test.

    With ``tracing``, trace all drivers. With ``on_blocks``, replace allocations by blocks of pools.
    """
    global _spec, _runtime, _mechanism
    _spec, _runtime, _mechanism = spec, runtime, mechanism
    if tracing:
        current().registry.adapt(blocks.BlockTracer if on_blocks else TracingDriver)
    if on_blocks:
        blocks.use()


def use_device(spec: str) -> None:
    """Make another device the device under test."""
    global _spec  # noqa: PLW0603 - a peer has one device
    _spec = spec


def device(spec: str | None = None) -> crossmem.Device:
    """Return the device under test, or another device with the same runtime and mechanism."""
    return crossmem.device(spec or _spec, runtime=_runtime, mechanism=_mechanism)


def tracer() -> TracingDriver:
    """Return the tracing driver of the device under test."""
    driver: Driver = device().driver
    assert isinstance(driver, TracingDriver)
    return driver


# Exporting --------------------------------------------------------------------------------


def allocate(name: str, nbytes: int, *, spec: str | None = None, **options: Any) -> tuple[int, int]:
    """Allocate memory with ``options``, and return the address and capacity of the memory."""
    allocation = objects[name] = blocks.allocate(device(spec), nbytes, **options)
    return allocation.ptr, allocation.capacity


def number_from(first: int) -> None:
    """Make ``first`` the number of the next allocation of this process."""
    current().numbers = itertools.count(first)


def export(name: str, **options: Any) -> bytes:
    """Export an allocation and return the handle's bytes."""
    blob: bytes = objects[name].export(**options).to_bytes()
    return blob


def offer(
    name: str, nbytes: int, data: bytes = b"", *, spec: str | None = None, **options: Any
) -> bytes:
    """Allocate and export memory with ``data`` at its start; return the handle's bytes."""
    shown = {one: options[one] for one in ("allow", "access") if one in options}
    allocate(name, nbytes, spec=spec, **shown)
    if data:
        write(name, data)
    return export(name, **options)


def free(name: str, **options: Any) -> None:
    """Free an allocation."""
    objects[name].free(**options)


def exports() -> list[crossmem.ExportInfo]:
    """Return the exports of this process. Skip timelines' pages; see ``_pages``."""
    pages = _pages()
    return [one for one in crossmem.exports() if one.handle not in pages]


def _pages() -> list[crossmem.ShareableHandle]:
    """Return the handles of pages of host memory that have room for further timelines."""
    return [page.handle for page in current().part(Pages)._open.values()]


def collect() -> int:
    """Call :func:`crossmem.collect` and return its result."""
    return crossmem.collect()


# Importing --------------------------------------------------------------------------------


def _placed(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of an import, with a ``Device`` in place of the device's name."""
    if _runtime is not None:
        # A handle names no runtime. An import uses the runtime in which this process has opened the
        # device, so the device is opened in the runtime under test first.
        with suppress(crossmem.DeviceNotFoundError):
            device()
    if isinstance(options.get("device"), str):
        options["device"] = device(options["device"])
    return options


def import_(name: str, handle: Any, **options: Any) -> None:
    """Import a handle."""
    objects[name] = crossmem.import_handle(handle, **_placed(options))


def map_(name: str, imported: str) -> int:
    """Map an import and return the address."""
    mapping = objects[name] = objects[imported].map()
    address: int = mapping.ptr
    return address


def attach(name: str, handle: Any, **options: Any) -> int:
    """Attach a handle and return the address."""
    mapping = objects[name] = crossmem.attach(handle, **_placed(options))
    return mapping.ptr


def attach_many(names: Sequence[str], handles: Iterable[Any], **options: Any) -> None:
    """Attach several handles with one call, and store the mappings under names."""
    mappings = crossmem.attach_many(handles, **_placed(options))
    objects.update(zip(names, mappings, strict=True))


def send(*names: str) -> list[tuple[bytes, int]]:
    """Reserve the memory of allocations and mappings; return handles and reservation numbers."""
    memories = [objects[name] for name in names]
    handles = [
        one.handle if isinstance(one, crossmem.Mapping) else one.export() for one in memories
    ]
    numbers = messages.reserve(handles)
    return [(handle.to_bytes(), number) for handle, number in zip(handles, numbers, strict=True)]


def attach_reserved(
    names: Sequence[str], message: Iterable[tuple[Any, int]], **options: Any
) -> None:
    """Attach the handles that :func:`send` returned, and store the mappings under names."""
    mappings = attach_message(message, **_placed(options))
    objects.update(zip(names, mappings, strict=True))


def unmap(*names: str) -> None:
    """Unmap mappings."""
    for name in names:
        objects[name].unmap()


def close(*names: str) -> None:
    """Close imports."""
    for name in names:
        objects[name].close()


# Address ranges ---------------------------------------------------------------------------


def reserve(name: str, nbytes: int) -> int:
    """Reserve addresses and return the first."""
    addresses = objects[name] = device().reserve(nbytes)
    return addresses.ptr


def place(name: str, addresses: str, memory: str, *, at: int) -> int:
    """Map an allocation or import in an address range and return the address."""
    piece = objects[name] = objects[addresses].map(objects[memory], at=at)
    address: int = piece.ptr
    return address


def place_alone(name: str, addresses: str, memory: str) -> int:
    """Reserve addresses for an allocation or import, map it there, and return the address."""
    reserve(addresses, objects[memory].nbytes)
    return place(name, addresses, memory, at=0)


# Bytes ------------------------------------------------------------------------------------


def read(name: str, nbytes: int | None = None, *, offset: int = 0) -> bytes:
    """Return bytes of a named object."""
    data: bytes = objects[name].read(nbytes, offset=offset)
    return data


def write(name: str, data: bytes, *, offset: int = 0) -> None:
    """Write bytes into a named object."""
    objects[name].write(data, offset=offset)


def poke(address: int, value: int) -> None:
    """Write one byte at an address, without any check by crossmem."""
    ctypes.memset(address, value, 1)


# Any object -------------------------------------------------------------------------------


def attribute(name: str, attribute_name: str) -> Any:
    """Return an attribute of a named object."""
    return getattr(objects[name], attribute_name)


def call(name: str, method: str, *args: Any, keep: str | None = None, **options: Any) -> Any:
    """Call a method of a named object. Return the result or store it under the name ``keep``."""
    result = getattr(objects[name], method)(*args, **options)
    if keep is None:
        return result
    objects[keep] = result
    return None


def drop(*names: str) -> None:
    """Drop objects without closing them, and collect garbage."""
    for name in names:
        del objects[name]
    gc.collect()


def in_threads(count: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Call a function in several threads at once; return each thread's result or exception.

    The first argument of each call is the number of its thread.
    """
    barrier = threading.Barrier(count)
    results: list[Any] = [None] * count

    def run(number: int) -> None:
        barrier.wait(30)
        try:
            results[number] = function(number, *args)
        except Exception as error:  # noqa: BLE001 - the caller checks the error
            results[number] = error

    workers = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return results


def busy(seconds: float) -> None:
    """Keep the process busy with pure Python for some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


# The process ------------------------------------------------------------------------------


def pid() -> int:
    """Return the process id as the process itself sees it."""
    return os.getpid()


def calls() -> dict[str, int]:
    """Return the number of calls of each driver method so far."""
    return dict(tracer().calls)


def keep_tracer(name: str) -> None:
    """Store the tracing driver, so that a test can read its counts without a call of crossmem."""
    objects[name] = tracer()


def live() -> dict[str, int]:
    """Count open blocks, exports, imports and mappings. Skip timelines' pages; see ``_pages``."""
    found = tracer().live
    if device().backend == HOST:
        pages = len(_pages())
        found |= {"blocks": found["blocks"] - pages, "exports": found["exports"] - pages}
    return found


def violations() -> list[str]:
    """Return a text for each breach of the driver contract in this process."""
    return list(tracer().violations)


def vendor_violations() -> list[str] | None:
    """Return all processes' breaches of the vendor's rules, or None if nothing records them."""
    witness = witness_of(tracer().inner)
    return None if witness is None else witness.violations()


def use_environment(name: str, value: str | None) -> None:
    """Set or remove an environment variable."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def reset() -> dict[str, Any]:
    """Release all resources of the named objects, and return the result of :func:`state`."""
    for one in objects.values():
        if isinstance(one, memoryview):
            one.release()
    for kind, method in ends:
        for one in objects.values():
            if isinstance(one, kind) and not getattr(one, "closed", False):
                getattr(one, method)()
    objects.clear()
    gc.collect()
    return state()


def state(ignored: frozenset[int] = frozenset()) -> dict[str, Any]:
    """Return the resources of this process. The kit compares them before and after a test."""
    blocks.close_pools()
    crossmem.collect()
    resources.collect_of_vendor(device())
    return {
        "live": live(),
        "violations": violations(),
        "descriptors": resources.descriptors(ignored),
        "threads": resources.threads(),
    }
