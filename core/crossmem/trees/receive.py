# SPDX-License-Identifier: Apache-2.0
"""Receives trees: makes arrays and tensors over the memory of a shared tree, without a copy."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, TypeVar, overload

from crossmem.arrays.adapters import describe
from crossmem.plugin.selection import DeviceSpec
from crossmem.sharing.base.devices import check_device
from crossmem.sharing.base.process import drain
from crossmem.sharing.device import Device
from crossmem.sharing.importer.attach import Readonly
from crossmem.sharing.importer.mapping import Mapping
from crossmem.trees.aliasing import Copy, copy_all
from crossmem.trees.building import attach_all, build, maker_of_rows
from crossmem.trees.matching import match, refuse_unwritable
from crossmem.trees.message import Message
from crossmem.trees.nodes import read
from crossmem.trees.shared import Shared, refusing_closed

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
    """Return arrays and tensors over the memory that another process shared, without a copy.

    The memory stays valid as long as a received array or an object derived from it lives, even if
    the owner frees the memory. After the owner's exit, the memory stays valid if the backend has
    the capability ``survives_owner``. The memory is released within a second after the last of
    these arrays and objects is deleted.

    Parameters
    ----------
    shared
        The object that :func:`crossmem.share` returned, or its bytes.
    readonly
        True: the device or the kernel forbids writes. NumPy arrays are marked read-only. PyTorch
        and CuPy cannot mark arrays as read-only, so a write by the CPU to one of their arrays kills
        the process. ``"advisory"``: only NumPy arrays refuse writes.
    device
        If a device is given, the memory of its backend is mapped for this device. Memory of other
        backends is mapped for the device that holds the memory. If ``device`` is None, all memory
        is mapped for the device that holds it. The memory does not move (law C24).
    into
        A tree with the same structure as the shared tree, and with arrays and tensors of the same
        shapes and dtypes. The received contents are copied into these arrays, the received memory
        is released, and ``into`` is returned. The arrays must not lie in the received memory,
        because the copy would overwrite its own source. The plain values of ``into`` stay as they
        are.
    timeout
        How long each exporter may take to reply, in seconds; None: ``CROSSMEM_TIMEOUT``.

    Raises
    ------
    InvalidHandleError
        The bytes are not a shared tree, or name memory that was never exported.
    UnsupportedError
        A library or a class is missing in this process.
    ConfigurationError
        ``into`` does not match the shared tree, or has an array that cannot be overwritten. Or
        ``into`` contains one array twice, and the shared arrays at these two places of the tree
        differ. Or another argument is invalid.
    BackendNotFoundError
        No plugin offers the backend of ``device``.
    ClosedError, ForkedProcessError
        ``shared`` was closed, or was inherited through fork.
    CrossmemError
        As for :func:`crossmem.attach`.
    """
    process = drain()
    check_device(device)
    if isinstance(device, str):
        # attach_all() looks up this backend only if the message has memory of this backend. So an
        # unknown backend is refused here.
        process.registry.backend(DeviceSpec.parse(device).backend)
    with refusing_closed(shared) if isinstance(shared, Shared) else nullcontext():
        message = shared.take() if isinstance(shared, Shared) else Message.from_bytes(shared)
        mappings = attach_all(message, readonly=readonly, device=device, timeout=timeout)
    if into is not None:
        _overwrite(into, message, mappings)
        return into
    return build(message, mappings)


def _overwrite(into: Any, message: Message, mappings: Sequence[Mapping]) -> None:
    # The message is untrusted, and match() needs a valid tree. So read() checks the tree first; the
    # result of read() is not used.
    read(message.tree, range(len(message.rows)))
    make = maker_of_rows(mappings)
    copies = []
    for one in match(message, into, "receive"):
        target, found, _ = one.leaf
        refuse_unwritable(one.where, target, found.kind, found.layout, "receive")
        source = make(one.row, found.kind)
        origin = describe(source)
        assert origin is not None  # noqa: S101 - an array was made
        copies.append(Copy(one.where, target, found, source, origin))
    copy_all(copies, "receive")
