# SPDX-License-Identifier: Apache-2.0
"""The vendor's queues and buffers: the mechanism ``acltdt``.

Processes can share queues and buffers only if they run on the device's own processor (run mode
device) and belong to one memory group. crossmem does not make this group.
"""

import ctypes
from collections.abc import Mapping
from typing import Any, Final

from crossmem.driver import Peer, VendorQueue
from crossmem.driver.cleanup import noting
from crossmem.driver.recording import call_into
from crossmem.errors import (
    AccessDeniedError,
    InvalidHandleError,
    InvalidSizeError,
    UnsupportedError,
)
from crossmem.models import QueueRole, process_start_time
from crossmem_ascend.buffers import MAX_QUEUES, About, Attached, HandOvers, attached_in
from crossmem_ascend.errors import BACKEND, FAILURE, SUCCESS
from crossmem_ascend.runtime import Vendor

__all__ = ["NAME", "NEEDS", "QueueMechanism", "obstacle"]

NAME: Final = "acltdt"
NEEDS: Final = (
    *("alloc_buf", "attach_queue", "create_queue", "create_queue_attr", "dequeue"),
    *("destroy_queue", "destroy_queue_attr", "enqueue", "free_buf", "get_buf_data"),
    *("get_buf_data_len", "get_buf_user_data", "grant_queue", "set_buf_data_len"),
    *("set_buf_user_data", "set_queue_attr"),
)
"""Functions of ``acl.tdt`` that the mechanism needs."""
_RUNS_ON_HOST: Final = 1
_SHARE_GROUP: Final = "SHAREGROUP_PRECONFIG"
"""The environment variable that lets the vendor's queues work between the processes of a group."""
_DEPTH_ATTR: Final = 1
_MAX_DEPTH: Final = 8191
"""The vendor's greatest depth is 8192, and a queue holds one buffer less than its depth."""
_ID_NBYTES: Final = 4
_BITS: Final[Mapping[QueueRole, int]] = {"produce": 4, "consume": 2}


def obstacle(
    vendor: Vendor, tdt: object | None, ordinal: int, environ: Mapping[str, str]
) -> UnsupportedError | None:
    """Return None if processes can use the vendor's queues on a device, else the error."""
    code = "ACL answers 200006 (ACL_ERROR_FEATURE_UNSUPPORTED) to"
    hint = (
        f"crossmem.device('{BACKEND}:{ordinal}').queue(...) makes a queue of crossmem, which needs "
        "only shareable handles"
    )
    missing = [f"tdt.{name}" for name in NEEDS if not hasattr(tdt, name)]
    missing += ["rt.get_run_mode"] if not vendor.has("get_run_mode") else []
    mode, failure = (0, 0) if missing else vendor.rt.get_run_mode()
    if missing:
        reason = f"this runtime has no function acl.{missing[0]}"
    elif failure != SUCCESS:
        reason = f"acl.rt.get_run_mode failed with {failure}"
    elif mode == _RUNS_ON_HOST:
        reason = f"{code} calls of buffer functions in run mode host"
    elif _SHARE_GROUP not in environ:
        reason = f"{code} acltdtGrantQueue without a share group ({_SHARE_GROUP})"
        # Products that run programs on the device have no shareable handles, so a queue of crossmem
        # is not possible there.
        hint = f"set {_SHARE_GROUP}=1 in all processes, and put them into one memory group"
    elif ordinal:
        reason = "acltdt can use only device 0"
        hint = f"make the queue on {BACKEND}:0"
    else:
        return None
    return UnsupportedError(
        f"{BACKEND}:{ordinal} does not offer mechanism {NAME!r}: {reason}",
        hint=hint,
        backend=BACKEND,
    )


