# SPDX-License-Identifier: Apache-2.0
"""Huawei's library through ctypes: prototypes, results in pyACL's shape, and where it is found."""

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import crossmem
from crossmem.conformance.speed import SLOWNESS
from crossmem.driver.native import LibraryNotFoundError
from crossmem_ascend import library as libraries
from crossmem_ascend.driver import AscendDriver
from crossmem_ascend.library import LibraryAcl, folders, open_acl
from crossmem_ascend.prototypes import RT
from crossmem_ascend.pyacl import INSTALL_HINT
from crossmem_ascend.runtime import NOTIFIES, STREAM_VALUES, Rt

SOURCE = Path(__file__).with_name("vendor.c")
MIB = 1 << 20
POINTER = 0x00FF_8123_4567_8000
"""What every function that gives an address gives; it needs more than 47 bits."""
P = f"{POINTER:#x}"
SIZE = 1 << 33
KEY = "0123456789abcdef" * 4
FABRIC = bytes(range(255, 127, -1))
NUMBER = POINTER.to_bytes(8, "little").hex()
PROP = {
    "handleType": 1,
    "allocationType": 2,
    "memAttr": 4,
    "location": {"id": 7, "type": 1},
    "reserve": 5,
}

Case = tuple[str, tuple[Any, ...], str, Any]


