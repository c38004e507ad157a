# SPDX-License-Identifier: Apache-2.0
"""The lease server's reply to one request."""

from typing import Final

from crossmem.control.admission import Admission
from crossmem.control.connection import ServerConnection
from crossmem.control.leases import Holder
from crossmem.control.segments import SLOTS
from crossmem.control.wire import (
    Grant,
    MessageType,
    Refusal,
    Request,
    pack_grant,
    pack_refusals,
    proof_context,
)
from crossmem.driver import Exported

__all__ = ["answer"]

_NOTHING: Final = Exported()


def answer(
    admission: Admission,
    connection: ServerConnection,
    holder: Holder,
    kind: MessageType,
    number: int,
    request: Request,
) -> list[Holder]:
    """Grant the exports of a request in order, up to the first refusal, and queue the reply.

    Returns
    -------
    list
        The former holders of the reservations that the peer has taken over. The process that
        receives a message takes over the message's reservation.
    """
    registry = admission.registry
    records: list[bytes] = []
    descriptors: list[int] = []
    reply = connection.begin_reply()
    senders: list[Holder] = []
    context = proof_context(connection.nonce, request.nonce, number)
    for index, wanted in enumerate(request.wanted):
        if kind is MessageType.RESERVE:
            admitted = admission.admit_reservation(holder, context, wanted)
        else:
            admitted = admission.admit(holder, context, number, request, wanted, reply.units)
        if isinstance(admitted, Refusal):
            # The reply refuses the later exports, too. The peer drops the earlier grants, so that
            # it gets either all exports of a request or none.
            records.append(pack_refusals(admitted, len(request.wanted) - index))
            break
        export, row = admitted.export, admitted.row
        # The reply to a RESERVE has neither descriptors nor payloads, because a reservation does
        # not open the memory.
        exported = _NOTHING if kind is MessageType.RESERVE else export.exported
        if kind is MessageType.IMPORT and wanted.reservation:
            sender = registry.receive(wanted.reservation, export, holder)
            if sender is not None:
                senders.append(sender)
        if row is not None:
            which = admitted.slot // SLOTS
            reply.rows.append(row)
            descriptors += registry.slots.descriptors[which], row
            request = request._replace(known=request.known | 1 << which)
        grant = Grant(
            admitted.slot,
            admitted.generation,
            row is not None,
            export.handle.nbytes,
            export.handle.capacity,
            len(exported.descriptors),
            exported.payloads,
        )
        records.append(pack_grant(grant, export.handle.secret, context))
        descriptors += exported.descriptors
    connection.queue(number, b"".join(records), tuple(descriptors))
    return senders
