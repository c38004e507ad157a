# SPDX-License-Identifier: Apache-2.0
"""The driver on the emulated machine: every edition of the rules, several processes, no violation.

The conformance kit runs there too (`tox -e conformance-ascend`); here is what it cannot ask for.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import crossmem
from crossmem.driver import Block, Exported
from crossmem_ascend.driver import AscendDriver
from crossmem_ascend.errors import CODES
from crossmem_emulated.acl import PROFILES, Acl
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.options import Options

MIB = 1 << 20
DEADLINE_S = 60
BOTH = ("shareable", "key")
COMPLETE = sorted(name for name, profile in PROFILES.items() if profile.vmm)

IMPORTER = """
import sys, crossmem
device = crossmem.device("ascend:0", runtime="emulated")
with crossmem.attach(bytes.fromhex(sys.argv[1]), device=device) as mapping:
    assert mapping.read(5) == b"hello", mapping.read(5)
    mapping.write(b"HELLO")
print("read", flush=True)
"""
LIAR = """
import sys, crossmem
device = crossmem.device("ascend:0", runtime="emulated")
handle = crossmem.ShareableHandle.from_bytes(bytes.fromhex(sys.argv[1]))
device.driver._tgid = handle.owner.pid + 4194304
try:
    crossmem.attach(handle, device=device)
except crossmem.AccessDeniedError as error:
    print("denied:", error.message.splitlines()[0])
"""
EXPORTER = """
import subprocess, sys, crossmem
device = crossmem.device("ascend:0", runtime="emulated", mechanism=sys.argv[1])
with device.allocate(5000) as allocation:
    allocation.write(b"hello")
    try:
        handle = allocation.export(lease=sys.argv[2] == "leased")
    except crossmem.UnsupportedError as error:
        print(f"unsupported: {error.message}")
        handle = allocation.export()
    importer = [sys.executable, "-c", sys.argv[3], handle.to_bytes().hex()]
    print(subprocess.run(importer, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    print(bytes(allocation.read(5)).decode())
print(device.driver.violations())
"""
# Python 3.12 and later start no thread at exit: there, the error says what to do.
AT_EXIT = """
import atexit, concurrent.futures.thread, sys, crossmem
first, second = (crossmem.device(f"ascend:{one}", runtime="emulated") for one in range(2))
first.allocate(1).free()

def late():
    try:
        second.allocate(1).free()
        print("opened")
    except crossmem.DriverError as error:
        assert sys.version_info >= (3, 12), error
        print("opened" if "before the program exits" in error.hint else error)

atexit.register(late)
"""
Share = Callable[..., list[str]]


@pytest.fixture
def share(tmp_path: Path) -> Share:
    """Share in two fresh processes, and return what they said."""

    def do(
        profile: str, mechanism: str, kind: str = "leased", importer: str = IMPORTER
    ) -> list[str]:
        run = subprocess.run(
            [sys.executable, "-c", EXPORTER, mechanism, kind, importer],
            check=False,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env={
                **os.environ,
                "CROSSMEM_RUN_DIR": str(tmp_path / "run"),
                "CROSSMEM_EMULATED_STATE": str(tmp_path / "host"),
                "CROSSMEM_EMULATED_ACL_PROFILE": profile,
            },
        )
        assert run.returncode == 0, run.stderr
        return run.stdout.splitlines()

    return do


@pytest.fixture
def emulated(tmp_path: Path) -> Acl:
    return Acl(options=Options(state=tmp_path / "host", capacity_nbytes=64 * MIB))


@pytest.mark.parametrize("mechanism", BOTH)
@pytest.mark.parametrize("profile", COMPLETE)
def test_memory_is_shared_under_every_edition(profile: str, mechanism: str, share: Share) -> None:
    assert share(profile, mechanism) == ["read", "HELLO", "[]"]


@pytest.mark.parametrize("mechanism", BOTH)
def test_raw_handles_need_no_whitelist(mechanism: str, share: Share) -> None:
    assert share("documented", mechanism, "raw") == ["read", "HELLO", "[]"]


def test_a_device_that_is_first_used_at_exit(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", AT_EXIT],
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={
            **os.environ,
            "CROSSMEM_RUN_DIR": str(tmp_path / "run"),
            "CROSSMEM_EMULATED_STATE": str(tmp_path / "host"),
        },
    )

    assert (run.stdout.strip(), run.returncode) == ("opened", 0), run.stderr


def test_an_old_driver_falls_back_to_the_whitelist_only_when_told_to(share: Share) -> None:
    refused, *rest = share("old-driver", "shareable", "raw")

    assert refused.startswith("unsupported: this driver cannot export without a whitelist")
    assert rest == ["read", "HELLO", "[]"]


@pytest.mark.parametrize("mechanism", BOTH)
def test_an_importer_that_reports_another_process_is_denied(mechanism: str, share: Share) -> None:
    denied, contents, violations = share("documented", mechanism, importer=LIAR)

    assert denied.startswith("denied: ")
    assert "which is the exporter's" in denied
    assert (contents, violations) == ("hello", "[]")


def test_a_product_without_the_functions_says_so(tmp_path: Path) -> None:
    acl = Acl("310b-rc", options=Options(state=tmp_path))
    driver = AscendDriver(acl)
    with pytest.raises(crossmem.UnsupportedError, match="allocation_granularity failed"):
        driver.allocate(0, 1, "shareable")
    block = driver.allocate(0, 1, "key")
    with pytest.raises(crossmem.UnsupportedError, match="get_export_key failed"):
        driver.export(block, "key", "rw", raw=False)
    driver.free(block)


@pytest.mark.parametrize("call", ["malloc_physical", "reserve_mem_address", "map_mem"])
def test_an_allocation_that_fails_costs_nothing(call: str, emulated: Acl) -> None:
    driver = AscendDriver(emulated)
    driver.free(driver.allocate(0, 1, "shareable"))
    free_before = free_nbytes(emulated)
    emulated.faults.add(f"rt.{call}", 507899)
    with pytest.raises(crossmem.DriverError, match=call):
        driver.allocate(0, 1, "shareable")

    assert free_nbytes(emulated) == free_before
    assert driver.violations() == []


@pytest.mark.parametrize("mechanism", BOTH)
def test_a_full_device_says_so(mechanism: str, emulated: Acl) -> None:
    driver = AscendDriver(emulated)
    with pytest.raises(crossmem.OutOfMemoryError, match="MEMORY_ALLOCATION"):
        driver.allocate(0, 128 * MIB, mechanism)
    block: Block = driver.allocate(0, 32 * MIB, mechanism)
    driver.free(block)

    assert driver.violations() == []


def test_what_no_export_made_is_stale(emulated: Acl) -> None:
    driver = AscendDriver(emulated)
    with pytest.raises(crossmem.StaleHandleError):
        driver.import_(
            0,
            Exported(((1 << 20).to_bytes(8, "little"),)),
            home=0,
            mechanism="shareable",
            nbytes=1,
            capacity=2 * MIB,
            access="rw",
        )


def test_the_table_has_every_code_that_the_emulation_answers() -> None:
    assert {int(code) for code in Code} - {0} <= set(CODES)


def free_nbytes(acl: Any) -> int:
    """Ask as an application does, in a thread's own context."""
    acl.rt.set_device(0)
    free, _total, code = acl.rt.get_mem_info(1)
    assert code == 0
    number: int = free
    return number
