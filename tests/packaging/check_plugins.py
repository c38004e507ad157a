# SPDX-License-Identifier: Apache-2.0
"""Check, where the projects `acme` and `broken` are installed, that crossmem finds both for what
they are. Run by `tox -e thirdparty`.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import crossmem

TIMEOUT_S = 60


def devices_report() -> dict[str, Any]:
    command = Path(sys.executable).with_name("crossmem")
    run = subprocess.run(
        [command, "devices", "--json"], check=True, stdout=subprocess.PIPE, timeout=TIMEOUT_S
    )
    report: dict[str, Any] = json.loads(run.stdout)
    return report


def check_the_broken_plugin_is_reported(report: dict[str, Any]) -> None:
    (failure,) = report["failed_plugins"]
    assert failure["plugin"] == "broken", failure
    assert failure["distribution"] == "crossmem-broken", failure
    assert failure["version"] == "0.0.7", failure
    assert "OSError" in failure["error"], failure
    assert "libbroken.so.1" in failure["error"], failure


def check_the_others_work(report: dict[str, Any]) -> None:
    names = {device["device"] for device in report["devices"]}
    assert {"acme:0", "acme:1", "emulated:0"} <= names, names


def check_real_boards_come_before_emulations(report: dict[str, Any]) -> None:
    assert report["default"] == "acme:0", report["default"]
    with crossmem.device(None).allocate(5000) as allocation:
        assert allocation.device.backend == "acme", allocation.device
        allocation.write(b"made by a third party")
        assert bytes(allocation.read(21)) == b"made by a third party"


if __name__ == "__main__":
    found = devices_report()
    check_the_broken_plugin_is_reported(found)
    check_the_others_work(found)
    check_real_boards_come_before_emulations(found)
    print("acme works, broken is reported")