class Vendor:
    """A stand-in for the library."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.vendor_record.restype = ctypes.c_char_p
        self.library.vendor_reset()
        self.give(KEY.encode())

    def give(self, key: bytes) -> None:
        """Let exports give a key."""
        # The library keeps its address only.
        self.key = key
        self.library.vendor_key(key)

    def refuse(self, name: str, code: int) -> None:
        """Let a function fail once."""
        self.library.vendor_refuse(name.encode(), code)

    @property
    def record(self) -> list[str]:
        """The calls so far."""
        text: bytes = self.library.vendor_record()
        return text.decode().splitlines()


@pytest.fixture(scope="module")
def build(
    compile_library: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("vendor")

    def build(edition: int, soc: str = '"Ascend910B1"', message: str = '"EE1001: \\xff"') -> Path:
        path = folder / f"edition{edition}{soc == '0'}.so"
        if path.exists():
            return path
        return compile_library(SOURCE, path, EDITION=edition, SOC=soc, MESSAGE=message)

    return build


@pytest.fixture
def vendor(build: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Vendor:
    vendor = Vendor(build(2))
    monkeypatch.setattr(libraries, "acl_library", lambda: vendor.library)
    return vendor


@pytest.fixture
def acl(vendor: Vendor) -> Any:
    return open_acl()


# Every function: its name, what it is called with, what C gets, and what it gives.
FUNCTIONS: list[Case] = [
    ("create_context", (1,), "aclrtCreateContext 1", (POINTER, 0)),
    ("create_stream", (), "aclrtCreateStream", (POINTER, 0)),
    ("destroy_context", (POINTER,), f"aclrtDestroyContext {P}", 0),
    ("destroy_stream", (POINTER,), f"aclrtDestroyStream {P}", 0),
    ("device_can_access_peer", (0, 1), "aclrtDeviceCanAccessPeer 0 1", (1, 0)),
    ("device_enable_peer_access", (1, 0), "aclrtDeviceEnablePeerAccess 1 0", 0),
    ("device_get_bare_tgid", (), "aclrtDeviceGetBareTgid", (4321, 0)),
    (
        "device_get_uuid",
        (1,),
        "aclrtDeviceGetUuid 1",
        ({"bytes": [*range(254, 238, -1)]}, 0),
    ),
    ("device_peer_access_status", (0, 1), "aclrtDevicePeerAccessStatus 0 1", (1, 0)),
    ("free", (POINTER,), f"aclrtFree {P}", 0),
    ("free_physical", (POINTER,), f"aclrtFreePhysical {P}", 0),
    ("get_context", (), "aclrtGetCurrentContext", (POINTER, 0)),
    ("get_device", (), "aclrtGetDevice", (1, 0)),
    ("get_run_mode", (), "aclrtGetRunMode", (1, 0)),
    ("get_device_count", (), "aclrtGetDeviceCount", (2, 0)),
    ("ipc_mem_close", (KEY,), f"aclrtIpcMemClose {KEY}", 0),
    (
        "ipc_mem_get_export_key",
        (POINTER, SIZE, 65, 1),
        f"aclrtIpcMemGetExportKey {P} {SIZE} 65 1",
        (KEY, 0),
    ),
    ("ipc_mem_import_by_key", (KEY, 1), f"aclrtIpcMemImportByKey {KEY} 1", (POINTER, 0)),
    (
        "ipc_mem_set_import_pid",
        (KEY, [70, 1 << 30]),
        f"aclrtIpcMemSetImportPid {KEY} 2\n pid 70\n pid {1 << 30}",
        0,
    ),
    ("malloc", (SIZE, 2), f"aclrtMalloc {SIZE} 2", (POINTER, 0)),
    (
        "malloc_physical",
        (SIZE, PROP, 0),
        f"aclrtMallocPhysical {SIZE} 1 2 4 7 1 5 0",
        (POINTER, 0),
    ),
    ("map_mem", (POINTER, SIZE, 0, POINTER, 0), f"aclrtMapMem {P} {SIZE} 0 {P} 0", 0),
    (
        "mem_export_to_shareable_handle",
        (POINTER, 0, 1),
        f"aclrtMemExportToShareableHandle {P} 0 1",
        (POINTER, 0),
    ),
    (
        "mem_export_to_shareable_handle_v2",
        (POINTER, 1, 1),
        f"aclrtMemExportToShareableHandleV2 {P} 1 1",
        (POINTER, 0),
    ),
    (
        "mem_export_to_shareable_handle_v2",
        (POINTER, 1, 2),
        f"aclrtMemExportToShareableHandleV2 {P} 1 2",
        (FABRIC, 0),
    ),
    (
        "mem_get_allocation_granularity",
        (PROP, 1),
        "aclrtMemGetAllocationGranularity 1 2 4 7 1 5 1",
        (2 * MIB, 0),
    ),
    (
        "mem_import_from_shareable_handle",
        (POINTER, 1),
        f"aclrtMemImportFromShareableHandle {P} 1",
        (POINTER, 0),
    ),
    (
        "mem_import_from_shareable_handle_v2",
        (POINTER, 1, 0),
        f"aclrtMemImportFromShareableHandleV2 {NUMBER} 1 0",
        (POINTER, 0),
    ),
    (
        "mem_import_from_shareable_handle_v2",
        (FABRIC, 2, 0),
        f"aclrtMemImportFromShareableHandleV2 {FABRIC.hex()} 2 0",
        (POINTER, 0),
    ),
    (
        "mem_retain_allocation_handle",
        (POINTER,),
        f"aclrtMemRetainAllocationHandle {P}",
        (POINTER, 0),
    ),
    (
        "mem_set_access",
        (POINTER, SIZE, [(3, 0, 1), (1, 7, 0)]),
        f"aclrtMemSetAccess {P} {SIZE} 2\n access 3 0 1\n access 1 7 0",
        0,
    ),
    (
        "mem_set_pid_to_shareable_handle",
        (POINTER, [70, 71]),
        f"aclrtMemSetPidToShareableHandle {P} 2\n pid 70\n pid 71",
        0,
    ),
    (
        "mem_set_pid_to_shareable_handle_v2",
        (FABRIC, 2, [70]),
        f"aclrtMemSetPidToShareableHandleV2 {FABRIC.hex()} 2 1\n pid 70",
        0,
    ),
    ("memcpy", (POINTER, SIZE, 1, SIZE, 2), f"aclrtMemcpy {P} {SIZE} 0x1 {SIZE} 2", 0),
    (
        "memcpy_async",
        (POINTER, SIZE, 1, SIZE, 3, POINTER),
        f"aclrtMemcpyAsync {P} {SIZE} 0x1 {SIZE} 3 {P}",
        0,
    ),
    ("release_mem_address", (POINTER,), f"aclrtReleaseMemAddress {P}", 0),
    (
        "reserve_mem_address",
        (SIZE, 0, 0, 1),
        f"aclrtReserveMemAddress {SIZE} 0 (nil) 1",
        (POINTER, 0),
    ),
    ("set_context", (POINTER,), f"aclrtSetCurrentContext {P}", 0),
    ("set_device", (1,), "aclrtSetDevice 1", 0),
    ("synchronize_device", (), "aclrtSynchronizeDevice", 0),
    ("synchronize_stream", (POINTER,), f"aclrtSynchronizeStream {P}", 0),
    ("unmap_mem", (POINTER,), f"aclrtUnmapMem {P}", 0),
    ("create_notify", (1,), "aclrtCreateNotify 1", (POINTER, 0)),
    ("destroy_notify", (POINTER,), f"aclrtDestroyNotify {P}", 0),
    ("host_register", (POINTER, SIZE, 8), f"aclrtHostRegister {P} {SIZE} 8", (POINTER, 0)),
    ("host_unregister", (POINTER,), f"aclrtHostUnregister {P}", 0),
    (
        "notify_get_export_key",
        (POINTER, 65, 2),
        f"aclrtNotifyGetExportKey {P} 65 2",
        (KEY, 0),
    ),
    ("notify_import_by_key", (KEY, 2), f"aclrtNotifyImportByKey {KEY} 2", (POINTER, 0)),
    (
        "notify_set_import_pid",
        (POINTER, [70, 71]),
        f"aclrtNotifySetImportPid {P} 2\n pid 70\n pid 71",
        0,
    ),
    ("record_notify", (POINTER, 0), f"aclrtRecordNotify {P} (nil)", 0),
    (
        "value_wait",
        (POINTER, (1 << 64) - 1, 3, POINTER),
        f"aclrtValueWait {P} {(1 << 64) - 1:#x} 3 {P}",
        0,
    ),
    ("value_write", (POINTER, 1 << 63, 0, 0), f"aclrtValueWrite {P} {1 << 63:#x} 0 (nil)", 0),
    ("wait_and_reset_notify", (POINTER, 1, 9), f"aclrtWaitAndResetNotify {P} 0x1 9", 0),
]


@pytest.mark.parametrize(
    "case", [pytest.param(one, id=f"{one[0]}-{number}") for number, one in enumerate(FUNCTIONS)]
)
def test_functions(case: Case, acl: Any, vendor: Vendor) -> None:
    name, given, called, result = case

    assert getattr(acl.rt, name)(*given) == result
    assert vendor.record == called.splitlines()


def test_all_of_the_port_is_there_and_tested() -> None:
    port = {name for name in vars(Rt) if not name.startswith("_")}
    tested = {name for name, *_ in FUNCTIONS}

    assert port <= {*RT}
    assert {*RT} == tested


def test_the_module(acl: Any, vendor: Vendor) -> None:
    assert acl.init() == 0
    assert acl.get_soc_name() == "Ascend910B1"
    assert acl.get_recent_err_msg() == "EE1001: �"
    assert vendor.record == ["aclInit (nil)", "aclrtGetSocName", "aclGetRecentErrMsg"]


def test_a_library_that_says_nothing(build: Callable[..., Path]) -> None:
    acl = LibraryAcl(Vendor(build(2, "0", "0")).library)

    assert acl.get_soc_name() is None
    assert acl.get_recent_err_msg() == ""


def test_properties_may_be_left_out(acl: Any, vendor: Vendor) -> None:
    acl.rt.malloc_physical(SIZE, {"memAttr": 4}, 0)

    assert vendor.record == [f"aclrtMallocPhysical {SIZE} 0 0 4 0 0 0 0"]


def test_a_refusal_is_a_code(acl: Any, vendor: Vendor) -> None:
    vendor.refuse("aclrtMalloc", 207001)
    refused = acl.rt.malloc(SIZE, 0)
    vendor.refuse("aclrtFree", 107000)

    assert refused == (0, 207001)
    assert acl.rt.free(POINTER) == 107000


def test_what_a_refusal_gives_all_the_same(acl: Any, vendor: Vendor) -> None:
    vendor.refuse("aclrtMemExportToShareableHandle", 207000)

    assert acl.rt.mem_export_to_shareable_handle(POINTER, 0, 1) == (POINTER, 207000)


def test_a_key_that_is_no_text_is_closed(acl: Any, vendor: Vendor) -> None:
    vendor.give(b"\xf0\x01" * 32)
    answer = acl.rt.ipc_mem_get_export_key(POINTER, SIZE, 65, 0)
    closed = vendor.library.vendor_record().splitlines()[-1]

    assert answer == ("", 207000)
    assert closed == b"aclrtIpcMemClose " + vendor.key
    assert acl.rt.notify_get_export_key(POINTER, 65, 0) == ("", 207000)


def test_what_an_older_library_lacks(build: Callable[..., Path]) -> None:
    rt = LibraryAcl(Vendor(build(1)).library).rt
    lacking = {name for name in RT if not hasattr(rt, name)}

    assert lacking == {name for name in RT if name.endswith("_v2")} | STREAM_VALUES | NOTIFIES | {
        "mem_retain_allocation_handle",
        "mem_set_access",
    }
    assert not hasattr(rt, "something_else")


def test_the_driver_runs_on_it(acl: Any, vendor: Vendor) -> None:
    driver = AscendDriver(acl)
    block = driver.allocate(0, 3 * MIB, "shareable")
    exported = driver.export(block, "shareable", "rw", raw=False)

    assert driver.capabilities(0, None).mechanisms == ("shareable", "key")
    assert [one.identity for one in driver.devices()] == [
        "npu:" + bytes(range(255 - ordinal, 239 - ordinal, -1)).hex() for ordinal in (0, 1)
    ]
    assert exported.payloads == (bytes.fromhex(NUMBER),)
    assert f"aclrtMemExportToShareableHandle {P} 0 0" in vendor.record


def test_errors_have_the_vendors_words(acl: Any, vendor: Vendor) -> None:
    driver = AscendDriver(acl)
    vendor.refuse("aclrtMallocPhysical", 207001)
    with pytest.raises(crossmem.OutOfMemoryError, match="CANN says: EE1001"):
        driver.allocate(0, MIB, "shareable")


def test_other_threads_run_during_a_slow_import(acl: Any, vendor: Vendor) -> None:
    vendor.library.vendor_hold(1)
    thread = threading.Timer(0.05, vendor.library.vendor_hold, (0,))
    thread.start()
    answer = acl.rt.mem_import_from_shareable_handle(POINTER, 0)
    thread.join()

    # Else the thread could not have let it go, and it would have been refused after a while.
    assert answer == (POINTER, 0)


# Search ---------------------------------------------------------------------------------------


def test_folders_of_cann() -> None:
    usual = (
        "/usr/local/Ascend/ascend-toolkit/latest/lib64",
        "/usr/local/Ascend/nnae/latest/lib64",
    )

    assert folders({}) == usual
    assert folders({"ASCEND_HOME_PATH": "/h", "ASCEND_TOOLKIT_HOME": "/t"}) == (
        "/t/lib64",
        "/h/lib64",
        *usual,
    )


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        msg = "no libascendcl.so can be loaded"
        raise LibraryNotFoundError(msg, ["/opt/lib/libvendor.so: no such file"])

    monkeypatch.setattr(libraries, "acl_library", refuse)
    with pytest.raises(crossmem.BackendUnavailableError, match="no libascendcl") as raised:
        open_acl()

    assert raised.value.hint == INSTALL_HINT


def test_the_library_is_found(build: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libascendcl.so").symlink_to(build(2))
    script = "import crossmem; print(len(crossmem.device('ascend:1', runtime='ctypes').identity))"
    try:
        ctypes.CDLL("libascendcl.so")
    except OSError:
        pass
    else:
        pytest.skip("the loader finds a libascendcl on this machine")
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "ASCEND_TOOLKIT_HOME": str(tmp_path)},
        check=True,
        timeout=60 * SLOWNESS,
        capture_output=True,
        text=True,
    )

    assert ended.stdout.strip() == str(len("npu:") + 32)