class QueueMechanism(HandOvers):
    """The driver's methods for the protocol :class:`crossmem.driver.VendorQueues`.

    ``on`` makes a device current, and ``about`` only names the device in errors.
    """

    def __init__(self, vendor: Vendor, tdt: Any, on: About, about: About) -> None:
        super().__init__(vendor, tdt, about)
        self._on = on

    # Queues -------------------------------------------------------------------------------

    def create_queue(self, ordinal: int, depth: int, mechanism: str) -> VendorQueue:  # noqa: ARG002
        """Create a queue."""
        if depth > _MAX_DEPTH:
            msg = f"depth is {depth}; a queue of the vendor has at most {_MAX_DEPTH} buffers"
            hint = "make a queue with fewer buffers"
            raise InvalidSizeError(msg, operation="queue", hint=hint, backend=BACKEND)
        queue = VendorQueue(ordinal, b"", None)
        made: list[tuple[int, int]] = []
        try:
            with self._on(ordinal, "queue"):
                self._create(depth + 1, made)
                number = self._vendor.value("tdt.create_queue", made[0])
            queue.reference = Attached(number, is_own=True)
            queue.payload = number.to_bytes(_ID_NBYTES, "little")
        except BaseException as error:
            if made and made[0][1] == SUCCESS:
                queue.reference = Attached(made[0][0], is_own=True)
            with noting(error):
                self.close_queue(queue)
            raise
        return queue

    def _create(self, depth: int, made: list[tuple[int, int]]) -> None:
        tdt, check, value = self._tdt, self._vendor.check, ctypes.c_uint32(depth)
        attrs: list[int | None] = []
        try:
            attr = call_into(attrs, tdt.create_queue_attr)
            if not attr:
                check("tdt.create_queue_attr", FAILURE)
            code = tdt.set_queue_attr(
                attr, _DEPTH_ATTR, ctypes.sizeof(value), ctypes.addressof(value)
            )
            check("tdt.set_queue_attr", code)
            call_into(made, tdt.create_queue, attr)
            self._destroy_attr(attrs)
        except BaseException as error:
            with noting(error):
                self._destroy_attr(attrs)
            raise

    def _destroy_attr(self, attrs: list[int | None]) -> None:
        destroy = self._tdt.destroy_queue_attr
        if attrs and attrs[0]:
            # No signal handler runs between these two statements.
            attr, attrs[0] = attrs[0], None
            code = destroy(attr)
            self._vendor.check("tdt.destroy_queue_attr", code)

    def attach_queue(
        self,
        ordinal: int,
        payload: bytes,
        role: QueueRole,
        mechanism: str,  # noqa: ARG002
    ) -> VendorQueue:
        """Attach the queue that the payload names. The vendor has no call to detach a queue."""
        number = int.from_bytes(payload, "little")
        if len(payload) != _ID_NBYTES or number >= MAX_QUEUES:
            msg = f"the id of a queue is a number below {MAX_QUEUES}, not {payload[:16].hex()}"
            raise InvalidHandleError(msg, operation="open_queue", backend=BACKEND)
        with self._on(ordinal, "open_queue"):
            answer = self._tdt.attach_queue(number, 0)
            bits = self._vendor.value("tdt.attach_queue", answer)
        if not bits & _BITS[role]:
            msg = f"the vendor's grant to this process (bits {bits}) does not include {role!r}"
            raise AccessDeniedError(msg, operation="open_queue", backend=BACKEND)
        return VendorQueue(ordinal, payload, Attached(number, is_own=False))

    def close_queue(self, queue: VendorQueue) -> None:
        """Destroy a queue that this process created. Do nothing for an attached queue."""
        destroy = self._tdt.destroy_queue
        with self._about(queue.ordinal, "close"):
            # No signal handler and no other thread runs between this statement and the call.
            attached, queue.reference = queue.reference, None
            if attached is not None and attached.is_own:
                code = destroy(attached.number)
                if code != SUCCESS:
                    queue.reference = attached
                self._vendor.check("tdt.destroy_queue", code)

    def grant_queue(self, queue: VendorQueue, role: QueueRole, peer: Peer) -> None:
        """Give a process the vendor's permission for a role."""
        if not peer.pid:
            msg = (
                "the vendor grants queues by pid, and the owner does not see the pid of the "
                "process that opens the queue"
            )
            raise AccessDeniedError(msg, operation="open_queue", backend=BACKEND)
        with self._about(queue.ordinal, "open_queue"):
            # The new grant may replace an earlier grant to this process. So the new grant includes
            # the permissions of the earlier grants.
            attached = attached_in(queue)
            process = peer.pid, process_start_time(peer.pid)
            bits = attached.granted.get(process, 0) | _BITS[role]
            code = self._tdt.grant_queue(attached.number, peer.pid, bits, 0)
            self._vendor.check("tdt.grant_queue", code)
            attached.granted[process] = bits
