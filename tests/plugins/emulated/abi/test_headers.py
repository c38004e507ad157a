# SPDX-License-Identifier: Apache-2.0
"""What is declared here lies in memory as in AMD's headers, and has their numbers."""

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cffi

from crossmem_emulated.abi.hip import LIBRARY
from crossmem_emulated.abi.hip.facts import ATTRIBUTES
from crossmem_emulated.abi.sources import declarations
from crossmem_emulated.hip.attributes import Attribute
from crossmem_emulated.hip.codes import CONSTANTS
from crossmem_emulated.hip.errors import ERRORS
from crossmem_emulated.hip.virtual import READ, READ_WRITE

if TYPE_CHECKING:
    from tests.plugins.emulated.abi.conftest import Release
else:
    Release = Any

POINTERS = {
    "MEMORY_TYPE": Attribute.MEMORY_TYPE,
    "BUFFER_ID": Attribute.BUFFER_ID,
    "IS_MANAGED": Attribute.IS_MANAGED,
    "DEVICE_ORDINAL": Attribute.DEVICE_ORDINAL,
    "IS_LEGACY_HIP_IPC_CAPABLE": Attribute.IS_LEGACY_IPC_CAPABLE,
    "RANGE_START_ADDR": Attribute.RANGE_START_ADDR,
    "RANGE_SIZE": Attribute.RANGE_SIZE,
    "MAPPED": Attribute.MAPPED,
    "ALLOWED_HANDLE_TYPES": Attribute.ALLOWED_HANDLE_TYPES,
    "MEMPOOL_HANDLE": Attribute.MEMPOOL_HANDLE,
}
PREFIX = "hipDeviceAttribute"
TYPES = {
    "hipExtent": "hipExtent",
    "hipIpcHandle": "hipIpcMemHandle_t",
    "hipMemAccessDesc": "hipMemAccessDesc",
    "hipMemLocation": "hipMemLocation",
    "hipPitchedPtr": "hipPitchedPtr",
    "hipPointerAttribute_t": "hipPointerAttribute_t",
    "hipUUID": "hipUUID",
}
# Attributes that are not named after the field that they give.
OTHER_NAMES = {
    18: "KernelExecTimeout",
    26: "MaxBlockDimX",
    29: "MaxGridDimX",
    39: "MaxTexture1DWidth",
    43: "MaxTexture2DWidth",
    51: "MaxTexture3DDepth",
    58: "MaxPitch",
    63: "MultiprocessorCount",
    67: "PciBusId",
    71: "MaxRegistersPerBlock",
    74: "MaxSharedMemoryPerBlock",
    83: "TotalConstantMemory",
    10002: "MaxSharedMemoryPerMultiprocessor",
    10015: "PhysicalMultiProcessorCount",
}


def _values(compiler: str, release: Release, folder: Path, wanted: list[str]) -> list[int]:
    """Return what the compiler makes of expressions, given AMD's headers."""
    source, program = folder / "values.c", folder / "values"
    lines = "".join(f'    printf("%lld\\n", (long long)({one}));\n' for one in wanted)
    source.write_text(
        "#define __HIP_PLATFORM_AMD__ 1\n#include <hip/hip_runtime_api.h>\n#include <stddef.h>\n"
        f"#include <stdio.h>\nint main(void)\n{{\n{lines}    return 0;\n}}\n"
    )
    command = [compiler, *release.options, str(source), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


def test_types_lie_in_memory_as_the_vendor_s(compiler: str, amd: Release, tmp_path: Path) -> None:
    ffi = cffi.FFI()
    ffi.cdef(declarations(LIBRARY))
    is_old = amd.soname == "libamdhip64.so.5"
    wanted = {}
    for ours, theirs in {
        **TYPES,
        f"hipDeviceProp_tR0{'000' if is_old else '600'}": "hipDeviceProp_t",
    }.items():
        wanted[f"sizeof({theirs})"] = ffi.sizeof(ours)
        for field, _ in ffi.typeof(ours).fields:
            name = "memoryType" if is_old and field == "type" else field
            name = field if theirs != "hipPointerAttribute_t" else name
            wanted[f"offsetof({theirs}, {name})"] = ffi.offsetof(ours, field)

    assert dict(zip(wanted, _values(compiler, amd, tmp_path, [*wanted]), strict=True)) == wanted


def _enumerators(amd: Release, beginning: str) -> set[str]:
    text = Path(amd.headers, "hip", "hip_runtime_api.h").read_text("utf-8")
    return set(re.findall(rf"^ *({beginning}[A-Z0-9]\w*)\b *(?:=[^,]*)?,", text, re.MULTILINE))


def test_errors_have_the_vendor_s_numbers(compiler: str, amd: Release, tmp_path: Path) -> None:
    names = sorted(_enumerators(amd, "hipError"))
    numbers = dict(zip(names, _values(compiler, amd, tmp_path, names), strict=True))

    assert len(numbers) > 70
    # A number may have two names, of which the first is what it is called.
    found = {number: numbers.get(ERRORS[number][0]) for number in numbers.values()}
    assert found == {number: number for number in found}


def test_constants_have_the_vendor_s_numbers(compiler: str, amd: Release, tmp_path: Path) -> None:
    names = {
        "hip" + name[0].upper() + name[1:]: number
        for name, number in CONSTANTS.items()
        if name.startswith(("event", "memcpy", "streamCapture", "streamDefault", "streamNon"))
    }
    wanted = {
        **names,
        **{f"HIP_POINTER_ATTRIBUTE_{name}": number for name, number in POINTERS.items()},
        "hipIpcMemLazyEnablePeerAccess": int(amd.soname != "libamdhip64.so.5"),
        "hipMemAccessFlagsProtRead": READ,
        "hipMemAccessFlagsProtReadWrite": READ_WRITE,
        "hipMemHandleTypePosixFileDescriptor": 1,
    }

    assert dict(zip(wanted, _values(compiler, amd, tmp_path, [*wanted]), strict=True)) == wanted


def test_attributes_have_the_vendor_s_numbers(compiler: str, amd: Release, tmp_path: Path) -> None:
    known = _enumerators(amd, PREFIX)
    named = {
        number: PREFIX + OTHER_NAMES.get(number, field[0].upper() + field[1:])
        for number, field in ATTRIBUTES.items()
    }
    wanted = {name: number for number, name in named.items() if name in known}

    assert len(wanted) > 50
    assert dict(zip(wanted, _values(compiler, amd, tmp_path, [*wanted]), strict=True)) == wanted
