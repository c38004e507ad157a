# SPDX-License-Identifier: Apache-2.0
"""What the plugin registers, and how CuPy is found."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from programs import DEADLINE_S

import crossmem
from crossmem.driver.native import LibraryNotFoundError
from crossmem.plugin import API_VERSION, Backend
from crossmem_hip import hooks, library, search
from crossmem_hip.cupy import RUNTIME
from crossmem_hip.driver import GpuDriver
from crossmem_hip.family import Family
from crossmem_hip.runtime import NEEDED


def find_nothing(api: str, name: str) -> object:
    raise crossmem.BackendUnavailableError(f"nobody has {name} for {api}")


@pytest.fixture
def backend(family: Family) -> Backend:
    found = {one.name: one for one in hooks.crossmem_backends(find_nothing)}
    return found[family.backend]


@pytest.fixture(autouse=True)
def _no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the libraries that this machine may have."""

    def refuse(_: Family) -> Any:
        msg = "no libvendor.so can be loaded"
        raise LibraryNotFoundError(msg, ["/opt/lib/libvendor.so: no such file"])

    for module in (search, library):
        monkeypatch.setattr(module, "runtime_library", refuse)


@pytest.fixture
def opened(rt: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install the stand-in as what the vendor's library is made to look like."""
    for module in (search, library):
        monkeypatch.setattr(module, "runtime_library", lambda _: object())
    monkeypatch.setattr(library, "open_runtime", lambda _: rt)
    return rt


@pytest.fixture
def no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "find_spec", lambda _: None)


