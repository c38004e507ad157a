# SPDX-License-Identifier: Apache-2.0
"""Drivers of plugins that cannot list their devices are refused, and the refusal says why."""

from collections.abc import Callable
from typing import Any

import pytest

import crossmem
from crossmem.models import DeviceInfo
from crossmem.sharing.base.devices import LocalDevice, _made
from crossmem.sharing.base.process import current


def info(ordinal: int, identity: str) -> DeviceInfo:
    return DeviceInfo(ordinal=ordinal, identity=identity, name="A device", total_nbytes=4096)


def fail(*_: object) -> Any:
    raise OSError("the device file cannot be read")


@pytest.mark.parametrize(
    ("devices", "capabilities", "words"),
    [
        (fail, None, "OSError: the device file cannot be read"),
        (lambda: None, None, "TypeError"),
        (lambda: [info(0, "acme:0")], fail, "OSError: the device file cannot be read"),
        (lambda: [info(0, "acme:0")], lambda *_: None, "TypeError"),
        (lambda: [info(0, "acme:0"), info(1, "acme:0")], None, "two devices have one identity"),
        (lambda: [info(0, "acme:0"), info(0, "acme:1")], None, "two devices have one ordinal"),
    ],
)
def test_a_driver_that_cannot_list_its_devices(
    devices: Callable[[], Any], capabilities: Callable[..., Any] | None, words: str
) -> None:
    host = crossmem.device("host")
    assert isinstance(host, LocalDevice)

    class Driver:
        backend = "acme"

        def __init__(self) -> None:
            self.devices = devices
            self.capabilities = capabilities or host.driver.capabilities

    with pytest.raises(
        crossmem.BackendUnavailableError, match=f"'acme' cannot list its devices: {words}"
    ):
        _made(current(), Driver(), None)  # type: ignore[arg-type]
