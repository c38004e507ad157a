# SPDX-License-Identifier: Apache-2.0
"""What the plugin registers."""

import ctypes
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from programs import DEADLINE_S

from crossmem.errors import ConfigurationError
from crossmem.plugin.backend import Backend
from crossmem.plugin.markers import API_VERSION
from crossmem_emulated import hooks
from crossmem_emulated.driver import EmulatedDriver
from crossmem_emulated.hip import Runtime
from crossmem_emulated.options import VARIABLES


def backend(name: str) -> Backend:
    """Return one of the plugin's backends."""
    (found,) = [one for one in hooks.crossmem_backends() if one.name == name]
    return found


@pytest.mark.parametrize("name", ["host", "emulated"])
def test_the_backends_are_used_only_by_name(name: str) -> None:
    one = backend(name)

    assert one.priority is None
    assert one.api_version == API_VERSION
    assert one.runtimes == ()
    assert one.probe().available


def test_the_entry_point_leads_here() -> None:
    (entry,) = entry_points(group="crossmem", name="emulated")

    assert entry.load() is hooks


def test_loading_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CROSSMEM_EMULATED_DEVICES", "3")

    driver = backend("emulated").load(None)

    assert isinstance(driver, EmulatedDriver)
    assert len(driver.devices()) == 3


def test_a_bad_environment_is_reported_where_the_driver_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CROSSMEM_EMULATED_CAPACITY", "lots")

    with pytest.raises(
        ConfigurationError, match=r"CROSSMEM_EMULATED_CAPACITY must be .*, not 'lots'"
    ):
        backend("emulated").load(None)


def test_drivers_get_the_functions_that_fail_in_cupy_on_rocm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CROSSMEM_EMULATED_STATE", str(tmp_path / "host"))
    rt: Any = hooks.crossmem_runtime("hip", "emulated")
    memory = ctypes.create_string_buffer(8)
    rt.hostRegister(ctypes.addressof(memory), 8, 2)
    rt.hostUnregister(ctypes.addressof(memory))

    assert len(rt.ipcGetEventHandle(rt.eventCreateWithFlags(6))) == 64
    with pytest.raises(Runtime("documented").CUDARuntimeError, match="Unknown"):
        Runtime("documented").hostRegister(ctypes.addressof(memory), 8, 2)


def test_host_memory_has_no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.setenv(variable, "nonsense")

    (device,) = backend("host").load(None).devices()

    assert device.identity == "host"


def test_the_probe_says_what_is_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("crossmem_emulated.memory.memfd_create", refuse)
    availability = hooks._probe()

    assert availability.state == "unusable"
    assert availability.reason == "memfd_create failed: Operation not permitted"


def test_the_probe_refuses_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")

    assert hooks._probe().state == "unusable"


def test_discovery_loads_no_driver() -> None:
    script = (
        "import sys, crossmem_emulated.hooks as hooks; hooks.crossmem_backends();"
        "sys.exit('crossmem_emulated.memfd' in sys.modules"
        " or 'crossmem_emulated.memory' in sys.modules)"
    )

    assert (
        subprocess.run([sys.executable, "-c", script], check=False, timeout=DEADLINE_S).returncode
        == 0
    )
