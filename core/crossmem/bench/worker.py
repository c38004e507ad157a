# SPDX-License-Identifier: Apache-2.0
"""One process of a benchmark, a producer or a consumer. The module ``pair`` starts it."""

import gc
import os
import resource
import signal
import socket
import sys
import traceback
from typing import Final

from crossmem.bench.channel import Channel, ChannelError
from crossmem.bench.jobs import JOBS, Context
from crossmem.bench.jobs_busy import BUSY_JOBS
from crossmem.bench.jobs_crossmem import CROSSMEM_JOBS
from crossmem.bench.jobs_scale import SCALE_JOBS
from crossmem.bench.peer import peer_class

__all__ = ["PARTNER_TIMEOUT_S", "main"]

PARTNER_TIMEOUT_S: Final = 45.0
"""Time limit of each message between the producer and the consumer, in seconds."""


def main(arguments: list[str]) -> None:
    """Serve jobs until the parent closes its end of the control channel.

    Parameters
    ----------
    arguments
        Six strings: the role (``producer`` or ``consumer``), the name of the peer, the crossmem
        device, the CPU for this process, the descriptor of the control channel, and the descriptor
        of the channel to the other process.
    """
    jobs = {**JOBS, **BUSY_JOBS, **CROSSMEM_JOBS, **SCALE_JOBS}
    role, name, device, cpu, control_fd, partner_fd = arguments
    os.sched_setaffinity(0, {int(cpu)})
    # Each allocation that a job holds needs a descriptor. A job may hold thousands, but the usual
    # soft limit is 1024.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    control = Channel(socket.socket(fileno=int(control_fd)))
    partner = Channel(socket.socket(fileno=int(partner_fd)), timeout_s=PARTNER_TIMEOUT_S)
    try:
        peer = peer_class(name)(device)
        if role == "producer":
            partner.send(peer.serve())
        else:
            peer.connect(partner.receive())
        context = Context(peer, partner)
        control.send_json({"result": "ready"})
        while True:
            try:
                request = control.receive_json()
            except ChannelError:
                return
            # The alarm ends this process if its job hangs, even if the parent is gone.
            signal.alarm(int(request["deadline_s"]) + 5)
            half = jobs[request["job"]][0 if role == "producer" else 1]
            gc.collect()
            gc.disable()
            result = half(context, **request["arguments"])
            gc.enable()
            signal.alarm(0)
            control.send_json({"result": result})
    except Exception as error:  # noqa: BLE001 - the parent reports the error
        traceback.print_exc()
        control.send_json({"error": f"{role}: {type(error).__name__}: {error}"})


if __name__ == "__main__":
    main(sys.argv[1:])
