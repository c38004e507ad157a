# SPDX-License-Identifier: Apache-2.0
"""Functions that make and open a vendor's queue.

The directories and places of a vendor's queue are host memory of crossmem. So a vendor's queue has
handles of the same form as other queues. When a process leases a place, the owner's lease server
checks the process, and lets the vendor grant the role of the place to the process.
"""

import base64
import json
from functools import partial
from typing import Any, Final, cast

from crossmem.control.records import Allow, Export
from crossmem.driver import Peer, VendorQueue, VendorQueues
from crossmem.driver.recording import call_into
from crossmem.errors import UnsupportedError
from crossmem.guards import is_flag, is_within
from crossmem.models import Access, QueueRole, ShareableHandle
from crossmem.models.queue_handle import ROLES, QueueHandle
from crossmem.sharing.base.devices import (
    LocalDevice,
    check_device,
    find_by_identity,
    find_device,
    refuse_foreign_device,
    runtime_in_use,
)
from crossmem.sharing.base.process import Process
from crossmem.sharing.exporter.allocation import Allocation, allocate
from crossmem.sharing.importer.attach import attach
from crossmem.sharing.queues.opening import MAX_PLACES, handle_in, refusal_of
from crossmem.sharing.queues.segments import LENGTH_NBYTES
from crossmem.sharing.queues.vendor import QueueOfVendor
from crossmem.sharing.queues.vendor_record import VendorQueueRecord
from crossmem.sharing.queues.vendor_terms import VendorTerms

__all__ = ["make_vendor_queue", "open_vendor_queue"]

_HOST: Final = "host"


def make_vendor_queue(
    process: Process,
    device: LocalDevice,
    terms: VendorTerms,
    allow: Allow | None,
    **places: int,
) -> QueueOfVendor:
    """Make a queue of the vendor; ``places`` has the number of places for each role."""
    driver, mine = cast("VendorQueues", device.driver), dict[QueueRole, list[ShareableHandle]]()
    record = VendorQueueRecord(process, device, driver, terms, mine)
    record.is_owner = True
    try:
        record.register()
        queue = call_into(
            record.queues, driver.create_queue, device.ordinal, terms.depth, device.mechanism
        )
        marks = []
        for role in ROLES:
            exports = [_make_place(record, allow, role) for _ in range(places[role])]
            mine[role] = [one.handle for one in exports]
            directory = _make_directory(record, role, queue)
            record.directories[role] = _export(process, directory, allow, "ro").handle
            marks.append(directory.view()[-1:])
        record.marks = marks
        return QueueOfVendor(record)
    except BaseException:
        process.deferred.ready[record] = None
        process.drain()
        raise


def _new_memory(record: VendorQueueRecord, contents: bytes) -> Allocation:
    process = record.process
    made = allocate(process, find_device(process, _HOST, None), len(contents))
    record.kept.append(made)
    made.write(contents)
    return made


def _export(process: Process, memory: Allocation, allow: Allow | None, access: Access) -> Export:
    handle = memory.export(allow=allow, access=access)
    return process.start_server().leases.exports.get(handle.allocation, handle.export)


def _make_place(record: VendorQueueRecord, allow: Allow | None, role: QueueRole) -> Export:
    export = _export(record.process, _new_memory(record, b"\0"), allow, "rw")
    export.is_exclusive = True
    export.unit.grant = partial(_grant, record, role)
    return export


def _grant(record: VendorQueueRecord, role: QueueRole, _export: Export, peer: Peer) -> None:
    """Let the vendor grant a role to a process.

    The lease server calls this function for each new lease of a place.
    """
    queue = next(iter(record.queues), None)
    if queue is not None:
        record.driver.grant_queue(queue, role, peer)


def _make_directory(record: VendorQueueRecord, role: QueueRole, queue: VendorQueue) -> Allocation:
    device, terms = record.device, record.terms
    text = json.dumps(
        {
            "role": role,
            "vendor": {
                "backend": device.backend,
                "device": device.identity,
                "mechanism": device.mechanism,
                "payload": base64.b64encode(queue.payload).decode(),
                **terms._asdict(),
            },
            "mine": [base64.b64encode(one.to_bytes()).decode() for one in record.mine[role]],
        }
    ).encode()
    # The last byte says whether the owner has closed the queue.
    return _new_memory(record, len(text).to_bytes(LENGTH_NBYTES, "little") + text + b"\0")


def open_vendor_queue(
    process: Process,
    handle: QueueHandle,
    found: dict[str, Any],
    device: LocalDevice | str | None,
    timeout_s: float,
) -> QueueOfVendor:
    """Open a vendor's queue that another process owns. ``found`` is the directory's contents."""
    try:
        vendor, mine = found["vendor"], [handle_in(one) for one in found["mine"]]
        backend, identity, mechanism = (
            str(vendor[one]) for one in ("backend", "device", "mechanism")
        )
        payload = base64.b64decode(vendor["payload"])
        terms = VendorTerms(**{name: vendor[name] for name in VendorTerms._fields})
        if not (
            found["role"] == handle.role
            and is_within(terms.depth, 1, 2**32)
            and is_within(terms.nbytes, 1, 2**63)
            and is_flag(terms.waits)
            and 0 < len(mine) <= MAX_PLACES
        ):
            raise ValueError(terms)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise refusal_of(error) from error
    here = _device_of(process, backend, identity, device).for_mechanism(mechanism)
    if not here.capabilities.vendor_queues:
        raise refusal_of(ValueError(f"mechanism {mechanism} has no queues of the vendor"))
    driver = cast("VendorQueues", here.driver)
    record = VendorQueueRecord(process, here, driver, terms, {handle.role: mine})
    try:
        record.register()
        directory = attach(handle.directory, readonly="advisory", timeout=timeout_s)
        record.kept.append(directory)
        record.marks = (directory.view()[-1:],)
        record.is_owner_alive = lambda: directory.owner_alive
        record.check_open()
        record.join(handle.role, timeout_s)
        attach_queue = driver.attach_queue
        call_into(record.queues, attach_queue, here.ordinal, payload, handle.role, mechanism)
        return QueueOfVendor(record)
    except BaseException:
        process.deferred.ready[record] = None
        process.drain()
        raise


def _device_of(
    process: Process, backend: str, identity: str, target: LocalDevice | str | None
) -> LocalDevice:
    """Return the device that the directory names. Raise if the caller names another device."""
    check_device(target, "open_queue")
    if isinstance(target, str):
        target = find_device(process, target, runtime_in_use(process, target.partition(":")[0]))
    found = find_by_identity(process, backend, identity, target)
    if target is not None:
        refuse_foreign_device(target)
        if target.info is not found.info:
            msg = f"the vendor's queue is on {found.name}, and not on {target.name}"
            hint = "leave out device=, or name the device of the queue"
            raise UnsupportedError(msg, operation="open_queue", hint=hint)
    return found
