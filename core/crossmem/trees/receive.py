# SPDX-License-Identifier: Apache-2.0
"""Receiving: from the description of a shared tree to its arrays and tensors, without a copy."""

from collections.abc import Sequence
from typing import Any, TypeVar, overload

from crossmem.arrays.adapters import ADAPTERS
from crossmem.plugin import DeviceSpec
from crossmem.sharing.base.devices import check_device
from crossmem.sharing.base.process import drain
from crossmem.sharing.device import Device
from crossmem.sharing.importer.attach import Readonly
from crossmem.sharing.importer.mapping import Mapping
from crossmem.trees.building import attach_all, build, maker_of_rows
from crossmem.trees.matching import match, refuse_unwritable
from crossmem.trees.message import Message
from crossmem.trees.nodes import read
from crossmem.trees.shared import Shared

__all__ = ["receive"]

_T = TypeVar("_T")


@overload
def receive(
    shared: Shared[_T],
    *,
    readonly: Readonly = False,
    device: Device | str | None = None,
    into: Any = None,
    timeout: float | None = None,
) -> _T: ...


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
    shared: Shared[Any] | bytes | bytearray | memoryview,
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
    message = shared.take() if isinstance(shared, Shared) else Message.from_bytes(shared)
    mappings = attach_all(message, readonly=readonly, device=device, timeout=timeout)
    if into is not None:
        _overwrite(into, message, mappings)
        return into
    return build(message, mappings)


def _overwrite(into: Any, message: Message, mappings: Sequence[Mapping]) -> None:
    # A message of a stranger may be no tree, and nothing is compared with that.
    read(message.tree, range(len(message.rows)))
    make = maker_of_rows(mappings)
    jobs = []
    for one in match(message, into, "receive"):
        target, found, _ = one.leaf
        refuse_unwritable(one.where, target, found.kind, found.layout, "receive")
        jobs.append((found.kind, target, make(one.row, found.kind)))
    for kind, target, source in jobs:
        ADAPTERS[kind].copy_to(target, source)
