# SPDX-License-Identifier: Apache-2.0
"""A program that was linked with AMD's library finds all symbols in the versions it asks for."""

import ctypes
import math
import os
import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from crossmem_emulated.abi.hip import LIBRARY

if TYPE_CHECKING:
    from tests.plugins.emulated.abi.conftest import Run
else:
    Run = Any

# From the export maps of AMD's releases: what each node began with, and what is easily misplaced.
NODES = {
    "hip_4.2": (
        "__gnu_f2h_ieee __hipGetPCH __hipRegisterFatBinary hipChooseDeviceR0000 hipFree "
        "hipDeviceGetTexture1DLinearMaxWidth hipGetDevicePropertiesR0000 hipIpcOpenMemHandle "
        "hipCreateSurfaceObject hipExtModuleLaunchKernel hipPointerSetAttribute hipStreamGetDevice "
        "hipCreateChannelDesc hipEnableActivityCallback hipGetLastError hiprtcGetErrorString "
        "hipTexRefGetBorderColor hiprtcLinkCreate hiprtcVersion"
    ),
    "hip_4.3": "hipGraphCreate hipImportExternalMemory hipStreamBeginCapture",
    "hip_4.4": "hipGraphAddDependencies hipStreamWaitValue32",
    "hip_4.5": "amd_dbgapi_get_build_name hipDeviceGraphMemTrim hipStreamGetCaptureInfo_v2",
    "hip_5.0": "hipGraphKernelNodeSetAttribute hipPointerGetAttribute",
    "hip_5.1": "hipMallocAsync hipMemCreate hipMemPoolExportPointer",
    "hip_5.2": "hipEventRecord_spt hipMemcpyAsync_spt",
    "hip_5.3": (
        "hipDeviceSetLimit hipDrvGetErrorName hipGraphLaunch_spt hipGraphUpload hipLaunchHostFunc "
        "hipMemsetAsync_spt hipRegisterTracerCallback hipUserObjectCreate hiprtcGetBitcode"
    ),
    "hip_5.5": "hipGraphAddMemAllocNode hipGraphAddNode hipModuleLaunchCooperativeKernel",
    "hip_5.6": "hipArrayGetInfo hipDrvGraphAddMemcpyNode",
    "hip_6.0": (
        "hipChooseDeviceR0600 hipDrvGraphMemcpyNodeGetParams hipDrvGraphMemcpyNodeSetParams "
        "hipExtGetLastError hipGetDevicePropertiesR0600"
    ),
    "hip_6.1": "hipGetProcAddress hipGraphInstantiateWithParams hipStreamBeginCaptureToGraph",
    "hip_6.2": "hipGraphExecGetFlags hipMemcpyAtoD hipSetValidDevices",
    "hip_6.3": "hipExtHostAlloc",
    "hip_6.4": "hipEventRecordWithFlags hipLinkCreate hipStreamBatchMemOp",
    "hip_6.5": "hipDrvLaunchKernelEx hipLaunchKernelExC hipMemGetHandleForAddressRange",
    "hip_7.1": "hipGetDriverEntryPoint hipMemAdvise_v2 hipMemcpyBatchAsync hipStreamGetId",
    "hip_7.2": "hipGetProcAddress_spt hipKernelGetName hipLibraryLoadData hipMemGetMemPool",
}
# What such a program calls: what is emulated, what is refused, and what gives no code.
CALLS = """
typedef struct { int x, y, z, w, kind; } format;
extern format hipCreateChannelDesc(int, int, int, int, int);
extern int hipExtHostAlloc(void **, unsigned long, unsigned int), hipFree(void *);
extern int hipGetLastError(void), hipMemAdvise_v2(void), hiprtcVersion(int *, int *);
extern const char *hiprtcGetErrorString(int), *amd_dbgapi_get_build_name(void);
extern void __hipGetPCH(const char **, unsigned int *), hipRegisterTracerCallback(void *);
extern _Bool hipEnableActivityCallback(unsigned int, _Bool);
static int calls(void)
{
    void *memory = 0;
    const char *text = "none";
    unsigned int size = 7;
    format made = hipCreateChannelDesc(8, 16, 24, 32, 1);

    __hipGetPCH(&text, &size);
    hipRegisterTracerCallback(0);
    return hipExtHostAlloc(&memory, 8, 0) || hiprtcVersion(0, 0) != 11 ||
           hipGetLastError() || hipMemAdvise_v2() != 801 || hipMemAdvise_v2() != 801 ||
           hipGetLastError() != 801 || hiprtcGetErrorString(11)[13] != 'I' ||
           hiprtcGetErrorString(77)[0] != 'u' || text || size || *amd_dbgapi_get_build_name() ||
           hipEnableActivityCallback(1, 1) || made.y != 16 || made.kind != 1;
}
"""


