# SPDX-License-Identifier: Apache-2.0
"""Address ranges that two threads give back at once."""

import threading
from typing import cast

import pytest

import crossmem
from crossmem.driver import AddressRanges, Reserved


def test_the_reaper_and_the_owner_release_a_range_once(monkeypatch: pytest.MonkeyPatch) -> None:
    device = crossmem.device("emulated:0")
    addresses = device.reserve(1)
    driver = cast("AddressRanges", device.driver)
    release = driver.release
    released: list[int] = []

    def release_slowly(reserved: Reserved) -> None:
        released.append(reserved.pointer)
        # A second release would come while this one is at the vendor.
        collector = threading.Thread(target=crossmem.collect)
        collector.start()
        collector.join(0.5)
        release(reserved)

    monkeypatch.setattr(driver, "release", release_slowly)
    addresses.release()

    assert len(released) == 1
