# SPDX-License-Identifier: Apache-2.0
"""Receiving: from the description of a shared tree to its arrays and tensors, without a copy."""

from collections.abc import Callable
from typing import Any, TypeVar, overload

from crossmem.arrays import ArrayInfo, Kind
from crossmem.arrays.adapters import ADAPTERS
from crossmem.arrays.libraries import require
from crossmem.errors import ConfigurationError
from crossmem.plugin import DeviceSpec
from crossmem.sharing.base.devices import check_device
from crossmem.sharing.base.process import drain
from crossmem.sharing.device import Device
from crossmem.sharing.importer.attach import Readonly
from crossmem.trees.message import Message, Row
from crossmem.trees.opening import array_maker, attach_handles, build, pair_leaves
from crossmem.trees.shared import Shared

__all__ = ["receive"]


_Tree = TypeVar("_Tree")


@overload
def receive(
    shared: Shared[_Tree],
    *,
    readonly: Readonly = False,
    device: Device | str | None = None,
    into: Any = None,
    timeout: float | None = None,
) -> _Tree: ...


@overload
def receive(
    shared: bytes | bytearray | memoryview,
    *,
    readonly: Readonly = False,
    device: Device | str | None = None,
    into: Any = None,
    timeout: float | None = None,
) -> Any: ...


def receive(
    shared: Shared[_Tree] | bytes | bytearray | memoryview,
    *,
    readonly: Readonly = False,
    device: Device | str | None = None,
    into: Any = None,
    timeout: float | None = None,
) -> _Tree | Any:
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
    message = shared.take_message() if isinstance(shared, Shared) else Message.from_bytes(shared)
    mappings = attach_handles(message, readonly, device, timeout)
    if into is not None:
        _overwrite(into, message, array_maker(mappings))
        return into
    return build(message, mappings)


def _overwrite(into: Any, message: Message, make: Callable[[Row, Kind], Any]) -> None:
    jobs = []
    for row, target, found, where in pair_leaves(message, into, "into"):
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