def _link(
    compiler: str,
    folder: Path,
    nodes: dict[str, str],
    code: str = "",
    soname: str = LIBRARY.sonames[0],
) -> Path:
    """Return a program that was linked with a library that is as AMD's in what it exports."""
    names = [name for text in nodes.values() for name in text.split()]
    library, program = folder / "libvendor.so", folder / "program"
    versions, stub, main = folder / "versions", folder / "stub.c", folder / "main.c"
    versions.write_text(
        "".join(f"{node} {{ {'; '.join(text.split())}; }};\n" for node, text in nodes.items())
    )
    stub.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in names))
    called = set(names) - {name for name in names if f"{name}(" in code}
    main.write_text(
        code
        + "".join(f"extern int {name}(void);\n" for name in sorted(called))
        + f"static int (*const used[])(void) = {{{', '.join(sorted(called))}}};\n"
        + f"int main(void) {{ return !used[0] || {'calls()' if code else '0'}; }}\n"
    )
    versioned = ["-shared", "-fPIC", f"-Wl,-soname,{soname}", f"-Wl,--version-script={versions}"]
    for command in (
        [*versioned, str(stub), "-o", str(library)],
        [str(main), "-no-pie", "-fno-pie", "-o", str(program), str(library)],
    ):
        done = subprocess.run([compiler, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return program


def test_every_name_has_the_vendor_s_version() -> None:
    wanted = {name: node for node, text in NODES.items() for name in text.split()}

    assert {name: LIBRARY.nodes[name] for name in wanted} == wanted
    assert set(LIBRARY.nodes.values()) == NODES.keys()
    assert set(LIBRARY.nodes) == set(LIBRARY.exports())
    # Nothing of ROCm 6.0 but this: what came later, or before, is elsewhere.
    assert {name for name, node in LIBRARY.nodes.items() if node == "hip_6.0"} == set(
        NODES["hip_6.0"].split()
    )


@pytest.mark.parametrize("soname", LIBRARY.sonames)
def test_a_program_linked_with_the_vendor_s_library_starts(
    compiler: str, run: Run, tmp_path: Path, soname: str
) -> None:
    # All symbols are looked up, and all versions checked, before it begins.
    done = run(_link(compiler, tmp_path, NODES, CALLS, soname), LD_BIND_NOW="1")

    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    for name in ("hipMemAdvise_v2", "hipRegisterTracerCallback", "hiprtcVersion"):
        assert done.stderr.count(f"does not emulate {name}:") == 1


@pytest.mark.parametrize(
    ("nodes", "complaint"),
    [
        ({"hip_9.9": "hipFree"}, "version `hip_9.9' not found"),
        ({"hip_6.0": "hipFree", "hip_6.1": "hipGetProcAddress"}, "hipFree"),
        ({"hip_4.2": "hipNobodyHasIt"}, "hipNobodyHasIt"),
    ],
)
def test_the_loader_checks_versions(
    compiler: str, run: Run, tmp_path: Path, nodes: dict[str, str], complaint: str
) -> None:
    done = run(_link(compiler, tmp_path, nodes), LD_BIND_NOW="1")

    assert done.returncode != 0
    assert complaint in done.stderr


@pytest.fixture(scope="module")
def halves(library: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(os.fspath(library / LIBRARY.sonames[0]))
    half, single = ctypes.c_ushort, ctypes.c_float
    loaded.__gnu_h2f_ieee.argtypes, loaded.__gnu_h2f_ieee.restype = [half], single
    loaded.__gnu_f2h_ieee.argtypes, loaded.__gnu_f2h_ieee.restype = [single], half
    return loaded


def test_halves_become_floats_and_back(halves: ctypes.CDLL) -> None:
    widen, narrow = getattr(halves, "__gnu_h2f_ieee"), getattr(halves, "__gnu_f2h_ieee")
    for bits in range(1 << 16):
        (value,) = struct.unpack("<e", struct.pack("<H", bits))
        found = widen(bits)
        if math.isnan(value):
            assert math.isnan(found)
            assert math.isnan(widen(narrow(found)))
        else:
            assert (found, math.copysign(1, found)) == (value, math.copysign(1, value))
            assert narrow(found) == bits


def test_floats_become_the_nearest_half(halves: ctypes.CDLL) -> None:
    narrow = getattr(halves, "__gnu_f2h_ieee")
    for bits in range(0x7C00):
        low, high = struct.unpack("<2e", struct.pack("<2H", bits, min(bits + 1, 0x7BFF)))
        middle = (low + high) / 2
        for value in (middle, math.nextafter(middle, 0), middle * (1 + 2**-20), -middle):
            (wanted,) = struct.unpack("<H", struct.pack("<e", ctypes.c_float(value).value))
            assert narrow(value) == wanted
    assert [narrow(value) for value in (65519.0, 65520.0, 1e30, -math.inf)] == [
        0x7BFF,
        0x7C00,
        0x7C00,
        0xFC00,
    ]
