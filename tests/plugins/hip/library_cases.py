# SPDX-License-Identifier: Apache-2.0
"""The calls of the vendors' libraries: a function, its arguments, the call in C, and the result."""

from typing import Any

POINTER = 0x00FF_8123_4567_8000
"""What every function that gives an address gives; it needs more than 47 bits."""
P = f"{POINTER:#x}"
HANDLE = bytes(range(192, 256))
GIVEN = bytes(range(255, 191, -1))
VERSIONS = {5: 50_221_153, 6: 60_443_484, 70: 70_051_831, 71: 70_126_015}

MIB = 1 << 20

Case = tuple[str, tuple[Any, ...], str, Any]

# Every function: its name, what it is called with, what C gets, and what it gives. "%" stands for
# the beginning of the vendor's name.
FUNCTIONS: list[Case] = [
    ("deviceCanAccessPeer", (0, 1), "%DeviceCanAccessPeer 0 1", 1),
    ("deviceEnablePeerAccess", (1,), "%DeviceEnablePeerAccess 1 0", None),
    ("deviceGetPCIBusId", (1,), "%DeviceGetPCIBusId 1", "0000:A1:00.0"),
    ("deviceSynchronize", (), "%DeviceSynchronize", None),
    ("eventCreateWithFlags", (6,), "%EventCreateWithFlags 6", POINTER),
    ("eventDestroy", (POINTER,), f"%EventDestroy {P}", None),
    ("eventQuery", (POINTER,), f"%EventQuery {P}", None),
    ("eventRecord", (POINTER, 0), f"%EventRecord {P} (nil)", None),
    ("eventSynchronize", (POINTER,), f"%EventSynchronize {P}", None),
    ("free", (POINTER,), f"%Free {P}", None),
    ("getDevice", (), "%GetDevice", 1),
    ("getDeviceCount", (), "%GetDeviceCount", 2),
    ("hostRegister", (POINTER, 1 << 33, 2), f"%HostRegister {P} {1 << 33} 2", None),
    ("hostUnregister", (POINTER,), f"%HostUnregister {P}", None),
    ("ipcCloseMemHandle", (POINTER,), f"%IpcCloseMemHandle {P}", None),
    ("ipcGetEventHandle", (POINTER,), f"%IpcGetEventHandle {P}", GIVEN),
    ("ipcGetMemHandle", (POINTER,), f"%IpcGetMemHandle {P}", GIVEN),
    ("ipcOpenEventHandle", (HANDLE,), f"%IpcOpenEventHandle {HANDLE.hex()}", POINTER),
    ("ipcOpenMemHandle", (HANDLE, 1), f"%IpcOpenMemHandle {HANDLE.hex()} 1", POINTER),
    ("malloc", (1 << 40,), f"%Malloc {1 << 40}", POINTER),
    ("memGetInfo", (), "%MemGetInfo", (1 << 35, 1 << 36)),
    ("memcpy", (POINTER, 0x1000, 1 << 33, 3), f"%Memcpy {P} 0x1000 {1 << 33} 3", None),
    (
        "memcpyAsync",
        (POINTER, 0x1000, 1 << 33, 3, 0),
        f"%MemcpyAsync {P} 0x1000 {1 << 33} 3 (nil)",
        None,
    ),
    (
        "pointerGetAttributes",
        (POINTER + 2,),
        f"%PointerGetAttributes {POINTER + 2:#x}",
        (2, -2, POINTER, 0),
    ),
    ("runtimeGetVersion", (), "%RuntimeGetVersion", VERSIONS[71]),
    ("setDevice", (1,), "%SetDevice 1", None),
    ("streamCreateWithFlags", (1,), "%StreamCreateWithFlags 1", POINTER),
    ("streamDestroy", (POINTER,), f"%StreamDestroy {P}", None),
    ("streamIsCapturing", (0,), "%StreamIsCapturing (nil)", False),
    ("streamIsCapturing", (1,), "%StreamIsCapturing 0x1", True),
    # A capture that is lost already is none.
    ("streamIsCapturing", (2,), "%StreamIsCapturing 0x2", False),
    ("streamSynchronize", (POINTER,), f"%StreamSynchronize {P}", None),
    ("streamWaitEvent", (0, POINTER, 0), f"%StreamWaitEvent (nil) {P} 0", None),
]

# These belong to NVIDIA's driver library.
MORE_FUNCTIONS: list[Case] = [
    ("deviceGetAttribute", (10013, 1), "%DeviceGetAttribute 10013 1", 1),
    ("memAddressFree", (POINTER, 1 << 33), f"%MemAddressFree {P} {1 << 33}", None),
    (
        "memAddressReserve",
        (1 << 33, 0, POINTER, 0),
        f"%MemAddressReserve {1 << 33} 0 {P} 0",
        POINTER,
    ),
    ("memCreate", (1 << 33, 1, 2, 3, 4, 5), f"%MemCreate {1 << 33} 1 2 3 4 5", POINTER),
    ("memExportToShareableHandle", (POINTER, 1, 0), f"%MemExportToShareableHandle {P} 1 0", 77),
    ("memGetAccess", (1, 2, POINTER), f"%MemGetAccess 1 2 {P}", 3),
    (
        "memGetAllocationGranularity",
        (1, 2, 3, 4, 0),
        "%MemGetAllocationGranularity 1 2 3 4 0",
        2 * MIB,
    ),
    (
        "memGetAllocationPropertiesFromHandle",
        (POINTER,),
        f"%MemGetAllocationPropertiesFromHandle {P}",
        (10, 11, 12, 13),
    ),
    ("memImportFromShareableHandle", (9, 1), "%MemImportFromShareableHandle 9 1", POINTER),
    ("memMap", (POINTER, 1 << 33, 0, POINTER, 0), f"%MemMap {P} {1 << 33} 0 {P} 0", None),
    ("memRelease", (POINTER,), f"%MemRelease {P}", None),
    ("memRetainAllocationHandle", (POINTER,), f"%MemRetainAllocationHandle {P}", POINTER),
    (
        "memSetAccess",
        (POINTER, 1 << 33, [(1, 0, 3), (1, 1, 1)]),
        f"%MemSetAccess {P} {1 << 33} 2\n access 1 0 3\n access 1 1 1",
        None,
    ),
    ("memUnmap", (POINTER, 1 << 33), f"%MemUnmap {P} {1 << 33}", None),
    ("pointerGetAttribute", (8, POINTER), f"%PointerGetAttribute 8 {P}", 1),
    ("pointerGetAttribute", (2, POINTER), f"%PointerGetAttribute 2 {P}", 2),
    ("pointerGetAttribute", (7, POINTER), f"%PointerGetAttribute 7 {P}", POINTER),
]


def id_of(case: Case) -> str:
    name, given, *_ = case
    return f"{name}-{given[0]}" if len(given) and given[0] in {0, 1, 2, 7, 8} else name


# Some names of NVIDIA's driver library differ from those of AMD's library by more than the prefix.
RENAMED: list[Case] = [
    ("deviceGetUuid", (1,), "DeviceGetUuid 1", bytes(range(16, 32))),
    ("hostGetDevicePointer", (0x1000, 0), "HostGetDevicePointer 0x1000 0", POINTER),
    (
        "streamWaitValue64",
        (1, POINTER, (1 << 64) - 1, 3),
        f"StreamWaitValue64 0x1 {P} {(1 << 64) - 1:#x} 3",
        None,
    ),
    (
        "streamWriteValue64",
        (0, POINTER, 1 << 63, 0),
        f"StreamWriteValue64 (nil) {P} {1 << 63:#x} 0",
        None,
    ),
]
