# SPDX-License-Identifier: Apache-2.0
"""What is declared of AMD's library is complete and lies in memory as AMD's headers say."""

import subprocess
from pathlib import Path
from typing import Any

import cffi
import pytest

from crossmem.errors import BackendNotFoundError
from crossmem_emulated.abi.hip import LIBRARY
from crossmem_emulated.abi.hip.binding import HipBinding
from crossmem_emulated.abi.hip.facts import ATTRIBUTES, FACTS
from crossmem_emulated.abi.library import Prototype, library_named
from crossmem_emulated.abi.sources import declarations
from crossmem_emulated.hip import Runtime
from crossmem_emulated.options import Options


@pytest.fixture(scope="module")
def ffi() -> Any:
    made = cffi.FFI()
    made.cdef(declarations(LIBRARY))
    return made


# Compiled against AMD's headers of ROCm 5.2 and 6.4.
SIZES = {
    "hipDeviceProp_tR0000": 792,
    "hipDeviceProp_tR0600": 1472,
    "hipIpcHandle": 64,
    "hipMemAccessDesc": 12,
    "hipMemAllocationProp": 32,
    "hipPointerAttribute_t": 32,
}
OFFSETS = {
    "hipPointerAttribute_t": {
        "type": 0,
        "device": 4,
        "devicePointer": 8,
        "hostPointer": 16,
        "isManaged": 24,
        "allocationFlags": 28,
    },
    "hipDeviceProp_tR0600": {
        "uuid": 256,
        "totalGlobalMem": 288,
        "multiProcessorCount": 388,
        "pciBusID": 584,
        "pciDeviceID": 588,
        "pciDomainID": 592,
        "gcnArchName": 1160,
    },
}


def test_sizes(ffi: Any) -> None:
    assert {name: ffi.sizeof(name) for name in SIZES} == SIZES


def test_offsets(ffi: Any) -> None:
    for name, offsets in OFFSETS.items():
        assert {field: ffi.offsetof(name, field) for field in offsets} == offsets


def test_versions_in_the_file(library: Path) -> None:
    try:
        done = subprocess.run(
            ["nm", "-D", "--defined-only", library / "libamdhip64.so"],
            capture_output=True,
            text=True,
            check=True,
        )
    except FileNotFoundError:
        pytest.skip("needs nm")
    found = {word.split("@@")[0]: word.split("@@")[-1] for word in done.stdout.split()[2::3]}

    for name, version in LIBRARY.nodes.items():
        assert found[name] == version
    # Nothing else is seen.
    assert {name for name in found if name.startswith("cm_")} == set()


@pytest.mark.parametrize("profile", ["documented", "rocm5"])
def test_every_attribute_has_a_value(profile: str, ffi: Any, tmp_path: Path) -> None:
    runtime = Runtime(profile, options=Options(state=tmp_path))
    fields = {name for name, _ in ffi.typeof("hipDeviceProp_tR0600").fields}
    # What AMD's runtime takes from elsewhere.
    beyond = {
        "canUseStreamWaitValue",
        "dmaBufSupported",
        "expertSchedMode",
        "fineGrainSupport",
        "gpuDirectRDMAWithHipVMMSupported",
        "handleTypeFabricSupported",
        "hostAllocDmaBufSupported",
        "hostNumaId",
        "imageSupport",
        "maxAvailableVgprsPerThread",
        "maxDynDataPrefetchRegions",
        "numberOfXccs",
        "pciChipId",
        "virtualMemoryManagementSupported",
        "wallClockRate",
    }

    assert {name.partition(".")[0] for name in ATTRIBUTES.values()} <= fields | beyond
    assert FACTS.keys() <= fields | {"gcnArch", *beyond}
    _, found = runtime.call("getDeviceProperties", 0)
    assert found.keys() <= fields


@pytest.mark.parametrize(
    ("soname", "profile", "is_old"),
    [
        ("libamdhip64.so.5", None, True),
        ("libamdhip64.so.5", "documented", True),
        ("libamdhip64.so.5", "clr26", True),
        ("libamdhip64.so.7", None, False),
        # As for what was compiled for ROCm 5 and linked with a newer name.
        ("libamdhip64.so.7", "rocm5", True),
    ],
)
def test_the_name_of_the_library_decides_on_numbers(
    soname: str,
    profile: str | None,
    is_old: bool,
    ffi: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CROSSMEM_EMULATED_STATE", str(tmp_path))
    if profile:
        monkeypatch.setenv("CROSSMEM_EMULATED_HIP_PROFILE", profile)
    c = HipBinding(ffi, soname).functions()
    place, version = ffi.new("uintptr_t *"), ffi.new("int *")
    handle, found = ffi.new("hipIpcHandle *"), ffi.new("hipPointerAttribute_t *")

    assert c["hipMalloc"](place, 64) == c["hipRuntimeGetVersion"](version) == 0
    assert c["hipPointerGetAttributes"](found, place[0]) == 0
    assert found.type == (1 if is_old else 2)
    # Only after its flags is it seen that a handle was made by the same process, and not by ROCm 5.
    assert c["hipIpcGetMemHandle"](handle, place[0]) == 0
    own = 0 if version[0] // 10**7 == 5 else 201
    codes = {is_old: own, not is_old: 1}
    assert c["hipIpcOpenMemHandle"](place, handle[0], 1) == codes[False]
    assert c["hipIpcOpenMemHandle"](place, handle[0], 0) == codes[True]


def test_pinned_memory_has_the_flags_that_it_was_given(
    ffi: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CROSSMEM_EMULATED_STATE", str(tmp_path))
    c = HipBinding(ffi, "libamdhip64.so.7").functions()
    place, own = ffi.new("uintptr_t *"), ffi.new("char[64]")
    found = ffi.new("hipPointerAttribute_t *")

    def flags_of(pointer: int) -> int:
        assert c["hipPointerGetAttributes"](found, pointer) == 0
        return int(found.allocationFlags)

    portable, mapped = 1, 2
    assert c["hipHostMalloc"](place, 64, portable) == 0
    assert flags_of(place[0] + 8) == portable
    registered = int(ffi.cast("uintptr_t", own))
    assert c["hipHostRegister"](registered, 64, mapped) == 0
    assert flags_of(registered) == mapped
    assert c["hipMalloc"](place, 64) == 0
    assert flags_of(place[0]) == 0


def test_faults_are_named_as_in_c() -> None:
    assert LIBRARY.entry_of("hipIpcOpenMemHandle") == "ipcOpenMemHandle"
    assert LIBRARY.entry_of("hipHostMalloc") == "hostAlloc"
    assert LIBRARY.entry_of("hipMemcpyHtoDAsync") == "memcpyAsync"
    assert LIBRARY.entry_of("hipModuleLoad") is None
    for one in LIBRARY.functions():
        entry = LIBRARY.entry_of(one.name)
        assert entry is None or entry.isidentifier()


def test_names_of_parameters() -> None:
    assert Prototype("int", "f", "void").names == ()
    assert Prototype("int", "f", "const char *text, int values[4], size_t n").names == (
        "text",
        "values",
        "n",
    )


def test_there_is_no_such_library() -> None:
    with pytest.raises(BackendNotFoundError, match="'abacus'; there are: ascend, hip"):
        library_named("abacus")
