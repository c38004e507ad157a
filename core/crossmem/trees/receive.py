# SPDX-License-Identifier: Apache-2.0
"""Receiving: from the description of a shared tree to its arrays and tensors, without a copy."""

from collections.abc import Callable, Sequence
from typing import Any

from crossmem.arrays import ArrayInfo, Kind, Layout
from crossmem.arrays.adapters import ADAPTERS, describe
from crossmem.arrays.libraries import require
from crossmem.errors import ConfigurationError
from crossmem.plugin import DeviceSpec
from crossmem.sharing.base.devices import check_device
from crossmem.sharing.base.memory import Memory, leave_to_views
from crossmem.sharing.base.process import drain
from crossmem.sharing.base.views import maker
from crossmem.sharing.device import Device
from crossmem.sharing.importer.attach import Readonly, attach_many
from crossmem.sharing.importer.mapping import Mapping
from crossmem.trees.message import Message, Row
from crossmem.trees.nodes import read, write
from crossmem.trees.pairing import pair_arrays
from crossmem.trees.shared import Shared

__all__ = ["build", "receive"]


def receive(
    shared: Shared | bytes | bytearray | memoryview,
    *,
    readonly: Readonly = False,
    device: Device | str | None = None,
    into: Any = None,
    timeout: float | None = None,
) -> Any:
    """Return the arrays and tensors that another process shared: its memory, not a copy.

    The memory stays as long as one of them, or anything that is made from them, lives, whatever
    the other process does meanwhile; of backends without the capability ``survives_owner``, as
    long as that process lives too. After that it is given back by the next call of crossmem.

    Parameters
    ----------
    shared
        What :func:`crossmem.share` returned, or its bytes.
    readonly
        True: the device or the kernel keeps the memory from being written. NumPy's arrays say so;
        PyTorch and CuPy have no such arrays, and writing to theirs ends the process.
        ``"advisory"``: NumPy's arrays alone keep it.
    device
        For which device, where memory of that device's backend is received; None: for the one
        that holds it. The memory stays where it is (C24).
    into
        A tree of the same containers with arrays and tensors of the same shapes and dtypes: they
        are overwritten, and nothing else of the memory is kept. It is returned then. They must
        not lie in the memory that is received, which would change while it is read.
    timeout
        How long each exporter may take to answer, in seconds; ``CROSSMEM_TIMEOUT`` where None.

    Raises
    ------
    InvalidHandleError
        Where these bytes are no shared tree, or name memory that was never exported.
    UnsupportedError
        Where a library or a class is missing here.
    ConfigurationError
        Where ``into`` is another tree, or another argument has no meaning.
    BackendNotFoundError
        Where no plugin offers the backend of ``device``.
    ClosedError, ForkedProcessError
        Where ``shared`` may not be used any more.
    CrossmemError
        As :func:`crossmem.attach` does.
    """
    process = drain()
    check_device(device)
    if isinstance(device, str):
        # Nobody else would say that it is misspelt, where no memory is for it.
        process.registry.backend(DeviceSpec.parse(device).backend)
    if isinstance(shared, Shared):
        shared.check()
        message = shared.message
    else:
        message = Message.from_bytes(shared)
    mappings = _attach(message, readonly, device, timeout)
    if into is not None:
        _overwrite(into, message, _maker(mappings))
        return into
    return build(message, mappings)


def build(message: Message, memories: Sequence[Memory]) -> Any:
    """Return the arrays and tensors of a message in the memory of its handles."""
    make = _maker(memories)
    return read(message.tree, [make(row, row.kind) for row in message.rows])


def _maker(memories: Sequence[Memory]) -> Callable[[Row, Kind], Any]:
    makers: dict[tuple[int, Kind], Callable[[Layout], Any]] = {}

    def make(row: Row, kind: Kind) -> Any:
        if row.handle is None:
            return ADAPTERS[kind].empty(row.layout)
        found = makers.get((row.handle, kind))
        if found is None:
            found = makers[row.handle, kind] = maker(memories[row.handle], kind)
        return found(row.layout)

    return make


def _attach(
    message: Message, readonly: Readonly, device: Device | str | None, timeout: float | None
) -> list[Mapping]:
    """Attach all memory, or none; each mapping lasts as long as arrays in it do."""
    handles = message.handles
    backend = None
    if device is not None:
        backend = (device if isinstance(device, str) else device.name).partition(":")[0]
    here = [i for i, one in enumerate(handles) if one.backend == backend]
    home = [i for i, one in enumerate(handles) if one.backend != backend]
    mappings: dict[int, Mapping] = {}
    for target, numbers in ((device, here), (None, home)):
        wanted = [handles[i] for i in numbers]
        found = attach_many(wanted, device=target, readonly=readonly, timeout=timeout)
        for number, mapping in zip(numbers, found, strict=True):
            leave_to_views(mapping)
            mappings[number] = mapping
    return [mappings[i] for i in range(len(handles))]


def _overwrite(into: Any, message: Message, make: Callable[[Row, Kind], Any]) -> None:
    # Nothing is compared with what is no tree.
    read(message.tree, range(len(message.rows)))
    targets: list[tuple[Any, ArrayInfo]] = []

    def add(value: Any, _where: Callable[[], str]) -> int | None:
        found = describe(value)
        if found is None:
            return None
        targets.append((value, found))
        return len(targets) - 1

    jobs = []
    for number, target_number, where in list(pair_arrays(message.tree, write(into, add), "into")):
        row, (target, found) = message.rows[number], targets[target_number]
        mine = found.layout
        if (mine.dtype, mine.shape) != (row.layout.dtype, row.layout.shape):
            msg = (
                f"an array of shape {row.layout.shape} and dtype {row.layout.dtype.name} was "
                f"shared where {where} has shape {mine.shape} and dtype {mine.dtype.name}"
            )
            raise ConfigurationError(msg, operation="receive")
        obstacle = _obstacle(found, target)
        if obstacle is not None:
            raise ConfigurationError(f"{where} {obstacle}", operation="receive")
        jobs.append((found.kind, target, make(row, found.kind)))
    for kind, target, source in jobs:
        ADAPTERS[kind].copy_to(target, source)


def _obstacle(found: ArrayInfo, target: Any) -> str | None:
    """Return why an array cannot be overwritten: none is, where one cannot."""
    if found.kind == "numpy" and not target.flags.writeable:
        return "is an array that is read-only"
    layout = found.layout
    if layout.nbytes and any(map(_repeats, layout.shape, layout.strides)):
        return f"shows elements in several places: its strides are {layout.strides}"
    is_inference = found.kind == "torch" and target.is_inference()
    if is_inference and not require("torch").is_inference_mode_enabled():
        return "was made in PyTorch's inference mode, and can only be written there"
    return None


def _repeats(size: int, step: int) -> bool:
    return size > 1 and step == 0
