# SPDX-License-Identifier: Apache-2.0
"""What the plugin registers, and how the vendor's module is found."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from programs import DEADLINE_S

import crossmem
from crossmem.driver.native import LibraryNotFoundError
from crossmem.plugin import API_VERSION, Backend
from crossmem_ascend import hooks, library
from crossmem_ascend.driver import AscendDriver


def find_nothing(api: str, name: str) -> object:
    raise crossmem.BackendUnavailableError(f"nobody has {name} for {api}")


@pytest.fixture
def backend() -> Backend:
    (backend,) = hooks.crossmem_backends(find_nothing)
    return backend


@pytest.fixture(autouse=True)
def _no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the library that this machine may have."""

    def refuse() -> Any:
        msg = "no libascendcl.so can be loaded"
        raise LibraryNotFoundError(msg, ["/opt/lib/libvendor.so: no such file"])

    monkeypatch.setattr(library, "acl_library", refuse)


@pytest.fixture
def opened(acl: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install the stand-in as what the library is made to look like."""
    monkeypatch.setattr(library, "acl_library", object)
    monkeypatch.setattr(library, "open_acl", lambda: acl)
    return acl


@pytest.fixture
def no_pyacl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "acl", raising=False)
    monkeypatch.setattr(sys, "path", [])


def test_what_is_offered(backend: Backend) -> None:
    assert (backend.name, backend.priority) == ("ascend", 20)
    assert backend.api_version == API_VERSION
    assert backend.runtimes == ("pyacl", "ctypes", "emulated")
    assert backend.install_hint


def test_the_entry_point_leads_here() -> None:
    (entry,) = entry_points(group="crossmem", name="ascend")

    assert entry.load() is hooks


@pytest.mark.parametrize("runtime", [None, "pyacl"])
def test_pyacl_is_initialised(
    runtime: str | None, backend: Backend, acl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "acl", acl)
    driver = backend.load(runtime)

    assert isinstance(driver, AscendDriver)
    assert len(driver.devices()) == 2
    assert acl.inits == [()]


def test_somebody_else_may_have_initialised_it(
    backend: Backend, acl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "acl", acl)
    acl.init_code = 100002

    assert backend.load(None).backend == "ascend"


def test_initialisation_can_fail(
    backend: Backend, acl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "acl", acl)
    acl.init_code = 100039
    with pytest.raises(crossmem.DriverError, match=r"acl\.init failed with .*STUB_MODE") as raised:
        backend.load(None)

    assert "LD_LIBRARY_PATH" in str(raised.value)


def test_pyacl_may_be_absent(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "acl", None)
    with pytest.raises(crossmem.BackendUnavailableError, match="cannot be imported") as raised:
        backend.load(None)

    assert "set_env.sh" in str(raised.value)


def test_another_module_may_have_the_name(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "acl", sys)
    with pytest.raises(crossmem.BackendUnavailableError, match="is not pyACL"):
        backend.load("pyacl")


@pytest.mark.parametrize("runtime", [None, "ctypes"])
@pytest.mark.usefixtures("no_pyacl")
def test_without_pyacl_the_library_is_used(
    runtime: str | None, backend: Backend, opened: Any
) -> None:
    assert isinstance(backend.load(runtime), AscendDriver)
    assert opened.inits == [()]


def test_the_library_is_used_where_pyacl_is_broken(
    backend: Backend, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "acl", None)

    assert isinstance(backend.load(None), AscendDriver)
    assert opened.inits == [()]


def test_pyacl_comes_first(
    backend: Backend, acl: Any, fake_acl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = fake_acl()
    monkeypatch.setattr(library, "open_acl", lambda: other)
    monkeypatch.setitem(sys.modules, "acl", acl)
    backend.load(None)

    assert (acl.inits, other.inits) == ([()], [])


@pytest.mark.usefixtures("no_pyacl")
def test_neither_pyacl_nor_the_library(backend: Backend) -> None:
    with pytest.raises(crossmem.BackendUnavailableError, match="no libascendcl") as raised:
        backend.load(None)

    assert raised.value.message.startswith("pyACL cannot be imported: ")
    assert "set_env.sh" in str(raised.value)
    probed = backend.probe()
    assert (probed.state, len(probed.reason.splitlines())) == ("not_installed", 1)
    assert probed.reason.startswith("pyACL (module acl) is not installed, and no libascendcl")


def test_an_emulation_comes_from_another_plugin(acl: Any) -> None:
    asked = []

    def find(api: str, name: str) -> object:
        asked.append((api, name))
        return acl

    (backend,) = hooks.crossmem_backends(find)

    assert isinstance(backend.load("emulated"), AscendDriver)
    assert asked == [("ascend", "emulated")]


def test_the_probe_looks_for_the_module_and_the_devices(
    backend: Backend, acl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "_DEV", tmp_path)
    monkeypatch.setattr(hooks, "find_spec", lambda _: None)
    absent = backend.probe()
    monkeypatch.setitem(sys.modules, "acl", acl)
    acl.rt.devices = 0
    no_device = backend.probe()
    (tmp_path / "davinci0").touch()

    assert (absent.state, no_device.state) == ("not_installed", "unusable")
    assert "davinci" in no_device.reason
    assert "aclrtGetDeviceCount" in no_device.reason
    assert backend.probe().available


@pytest.mark.parametrize("source", ["pyacl", "library"])
@pytest.mark.usefixtures("no_pyacl")
def test_devices_may_have_no_files(
    source: str, backend: Backend, opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "_DEV", tmp_path)
    if source == "pyacl":
        monkeypatch.setitem(sys.modules, "acl", opened)

    assert backend.probe().available
    assert opened.inits == []


@pytest.mark.usefixtures("no_pyacl")
def test_a_count_that_fails_finds_no_device(
    backend: Backend, opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "_DEV", tmp_path)
    opened.rt.get_device_count = lambda: (2, 507899)

    assert backend.probe().state == "unusable"


def test_discovery_imports_nothing_of_the_vendors() -> None:
    script = (
        "import sys; sys.modules['acl'] = None\n"
        "import crossmem_ascend.hooks as hooks\n"
        "hooks.crossmem_backends(None)\n"
        "sys.exit(bool({'crossmem_ascend.driver', 'crossmem_ascend.library'} & {*sys.modules}))"
    )

    assert (
        subprocess.run([sys.executable, "-c", script], check=False, timeout=DEADLINE_S).returncode
        == 0
    )
