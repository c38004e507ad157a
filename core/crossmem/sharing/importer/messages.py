# SPDX-License-Identifier: Apache-2.0
"""Messages that reserve the memory they speak of, until they are received.

Whoever sends a handle may drop the memory right after that: what the message takes along keeps
it. This is what :mod:`crossmem.trees` and :mod:`crossmem.multiprocessing` send and receive with::

    numbers = reserve(handles)                  # the sender: one number for each handle
    message = list(zip(handles, numbers))       # both travel, 64 bits for each number

    mappings = attach_reserved(message)         # the receiver (crossmem.sharing.importer.attach)
    discard(message)                            # or whoever throws the message away

A reservation is a record of the exporter's that the sending process has. It ends when the message
is first received, when it is discarded, and when its sender is dead. While it lasts, the handle is
not stale: :func:`~crossmem.sharing.importer.attach.attach_reserved` gets memory that was freed
meanwhile, also from an exporter that waits at its exit. Afterwards the message's handle is like
any other. Any number of processes may receive one message; each gets the memory if it is still
there.

Any process may send on what it has imported, as long as the exporter lives. A number is the right
to end its reservation, so treat it as the handle itself. A message needs one number for each export
in it: other parts of that export travel with 0. Of several numbers for one export, the first is
shown to the exporter, and all are ended.

If receiving fails, the reservation stays, as the receiver's, so that the message can be received
again. A receiver whose queue has thrown the message away discards it.
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


def reserve(handles: Sequence[ShareableHandle], *, timeout: float | None = None) -> list[int]:
    """Reserve the memory of handles for a message; all or none, one round trip to each exporter.

    Parameters
    ----------
    handles
        What the message speaks of: exports of this process, or of others that live. Memory that
        was freed can be held by who has it imported.
    timeout
        How long to wait for room, and for exporters to answer, in seconds; ``CROSSMEM_TIMEOUT``
        where None.

    Returns
    -------
    list
        The number of each handle's reservation, in order.

    Raises
    ------
    BusyError
        Where messages of this process reserve as much of one exporter as
        ``CROSSMEM_MAX_RESERVATIONS`` there allows, and none was received or discarded in time.
    StaleHandleError, InvalidHandleError, AccessDeniedError
        As for an import.
    OwnerGoneError, OwnerUnresponsiveError, WrongHostError
        Where an exporter cannot be asked.
    UnsupportedError
        For a raw handle, which has no leases.
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
            raise UnsupportedError(msg, operation="send", hint="export it with lease=True")
        wanted.setdefault(handle.owner, {})[index] = handle
    given: dict[ProcessIdentity, list[int]] = {}
    try:
        for owner, part in wanted.items():
            # In the dictionary before anything is asked for.
            numbers = given[owner] = [new_number() for _ in part]
            asked = list(part.values())
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
    """End the reservations of a message that nobody will receive.

    Reservations that have ended already, and exporters that are gone, are no error.

    Parameters
    ----------
    message
        The handles with their numbers; 0 for a handle that is not reserved.
    timeout
        How long it may take to reach an exporter that this process has not talked to yet, in
        seconds; ``CROSSMEM_TIMEOUT`` where None.

    Raises
    ------
    OwnerUnresponsiveError, WrongHostError, AccessDeniedError
        Where an exporter cannot be told. The others were told.
    InvalidHandleError
        Where a number is none.
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
    """Return the number of a reservation, or 0 for none; raise where it cannot be one."""
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
    """Ask another process, again and again as long as it has no room."""
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
            # Those before the first refusal were given.
            connection.end_reservations(numbers)
            refusal, handle = refused[0]
            # If the next answer would come too late, this one says what is wrong.
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
