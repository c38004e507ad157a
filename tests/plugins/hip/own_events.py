# SPDX-License-Identifier: Apache-2.0
"""A process opens its own timeline of level ``"event"``; test_own_events.py runs this."""

import sys
from typing import Any

import crossmem

device = crossmem.device(sys.argv[1], runtime="emulated")
with device.timeline("event") as made, crossmem.open_timeline(made.export()) as opened:
    # More values than the ring has events.
    for value in range(1, 40):
        made.signal(value, stream=0)
        opened.wait(value, stream=0)
        assert opened.wait(value) == opened.value == value
    opened.close()
    made.signal(40, stream=0)
    assert made.wait(40) == 40
driver: Any = device.driver
print(driver.violations())
