# SPDX-License-Identifier: Apache-2.0
"""How the lease server answers one request."""

from typing import Final

from crossmem.control.connection import ServerConnection
from crossmem.control.leases import Holder
from crossmem.control.registry import LeaseRegistry
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
    leases: LeaseRegistry,
    connection: ServerConnection,
    holder: Holder,
    kind: MessageType,
    number: int,
    request: Request,
) -> list[Holder]:
    """Give leases for all that a request asks for, up to the first refusal, and queue the reply.

    Returns
    -------
    list
        Processes from which the peer has taken over the reservation of a message.
    """
    connection.granted_request, connection.granted = number, []
    connection.is_answered = False
    records: list[bytes] = []
    descriptors: list[int] = []
    senders: list[Holder] = []
    context = proof_context(connection.nonce, request.nonce, number)
    for index, wanted in enumerate(request.wanted):
        if kind is MessageType.RESERVE:
            admitted = leases.admit_reservation(holder, context, wanted)
        else:
            admitted = leases.admit(holder, context, request.reported, wanted)
        if isinstance(admitted, Refusal):
            # All or none: the requester gives back what it got and reports this one.
            records.append(pack_refusals(admitted, len(request.wanted) - index))
            break
        lease, export = admitted
        connection.granted.append(lease.number)
        sender = leases.receive(wanted, holder)
        if sender is not None:
            senders.append(sender)
        handle = export.handle
        # The sender of a message has the memory, or does not want it.
        exported = _NOTHING if lease.in_message else export.exported
        count = len(exported.descriptors)
        grant = Grant(lease.number, handle.nbytes, handle.capacity, count, exported.payloads)
        records.append(pack_grant(grant, handle.secret, context))
        descriptors += exported.descriptors
    connection.queue(number, b"".join(records), tuple(descriptors))
    return senders
