# SPDX-License-Identifier: Apache-2.0
"""Starts the two processes of a peer, runs jobs in these processes, and ends the processes."""

import os
import selectors
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from time import monotonic
from typing import Any, Final, Self

from crossmem.bench.channel import Channel, ChannelError
from crossmem.bench.machine import Cpus

__all__ = ["BenchError", "Pair", "child_environment"]

_START_DEADLINE_S: Final = 60.0
_EXIT_DEADLINE_S: Final = 5.0


class BenchError(Exception):
    """No peer can be measured, or a benchmark process failed, died or did not answer in time."""


def child_environment() -> dict[str, str]:
    """Return environment variables with which a child finds the same modules as this process."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class Pair:
    """A producer and a consumer of one peer: two fresh interpreters, each bound to a CPU.

    Parameters
    ----------
    peer
        Name of the peer, a key of :data:`crossmem.bench.peer.PEERS`.
    device
        The crossmem device of the run.
    cpus
        The CPUs of the two processes.
    environment
        The environment variables of both processes.

    Raises
    ------
    BenchError
        A process failed, died or was not ready within a minute. The error is
        raised after both processes have ended.
    """

    def __init__(self, peer: str, *, device: str, cpus: Cpus, environment: dict[str, str]) -> None:
        with ExitStack() as stack:
            ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._processes: dict[str, subprocess.Popen[bytes]] = {}
            self._controls: dict[str, Channel] = {}
            self._log = stack.enter_context(tempfile.TemporaryFile())
            stack.callback(self._end)
            for role, cpu, end in zip(
                ("producer", "consumer"), (cpus.producer, cpus.consumer), ends, strict=True
            ):
                control, theirs = Channel.couple(timeout_s=_EXIT_DEADLINE_S)
                self._controls[role] = control
                with theirs, end:
                    self._processes[role] = subprocess.Popen(
                        [
                            *(sys.executable, "-P", "-m", "crossmem.bench.worker", role, peer),
                            *(device, str(cpu), str(theirs.fileno()), str(end.fileno())),
                        ],
                        pass_fds=(theirs.fileno(), end.fileno()),
                        stdin=subprocess.DEVNULL,
                        stdout=self._log,
                        stderr=self._log,
                        env=environment,
                    )
            self._collect(_START_DEADLINE_S)
            self._resources = stack.pop_all()

    def run(self, job: str, *, deadline_s: float, **arguments: Any) -> dict[str, Any]:
        """Run a job in both processes. Return the results of both processes in one dictionary.

        Raises
        ------
        BenchError
            A process failed, or the deadline passed. The pair cannot be used after this error.
        """
        request = {"job": job, "arguments": arguments, "deadline_s": deadline_s}
        for control in self._controls.values():
            # If the process has died since its last job, _collect() reports its death.
            with suppress(ChannelError):
                control.send_json(request)
        results = self._collect(deadline_s)
        return {**results["producer"], **results["consumer"]}

    def _collect(self, deadline_s: float) -> dict[str, Any]:
        """Wait for one reply from each process, and return the results by role."""
        end = monotonic() + deadline_s
        results: dict[str, Any] = {}
        failures: list[str] = []
        with selectors.DefaultSelector() as selector:
            for role, control in self._controls.items():
                selector.register(control.fileno(), selectors.EVENT_READ, role)
            # After the failure of one process, the other process has one more second for its reply.
            while selector.get_map() and (left := end - monotonic()) > 0:
                for key, _ in selector.select(left):
                    selector.unregister(key.fd)
                    try:
                        answer = self._controls[key.data].receive_json()
                    except ChannelError:
                        answer = {"error": f"{key.data}: died"}
                    if "error" in answer:
                        failures.append(answer["error"])
                        end = min(end, monotonic() + 1)
                    else:
                        results[key.data] = answer["result"]
        if failures:
            raise BenchError("; ".join(failures) + self._last_words())
        if len(results) < len(self._controls):
            msg = f"no answer within {deadline_s:g} s{self._last_words()}"
            raise BenchError(msg)
        return results

    def _last_words(self) -> str:
        """Return the text ``" (LINE)"``, where LINE is the last line that the processes printed.

        If they printed nothing, return ``""``.
        """
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f" ({lines[-1]})" if lines else ""

    def close(self) -> None:
        """End both processes, and kill those that do not exit within 5 seconds.

        A second call does nothing.
        """
        self._resources.close()

    def _end(self) -> None:
        for control in self._controls.values():
            control.close()
        end = monotonic() + _EXIT_DEADLINE_S
        for process in self._processes.values():
            try:
                process.wait(max(0.0, end - monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
