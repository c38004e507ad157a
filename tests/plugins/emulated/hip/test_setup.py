# SPDX-License-Identifier: Apache-2.0
"""How an emulation is set up: profiles, the environment, folders, several in one process."""

from pathlib import Path
from typing import Any

import pytest

from crossmem.errors import ConfigurationError
from crossmem_emulated.hip import PROFILES, Runtime
from crossmem_emulated.hooks import crossmem_runtime
from crossmem_emulated.options import Options

BLOCK = 2 << 20


def test_profiles_that_there_are_not() -> None:
    with pytest.raises(ConfigurationError, match="documented, clr24, clr26, rocm5, cuda"):
        Runtime("clr25")


@pytest.mark.parametrize("place", ["/proc/no", "/dev/null"])
def test_folders_that_cannot_be(place: str) -> None:
    with pytest.raises(ConfigurationError, match="folder"):
        Runtime(options=Options(state=Path(place)))


@pytest.mark.parametrize(
    ("api", "expected"), [("hip", "clr26 lax"), ("cuda", "cuda lax"), ("other", None)]
)
def test_the_environment_configures_the_runtime(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, api: str, expected: str | None
) -> None:
    monkeypatch.setenv("CROSSMEM_EMULATED_STATE", str(tmp_path))
    monkeypatch.setenv("CROSSMEM_EMULATED_HIP_PROFILE", "clr26")
    monkeypatch.setenv("CROSSMEM_EMULATED_STRICT", "0")

    found = crossmem_runtime(api, "emulated")

    assert (
        found is None if expected is None else repr(found) == f"<Runtime {expected} on {tmp_path}>"
    )
    assert crossmem_runtime(api, "cupy") is None


@pytest.mark.parametrize("profile", PROFILES)
def test_what_the_module_tells_of_itself(tmp_path: Path, profile: str) -> None:
    runtime: Any = Runtime(profile, options=Options(state=tmp_path))
    properties = runtime.getDeviceProperties(0)

    assert runtime.is_hip == (profile != "cuda")
    # CuPy shows a UUID only where it is built for CUDA.
    assert ("uuid" in properties) == (profile == "cuda")
    assert (
        runtime.runtimeGetVersion() // 10**7
        == {
            "documented": 7,
            "clr24": 6,
            "clr26": 10,
            "rocm5": 5,
            "cuda": 0,
        }[profile]
    )
    bus = f"{properties['pciDomainID']:04x}:{properties['pciBusID']:02x}:"
    assert runtime.deviceGetPCIBusId(0).startswith(bus)
    assert runtime.deviceGetAttribute(runtime.cudaDevAttrPciBusId, 0) == properties["pciBusID"]
    runtime.machine.close()


@pytest.mark.parametrize("strict", [False, True])
def test_programs_are_told_whether_the_host_can_touch_a_device(
    tmp_path: Path, strict: bool
) -> None:
    runtime: Any = Runtime(strict=strict, options=Options(state=tmp_path))

    assert runtime.getDeviceProperties(0)["isLargeBar"] == int(not strict)
    runtime.machine.close()


def test_uuids_that_cupy_cuts_off(tmp_path: Path) -> None:
    runtime: Any = Runtime("cuda", options=Options(state=tmp_path))

    assert [len(runtime.getDeviceProperties(device)["uuid"]) for device in range(2)] == [16, 9]
    runtime.machine.close()


def test_many_devices_have_different_buses(tmp_path: Path) -> None:
    runtime: Any = Runtime(options=Options(state=tmp_path, devices=1024))
    names = {runtime.deviceGetPCIBusId(device) for device in range(1024)}

    assert len(names) == 1024
    assert runtime.deviceGetByPCIBusId(max(names).upper()) < 1024
    runtime.machine.close()


@pytest.mark.parametrize("text", ["leak", "leak-on-close,", ","])
def test_quirks_that_there_are_not(text: str) -> None:
    with pytest.raises(ConfigurationError, match="leak-on-close"):
        Options.from_environ({"CROSSMEM_EMULATED_HIP_QUIRKS": text})


def test_several_quirks() -> None:
    text = "leak-on-close, slow-open"

    found = Options.from_environ({"CROSSMEM_EMULATED_HIP_QUIRKS": text}).hip_quirks

    assert found == ("leak-on-close", "slow-open")


def test_two_vendors_on_one_host(tmp_path: Path) -> None:
    """They share the devices, as the tables of one driver are not the other's."""
    options = Options(state=tmp_path, capacity_nbytes=64 << 20)
    hip: Any = Runtime("documented", options=options)
    cuda: Any = Runtime("cuda", options=options)
    pointer = hip.malloc(BLOCK)

    assert cuda.memGetInfo()[0] == (64 << 20) - BLOCK
    hip.free(pointer)
    hip.machine.close()
    cuda.machine.close()
