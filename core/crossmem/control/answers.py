# SPDX-License-Identifier: Apache-2.0
"""What an importer asks an exporter for, and the answers that it gets."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from crossmem.control.wire import ProtocolError, Refusal, unpack_replies, verify
from crossmem.driver import Exported
from crossmem.models import ShareableHandle

__all__ = ["Leased", "read_reply"]


@dataclass(slots=True)
class Leased:
    """A lease as the importer got it. Its receiver closes the export's descriptors."""

    lease: int
    nbytes: int
    capacity: int
    exported: Exported
    is_recorded: bool = False
    """Whether an import has the lease and ends it."""

    def close_descriptors(self) -> None:
        """Close what no driver took. If this is interrupted, it can be called again."""
        exported = self.exported
        while exported.descriptors:
            descriptor, rest = exported.descriptors[0], exported.descriptors[1:]
            exported.descriptors = rest
            os.close(descriptor)


def read_reply(
    handles: Sequence[ShareableHandle], context: bytes, reply: bytes, descriptors: list[int]
) -> list[Leased | Refusal]:
    """Check a reply and hand out its descriptors."""
    replies = unpack_replies(reply)
    answers: list[Leased | Refusal] = []
    at = 0
    # Their numbers are compared below.
    for handle, one in zip(handles, replies, strict=False):
        if isinstance(one, Refusal):
            answers.append(one)
            continue
        if not verify(one.proof, handle.secret, b"grant", context, one.record):
            msg = "it does not know the secret of the handle"
            raise ProtocolError(msg)
        mine = tuple(descriptors[at : at + one.descriptor_count])
        at += one.descriptor_count
        exported = Exported(one.payloads, mine)
        answers.append(Leased(one.lease, one.nbytes, one.capacity, exported))
    if len(replies) != len(handles) or at != len(descriptors):
        msg = f"{len(replies)} answers, {len(descriptors)} descriptors to {len(handles)} asked"
        raise ProtocolError(msg)
    return answers
