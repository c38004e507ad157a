# SPDX-License-Identifier: Apache-2.0
"""Exceptions of signal handlers reach the program, wherever the signal arrives."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from crossmem.conformance.speed import SLOWNESS
from crossmem.signals import raise_if_of_handler


class Alarm(Exception):  # noqa: N818 - no failure
    """A signal handler raised it."""


def raise_alarm(*_: object) -> None:
    raise Alarm


def raise_alarm_and_log(*_: object, log: object = None) -> None:
    raise Alarm


def raise_alarm_once(number: int, _frame: object) -> None:
    """Raise, and leave the next signal to the default action, as many programs do for SIGTERM."""
    signal.signal(number, signal.SIG_IGN)
    raise Alarm


class Handler:
    """An object that is called as a handler."""

    def __call__(self, *_: object) -> None:
        raise Alarm


class Service:
    """Has a method as its handler."""

    def stop(self, *_: object) -> None:
        raise SystemExit(42)


@pytest.fixture
def handle() -> Iterator[Callable[[Any], object]]:
    before = signal.getsignal(signal.SIGALRM)
    yield lambda handler: signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "handler",
    [
        raise_alarm,
        raise_alarm_and_log,
        raise_alarm_once,
        Handler(),
        Service().stop,
        partial(raise_alarm, 1),
    ],
)
def test_an_exception_of_a_handler_is_known(handler: Any, handle: Callable[[Any], object]) -> None:
    handle(handler)

    def plugin() -> None:
        os.kill(os.getpid(), signal.SIGALRM)
        time.sleep(1)

    with pytest.raises((Alarm, SystemExit)) as caught:
        plugin()

    with pytest.raises(type(caught.value)):
        raise_if_of_handler(caught.value)


def test_a_fault_of_a_plugin_is_none_of_a_handler(handle: Callable[[Any], object]) -> None:
    handle(raise_alarm)
    try:
        raise Alarm
    except Alarm as error:
        raise_if_of_handler(error)


PROGRAM = """
import signal, sys
import crossmem

class Alarm(Exception):
    pass

def raise_alarm(*_):
    raise Alarm

swallowed = []
sys.unraisablehook = swallowed.append
signal.signal(signal.SIGALRM, raise_alarm)
device = crossmem.device("host")
memory, pool, queue = device.allocate(64), device.pool(64, 2), device.queue(2, 64)
queue.allocate().release()
lost = 0
for number in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-4 + number * 1e-7)
        for _ in range(100_000):
            {call}
        lost += 1
    except Alarm:
        pass
print(lost, len(swallowed))
"""


@pytest.mark.parametrize(
    "call",
    [
        "memory.write(b'x')",
        "memory.read(1)",
        "memory.view().release()",
        "device.allocate(64).free()",
        "pool.allocate().free()",
        "queue.allocate().release()",
    ],
)
def test_no_call_swallows_an_exception_of_a_handler(call: str) -> None:
    # The locks that test runs check are written in Python, and would swallow exceptions, too.
    environment = {**os.environ, "CROSSMEM_TEST_LOCK_ORDER": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(call=call)],
        capture_output=True,
        text=True,
        timeout=60 * SLOWNESS,
        env=environment,
        check=False,
    )

    assert done.stdout.split() == ["0", "0"], done.stderr
