# SPDX-License-Identifier: Apache-2.0
"""Reservations, which keep the memory of a message's handles until the message is received.

The sender of a handle may free the memory right after sending, because the message's reservation
keeps the memory. :mod:`crossmem.trees` and :mod:`crossmem.multiprocessing` use these functions::

    numbers = reserve(handles)                  # the sender: one number for each handle
    message = list(zip(handles, numbers))       # each number has 64 bits

    mappings = attach_reserved(message)         # the receiver (crossmem.sharing.importer.attach)
    discard(message)                            # or the process that drops the message

A reservation is a record in the exporter. The reservation belongs to the sender until a receiver
requests the memory, and then to that receiver. The reservation ends when the message is received or
discarded, or when the process to which it belongs dies. Until then, the receiver's
:func:`~crossmem.sharing.importer.attach.attach_reserved` gets the memory even if the exporter has
freed the memory, or is exiting and waits for leases to end. Several processes may receive one
message. All receivers after the first get the memory only if it was not freed.

Any process may forward memory that it has imported, as long as the exporter lives. A process that
knows a number can end the reservation, so keep the number as secret as the handle. Each export in a
message needs one number. Further handles of the same export may have the number 0.

If :func:`~crossmem.sharing.importer.attach.attach_reserved` raises, the reservation stays. The
receiver then receives the message again, or drops the message and calls :func:`discard`.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Final

from crossmem.control.leases import new_number
from crossmem.control.link import Deadline
from crossmem.control.wire import MessageType, Refusal, Status
from crossmem.errors import (
    BusyError,
    ClosedError,
    CrossmemError,
    InvalidHandleError,
    UnsupportedError,
)
from crossmem.guards import check_timeout, clause, shorten
from crossmem.models import ProcessIdentity, ShareableHandle
from crossmem.sharing.base.process import Process, drain
from crossmem.sharing.importer.errors import error_of
from crossmem.sharing.importer.table import ImportTable

__all__ = ["check_reservation", "discard", "reserve"]

_FIRST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.05
_NUMBER_BITS: Final = 64


def reserve(
    handles: Sequence[ShareableHandle],
    *,
    timeout: float | None = None,
    message: list[tuple[ShareableHandle, int]] | None = None,
) -> list[int]:
    """Reserve the memory of all handles or none.

    Parameters
    ----------
    handles
        The handles of the message: exports of this process, or of other living processes. Freed
        memory can be reserved while this process has an import of it.
    timeout
        How long to wait for the end of earlier reservations and for the exporters' replies, in
        seconds; None: ``CROSSMEM_TIMEOUT``.
    message
        A list that gets each handle with its number before the reservation exists. If a signal
        handler raises before the caller has the numbers, the caller passes the list to
        :func:`discard`, which ends the reservations.

    Returns
    -------
    list
        The reservation number of each handle, in order.

    Raises
    ------
    BusyError
        The message needs more reservations at one exporter than ``CROSSMEM_MAX_RESERVATIONS``
        permits in that exporter. Or too many reservations of this process's earlier messages did
        not end in time.
    StaleHandleError, InvalidHandleError, AccessDeniedError
        As for :func:`crossmem.import_handle`.
    OwnerGoneError, OwnerUnresponsiveError, WrongHostError
        An exporter cannot be reached.
    UnsupportedError
        A handle is raw and has no leases.
    ClosedError
        This process is exiting.
    """
    process = drain()
    if process.is_exiting:
        msg = "this process is exiting and sends nothing more"
        raise ClosedError(msg, operation="send")
    deadline = Deadline(check_timeout(timeout, default_s=process.settings.timeout_s))
    wanted: dict[ProcessIdentity, dict[int, ShareableHandle]] = {}
    for index, handle in enumerate(handles):
        if handle.raw is not None:
            msg = "a raw handle has no leases, so no message can reserve its memory"
            raise UnsupportedError(msg, operation="send", hint="export with lease=True")
        wanted.setdefault(handle.owner, {})[index] = handle
    given: dict[ProcessIdentity, list[int]] = {}
    try:
        for owner, part in wanted.items():
            # ``given`` gets the numbers before the request, so the ``except`` block can end all
            # reservations.
            numbers = given[owner] = [new_number() for _ in part]
            asked = list(part.values())
            if message is not None:
                message += zip(asked, numbers, strict=True)
            if owner == process.identity:
                _reserve_own(process, asked, deadline, numbers)
            else:
                _reserve_at(process, owner, asked, deadline, numbers)
        found = {
            index: number
            for owner, part in wanted.items()
            for index, number in zip(part, given[owner], strict=True)
        }
        return [found[index] for index in range(len(handles))]
    except BaseException:
        for owner, numbers in given.items():
            _end(process, owner, numbers)
        raise


def discard(
    message: Iterable[tuple[ShareableHandle, int]], *, timeout: float | None = None
) -> None:
    """End the reservations of a message that no process will receive.

    A reservation that has ended, or an exporter that is dead, causes no error.

    Parameters
    ----------
    message
        The handles with their numbers; 0 for a handle that is not reserved.
    timeout
        How long the call may wait for connections to exporters, in seconds; None:
        ``CROSSMEM_TIMEOUT``.

    Raises
    ------
    OwnerUnresponsiveError, WrongHostError, AccessDeniedError
        An exporter cannot be reached. The reservations in reachable exporters have ended.
    InvalidHandleError
        A number is invalid.
    """
    process = drain()
    deadline = Deadline(check_timeout(timeout, default_s=process.settings.timeout_s))
    ended: dict[ProcessIdentity, list[int]] = {}
    for handle, number in message:
        if check_reservation(number):
            ended.setdefault(handle.owner, []).append(number)
    failure: CrossmemError | None = None
    for owner, numbers in ended.items():
        if owner == process.identity:
            _end(process, owner, numbers)
            continue
        try:
            with process.part(ImportTable).connected(owner) as connection:
                connection.discard(numbers, deadline)
        except CrossmemError as error:
            failure = failure or error
    if failure is not None:
        raise failure


def check_reservation(number: object) -> int:
    """Check a reservation number, and return it. The number 0 means no reservation.

    Raises
    ------
    InvalidHandleError
        The value is not an integer of 64 bits.
    """
    if type(number) is not int or not 0 <= number < 1 << _NUMBER_BITS:
        msg = f"a reservation number is an integer of {_NUMBER_BITS} bits, not {shorten(number)}"
        raise InvalidHandleError(msg, hint="pass the number that came with the handle")
    return number


def _reserve_own(
    process: Process, asked: Sequence[ShareableHandle], deadline: Deadline, numbers: list[int]
) -> None:
    leases = process.start_server().leases
    refusal = leases.reserve_mine(asked, numbers, deadline.remaining_s)
    if refusal is not None:
        raise _error_of(refusal, asked[0])


def _reserve_at(
    process: Process,
    owner: ProcessIdentity,
    asked: Sequence[ShareableHandle],
    deadline: Deadline,
    numbers: list[int],
) -> None:
    """Reserve memory of another process. At the limit of reservations, retry until the deadline."""
    pause_s = _FIRST_PAUSE_S
    with process.part(ImportTable).connected(owner) as connection:
        while True:
            answers = connection.request(
                asked, numbers, reported=0, deadline=deadline, kind=MessageType.RESERVE
            )
            refused = [
                (answer, handle)
                for answer, handle in zip(answers, asked, strict=True)
                if isinstance(answer, Refusal)
            ]
            if not refused:
                return
            # The exporter grants the reservations in order, up to the first refusal. A message with
            # only some of its reservations is useless, so this call ends the granted ones.
            connection.end_reservations(numbers)
            refusal, handle = refused[0]
            # If no time is left for another request, this refusal becomes the error.
            if refusal.status is not Status.FULL or deadline.remaining_s <= pause_s:
                raise _error_of(refusal, handle)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _error_of(refusal: Refusal, handle: ShareableHandle) -> CrossmemError:
    if refusal.status not in {Status.FULL, Status.TOO_MANY}:
        return error_of(refusal, handle)
    pid, reason = handle.owner.pid, clause(refusal.reason, 110)
    return BusyError(
        f"process {pid} reserves nothing more for messages of this process: {reason}",
        hint=(
            "receive or discard earlier messages, send less at once, or start process "
            f"{pid} with a higher CROSSMEM_MAX_RESERVATIONS"
        ),
        operation="send",
        backend=handle.backend,
        device=handle.device,
    )


def _end(process: Process, owner: ProcessIdentity, numbers: Sequence[int]) -> None:
    if owner != process.identity:
        with process.part(ImportTable).connected(owner) as connection:
            connection.end_reservations(numbers)
    elif process.server is not None:
        process.server.leases.release_mine(numbers)
