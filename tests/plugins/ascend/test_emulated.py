# SPDX-License-Identifier: Apache-2.0
"""The driver on the emulated machine: every edition of the rules, several processes, no violation.

The conformance kit runs there too (`tox -e conformance-ascend`); here is what it cannot ask for.
"""

import ctypes
import mmap
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from emulated_sharing import attach, contents, export, free, report_tgid, sharing, unmap

import crossmem
from crossmem.conformance.servers import preload
from crossmem.conformance.speed import SLOWNESS
from crossmem.driver import Block, Exported
from crossmem_ascend.driver import AscendDriver
from crossmem_ascend.errors import CODES
from crossmem_emulated.acl import PROFILES, Acl
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.options import Options

preload("crossmem_emulated.acl", "crossmem_ascend.driver")

MIB = 1 << 20
DEADLINE_S = 60 * SLOWNESS
DEVICE = "ascend:0"
BOTH = ("shareable", "key")
COMPLETE = sorted(name for name, profile in PROFILES.items() if profile.vmm)

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


def share(
    variables: dict[str, str], profile: str, mechanism: str, *, lease: bool = True
) -> list[str]:
    """Share in two processes, and return what they said."""
    environment = {**variables, "CROSSMEM_EMULATED_ACL_PROFILE": profile}
    said = []
    with sharing(DEVICE, environment, mechanism=mechanism) as (exporter, importer):
        try:
            blob = exporter.call(export, lease=lease)
        except crossmem.UnsupportedError as error:
            said.append(f"unsupported: {error.message}")
            blob = exporter.call(export)
        importer.call(attach, DEVICE, blob)
        importer.call(unmap)
        return [*said, exporter.call(contents), str(exporter.call(free))]


@pytest.fixture
def emulated(tmp_path: Path) -> Acl:
    return Acl(options=Options(state=tmp_path / "host", capacity_nbytes=64 * MIB))


def test_a_thread_without_a_context_waits_for_the_work_of_other_threads(emulated: Acl) -> None:
    rt = emulated.rt
    driver = AscendDriver(emulated)
    page = mmap.mmap(-1, mmap.PAGESIZE)
    word = ctypes.c_uint64.from_buffer(page)
    assert rt.set_device(0) == 0
    stream, _ = rt.create_stream()
    address, code = rt.host_register(ctypes.addressof(word), mmap.PAGESIZE, 0)
    assert code == 0
    assert rt.value_wait(address, 1, 0, stream) == 0

    with ThreadPoolExecutor(max_workers=1) as threads:
        done = threads.submit(driver.synchronize, 0)
        with pytest.raises(TimeoutError):
            done.result(0.2)
        word.value = 1
        done.result(DEADLINE_S)

    assert rt.host_unregister(ctypes.addressof(word)) == 0


@pytest.mark.parametrize("mechanism", BOTH)
@pytest.mark.parametrize("profile", COMPLETE)
def test_memory_is_shared_under_every_edition(
    profile: str, mechanism: str, variables: dict[str, str]
) -> None:
    assert share(variables, profile, mechanism) == ["HELLO", "[]"]


@pytest.mark.parametrize("mechanism", BOTH)
def test_raw_handles_need_no_whitelist(mechanism: str, variables: dict[str, str]) -> None:
    assert share(variables, "documented", mechanism, lease=False) == ["HELLO", "[]"]


def test_a_device_that_is_first_used_at_exit(variables: dict[str, str]) -> None:
    run = subprocess.run(
        [sys.executable, "-c", AT_EXIT],
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, **variables},
    )

    assert (run.stdout.strip(), run.returncode) == ("opened", 0), run.stderr


@pytest.mark.ci
def test_an_old_driver_falls_back_to_the_whitelist_only_when_told_to(
    variables: dict[str, str],
) -> None:
    refused, *rest = share(variables, "old-driver", "shareable", lease=False)

    assert refused.startswith("unsupported: this driver cannot export without a whitelist")
    assert rest == ["HELLO", "[]"]


@pytest.mark.parametrize("mechanism", BOTH)
def test_an_importer_that_reports_another_process_is_denied(
    mechanism: str, variables: dict[str, str]
) -> None:
    with sharing(DEVICE, variables, mechanism=mechanism) as (exporter, importer):
        blob = exporter.call(export)
        importer.call(report_tgid, DEVICE, exporter.pid + (1 << 22))
        with pytest.raises(crossmem.AccessDeniedError, match="which is the exporter's"):
            importer.call(attach, DEVICE, blob)

        assert exporter.call(contents) == "hello"
        assert exporter.call(free) == []


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