@pytest.fixture
def cupy(rt: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install the stand-in as CuPy's module."""
    monkeypatch.setattr(hooks, "find_spec", lambda _: object())
    monkeypatch.setitem(sys.modules, RUNTIME, rt)
    return rt


def test_what_is_offered() -> None:
    found = hooks.crossmem_backends(find_nothing)

    assert [one.name for one in found] == ["hip", "cuda"]
    for one in found:
        assert (one.api_version, one.priority) == (API_VERSION, 30)
        assert one.runtimes == ("cupy", "ctypes", "emulated")
        assert one.install_hint


def test_the_entry_point_leads_here() -> None:
    (entry,) = entry_points(group="crossmem", name="hip")

    assert entry.load() is hooks


@pytest.mark.parametrize("runtime", [None, "cupy"])
def test_cupy_is_used(runtime: str | None, backend: Backend, cupy: Any) -> None:
    driver = backend.load(runtime)

    assert isinstance(driver, GpuDriver)
    assert driver.backend == backend.name
    assert len(driver.devices()) == 2


def test_a_cupy_for_the_other_vendor(backend: Backend, cupy: Any) -> None:
    cupy.is_hip = not cupy.is_hip
    with pytest.raises(crossmem.BackendUnavailableError, match=r"is for (AMD|NVIDIA)") as raised:
        backend.load(None)

    assert "pip install cupy-" in str(raised.value)
    assert backend.probe().state == "unusable"
    assert "is for" in backend.probe().reason


def test_a_cupy_whose_libraries_are_missing(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "find_spec", lambda _: object())
    monkeypatch.setitem(sys.modules, RUNTIME, None)
    with pytest.raises(crossmem.BackendUnavailableError, match="cannot be imported"):
        backend.load(None)

    assert backend.probe().state == "unusable"
    assert "cannot be imported" in backend.probe().reason


def test_a_library_that_cupy_misses_is_named(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> Any:
        raise ImportError("libx.so.7: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(hooks, "find_spec", lambda _: object())
    monkeypatch.setattr("crossmem_hip.cupy.import_module", fail)

    assert backend.probe().reason.startswith("CuPy cannot load libx.so.7, and ")


def test_another_module_may_have_the_name(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, RUNTIME, ModuleType("something"))
    with pytest.raises(crossmem.BackendUnavailableError, match="is not CuPy's runtime"):
        backend.load("cupy")


@pytest.mark.parametrize("runtime", [None, "ctypes"])
@pytest.mark.usefixtures("no_cupy")
def test_without_cupy_the_library_is_used(
    runtime: str | None, backend: Backend, opened: Any
) -> None:
    driver = backend.load(runtime)

    assert isinstance(driver, GpuDriver)
    assert "getDeviceCount" in opened.named()


def test_the_library_is_used_where_cupy_is_the_other_vendors(
    backend: Backend, cupy: Any, opened: Any, fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, RUNTIME, fake(is_hip=not cupy.is_hip))

    assert isinstance(backend.load(None), GpuDriver)
    assert "getDeviceCount" in opened.named()


def test_cupy_comes_first(
    backend: Backend, cupy: Any, fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = fake()
    monkeypatch.setattr(library, "open_runtime", lambda _: other)
    backend.load(None)

    assert "getDeviceCount" in cupy.named()
    assert other.calls == []


def test_the_library_needs_no_cupy(
    backend: Backend, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "find_spec", None)
    monkeypatch.setitem(sys.modules, RUNTIME, None)

    assert isinstance(backend.load("ctypes"), GpuDriver)


@pytest.mark.parametrize("runtime", [None, "ctypes"])
@pytest.mark.usefixtures("no_cupy")
def test_neither_cupy_nor_the_library(
    runtime: str | None, backend: Backend, family: Family
) -> None:
    with pytest.raises(crossmem.BackendUnavailableError, match="no libvendor") as raised:
        backend.load(runtime)

    assert raised.value.message.startswith("CuPy is not installed, and ") == (runtime is None)
    assert raised.value.hint == family.install_hint
    probed = backend.probe()
    assert (probed.state, len(probed.reason.splitlines())) == ("not_installed", 1)
    assert probed.reason.startswith("CuPy is not installed, and no libvendor.so")


def test_an_emulation_comes_from_another_plugin(family: Family, rt: Any) -> None:
    asked = []

    def find(api: str, name: str) -> object:
        asked.append((api, name))
        return rt

    backend = next(one for one in hooks.crossmem_backends(find) if one.name == family.backend)

    assert isinstance(backend.load("emulated"), GpuDriver)
    assert asked == [(family.backend, "emulated")]


def test_the_probe_looks_for_cupy_and_the_devices(
    backend: Backend, family: Family, cupy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "_DEV", tmp_path)
    count = cupy.getDeviceCount
    cupy.getDeviceCount = lambda: 0
    no_device = backend.probe()
    cupy.getDeviceCount = count
    (tmp_path / family.device_files.replace("[0-9]*", "0")).touch()
    usable = backend.probe()
    monkeypatch.setattr(hooks, "find_spec", lambda _: None)
    absent = backend.probe()

    assert (absent.state, no_device.state) == ("not_installed", "unusable")
    assert f"no {family.vendor} GPU found" in no_device.reason
    assert usable.available
    assert cupy.calls == []


@pytest.mark.parametrize("is_cupy", [True, False])
def test_devices_without_files_are_devices(
    is_cupy: bool,
    backend: Backend,
    cupy: Any,
    opened: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Under `crossmem emulate`, and where the vendor's device files have other names.
    monkeypatch.setattr(hooks, "_DEV", tmp_path)
    if not is_cupy:
        monkeypatch.setattr(hooks, "find_spec", lambda _: None)

    assert backend.probe().available

    def refuse() -> int:
        raise cupy.CUDARuntimeError(100)

    cupy.getDeviceCount = opened.getDeviceCount = refuse
    assert not backend.probe().available


def test_the_installed_cupy_has_all_that_is_needed() -> None:
    runtime = pytest.importorskip(RUNTIME, reason="CuPy is not installed", exc_type=ImportError)
    missing = [name for name in (*NEEDED, "streamIsCapturing") if not hasattr(runtime, name)]

    assert missing == []


def test_the_installed_cupy_says_in_one_line_what_is_missing(tmp_path: Path) -> None:
    runtime = pytest.importorskip(RUNTIME, reason="CuPy is not installed", exc_type=ImportError)
    own = "hip" if runtime.is_hip else "cuda"
    found = {one.name: one for one in hooks.crossmem_backends(find_nothing)}
    other = next(one for name, one in found.items() if name != own).probe()

    assert "the installed CuPy is for" in other.reason
    if found[own].probe().available:
        pytest.skip("this machine has a device")
    assert len(found[own].probe().reason.splitlines()) == 1
    with pytest.raises(crossmem.BackendUnavailableError, match=r"finds no d(river|evice)"):
        found[own].load("cupy")


def test_discovery_imports_nothing_of_the_vendors() -> None:
    script = (
        "import sys\n"
        "for name in ('cupy', 'cupy_backends', 'torch'): sys.modules[name] = None\n"
        "import crossmem_hip.hooks as hooks\n"
        "hooks.crossmem_backends(None)\n"
        "ours = {f'crossmem_hip.{name}' for name in ('cupy', 'driver', 'library', 'search')}\n"
        "sys.exit(bool(ours & {*sys.modules}))"
    )

    assert (
        subprocess.run([sys.executable, "-c", script], check=False, timeout=DEADLINE_S).returncode
        == 0
    )
