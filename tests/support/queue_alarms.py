# SPDX-License-Identifier: Apache-2.0
"""Real timers end `Queue.get` with an exception, and no item is lost.

    python tests/support/queue_alarms.py COUNT

Prints how many alarms raised, and how many items did not arrive exactly once.
"""

import itertools
import signal
import sys
import threading
from collections import Counter
from contextlib import suppress

import crossmem


class Alarm(BaseException):
    """What the handler raises."""


def raise_alarm(*_: object) -> None:
    raise Alarm


def main(count: int) -> int:
    """Hand items over; return how many did not arrive exactly once."""
    found: Counter[int] = Counter()
    alarms = 0
    signal.signal(signal.SIGALRM, raise_alarm)
    with crossmem.device("host").queue(8, 64, consumers=1, redeliver=True) as queue:

        def feed() -> None:
            for number in range(count):
                queue.put(b"%d" % number, copy="allow", timeout=None)
            queue.finish()

        # The first get() joins the queue, which takes longer than the time to each alarm.
        queue.put(b"0", copy="allow")
        queue.get().release()
        feeder = threading.Thread(target=feed)
        feeder.start()
        with suppress(crossmem.ClosedError):
            for turn in itertools.count():
                buffer = None
                try:
                    try:
                        signal.setitimer(signal.ITIMER_REAL, 1e-5 + turn % 60 * 2e-6)
                        buffer = queue.get(timeout=60)
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                except Alarm:
                    alarms += 1
                if buffer is not None:
                    found[int(buffer.read(buffer.data_length))] += 1
                    buffer.release()
        feeder.join()
    wrong = [number for number in range(count) if found[number] != 1]
    sys.stdout.write(f"{alarms} alarms raised, {len(wrong)} of {count} items are wrong\n")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])) != 0)
