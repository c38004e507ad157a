# SPDX-License-Identifier: Apache-2.0
"""Functions that make and open queues."""

from typing import Any, Final, cast

from crossmem.control.barrier import IS_REGISTERED
from crossmem.control.records import Allow
from crossmem.errors import (
    AccessDeniedError,
    ConfigurationError,
    InvalidSizeError,
    StaleHandleError,
    UnsupportedError,
)
from crossmem.guards import (
    check_choice,
    check_flag,
    check_size,
    check_timeout,
    is_within,
    plain_integer,
    shorten,
)
from crossmem.models.queue_handle import QueueHandle, QueueRole
from crossmem.sharing.base.devices import LocalDevice
from crossmem.sharing.base.process import Process, drain
from crossmem.sharing.importer.attach import attach
from crossmem.sharing.queues.layout import Delivery, Overflow, Terms
from crossmem.sharing.queues.opening import (
    MAX_DEPTH,
    MAX_PLACES,
    Queues,
    open_segments,
    read_directory,
)
from crossmem.sharing.queues.owner import QueueOwner
from crossmem.sharing.queues.queue import Queue
from crossmem.sharing.queues.record import QueueRecord
from crossmem.sharing.queues.vendor_making import make_vendor_queue, open_vendor_queue
from crossmem.sharing.queues.vendor_terms import VendorTerms, refuse_features

__all__ = ["make_queue", "open_queue"]

_HOST_ALIGNMENT: Final = 64
_DEVICE_ALIGNMENT: Final = 512
_PREFETCH: Final = 2


def make_queue(
    process: Process,
    device: LocalDevice,
    depth: object,
    nbytes: object,
    *,
    delivery: Delivery,
    overflow: Overflow,
    redeliver: bool,
    producers: object,
    consumers: object,
    prefetch: object,
    allow: Allow | None,
) -> Queue:
    """Make a queue; see :meth:`crossmem.Device.queue`."""
    check_choice("delivery", delivery, ("one", "each"), "queue")
    check_choice("overflow", overflow, ("wait", "raise", "drop"), "queue")
    is_default = prefetch is None
    if prefetch is None:
        prefetch = depth if consumers == 1 else _PREFETCH
    counts = [
        (name, plain_integer(value), most)
        for name, value, most in (
            ("depth", depth, MAX_DEPTH),
            ("producers", producers, MAX_PLACES),
            ("consumers", consumers, MAX_PLACES),
            ("prefetch", prefetch, MAX_DEPTH),
        )
    ]
    for name, value, most in counts:
        if not is_within(value, 1, most):
            msg = f"{name} is {shorten(value)}; it must be an integer from 1 to {most}"
            hint = f"choose a number within these bounds for {name}="
            raise InvalidSizeError(msg, operation="queue", hint=hint)
    check_flag("redeliver", redeliver, "queue")
    if redeliver and delivery == "each":
        msg = "redeliver=True needs delivery='one'; with 'each', all consumers get each buffer"
        raise ConfigurationError(msg, operation="queue", hint="leave out redeliver=True")
    counted: Any = {name: value for name, value, _most in counts}
    size = check_size("nbytes", nbytes, limit=device.capabilities.max_allocation_nbytes)
    if device.capabilities.vendor_queues:
        refuse_features(
            device,
            {
                'delivery="each"': delivery == "each",
                'overflow="drop"': overflow == "drop",
                "redeliver=True": redeliver,
                "prefetch=": not is_default,
            },
        )
        asked = VendorTerms(counted["depth"], size, overflow == "wait")
        return make_vendor_queue(
            process,
            device,
            asked,
            allow,
            produce=counted["producers"],
            consume=counted["consumers"],
        )
    alignment = _HOST_ALIGNMENT if device.capabilities.host_visible else _DEVICE_ALIGNMENT
    stride = -(-size // alignment) * alignment
    total = stride * counted["depth"] * counted["producers"]
    if total > device.capabilities.max_allocation_nbytes:
        msg = f"the buffers of all producers have {total} bytes, too much for one allocation"
        hint = "make the queue with fewer or smaller buffers, or for fewer producers"
        raise InvalidSizeError(msg, operation="queue", hint=hint)
    terms = Terms(
        nbytes=size,
        stride=stride,
        delivery=delivery,
        overflow=overflow,
        redeliver=redeliver,
        is_fenced=not IS_REGISTERED,
        **counted,
    )
    owner = QueueOwner(process, device, terms, allow)
    rings, handles = terms.producers, [one.handle for one in owner.segments.exclusive]
    mine: dict[QueueRole, Any] = {"produce": handles[:rings], "consume": handles[rings:]}
    process.part(Queues).owned[owner] = None
    return Queue(QueueRecord(owner.opened, mine, owner))


def open_queue(
    handle: QueueHandle | bytes | bytearray | memoryview,
    *,
    device: LocalDevice | str | None = None,
    timeout: float | None = None,
) -> Queue:
    """Open a queue of another process, and take a place in it.

    Parameters
    ----------
    handle
        A handle of the queue, or its bytes. The handle also names the role.
    device
        The device that uses the buffers in this process; None: the device of the buffers.
    timeout
        How long the owner may take to reply, in seconds; None: ``CROSSMEM_TIMEOUT``.

    Returns
    -------
    Queue
        The caller closes the queue, or uses it as a context manager.

    Raises
    ------
    InvalidHandleError
        The bytes are not the handle of a queue.
    StaleHandleError
        The queue was closed.
    BusyError
        All places for the role are taken.
    OwnerGoneError, OwnerUnresponsiveError
        The owner is dead, or does not reply.
    AccessDeniedError
        The owner does not admit this process.
    UnsupportedError
        This process owns the queue, or cannot import the buffers for ``device``. Another cause: the
        owner relies on barriers (``membarrier``) in which this process cannot take part.
    WrongHostError, BackendNotFoundError, BackendUnavailableError, DeviceNotFoundError
        This process cannot reach the queue.
    """
    process = drain()
    if not isinstance(handle, QueueHandle):
        handle = QueueHandle.from_bytes(handle)
    if handle.directory.owner == process.identity:
        msg = "this process owns the queue, and cannot open it again"
        hint = "use the Queue that device.queue() returned"
        raise UnsupportedError(msg, operation="open_queue", hint=hint)
    timeout_s = check_timeout(timeout, default_s=process.settings.timeout_s)
    try:
        mapped = attach(handle.directory, readonly="advisory", timeout=timeout_s)
    except StaleHandleError as error:
        msg, hint = "the queue was closed", "ask its owner for the handle of a new queue"
        raise StaleHandleError(msg, operation="open_queue", hint=hint) from error
    except AccessDeniedError as error:
        if error.hint and "allow=" in error.hint:
            error.hint = "allow= of device.queue() names the processes that the owner admits"
        raise
    with mapped as directory:
        found = read_directory(directory)
        if "vendor" in found:
            return open_vendor_queue(process, handle, found, device, timeout_s)
    opened, mine = open_segments(process, handle, found, device, timeout_s)
    queue = Queue(QueueRecord(opened, {handle.role: mine}))
    try:
        cast("QueueRecord", queue._record).join(handle.role, timeout_s)
    except BaseException:
        queue._end()
        raise
    return queue
