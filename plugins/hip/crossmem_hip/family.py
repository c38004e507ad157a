# SPDX-License-Identifier: Apache-2.0
"""The differences between the APIs of AMD and NVIDIA, which are similar in most other respects."""

from dataclasses import dataclass
from typing import Final

__all__ = ["CUDA", "FAMILIES", "HIP", "STREAM_VALUES", "VIRTUAL", "Family"]

VIRTUAL: Final = (
    "memAddressFree",
    "memAddressReserve",
    "memCreate",
    "memExportToShareableHandle",
    "memGetAccess",
    "memGetAllocationGranularity",
    "memGetAllocationPropertiesFromHandle",
    "memImportFromShareableHandle",
    "memMap",
    "memRelease",
    "memRetainAllocationHandle",
    "memSetAccess",
    "memUnmap",
)
"""The additional functions of a runtime with virtual memory."""

STREAM_VALUES: Final = (
    "deviceGetAttribute",
    "hostGetDevicePointer",
    "hostRegister",
    "hostUnregister",
    "streamWaitValue64",
    "streamWriteValue64",
)
"""The additional functions of a runtime whose streams write values to host memory and wait for
values there."""

_LAZY_ENABLE_PEER_ACCESS: Final = 1
_ROCM_6: Final = 6
_ROCM_MAJOR: Final = 10_000_000
_DEVICE_POINTER: Final = "hostGetDevicePointer"
_DRIVER_FUNCTIONS: Final = frozenset(
    {
        "deviceGetAttribute",
        "deviceGetUuid",
        "memGetAddressRange",
        "pointerGetAttribute",
        "streamWaitValue64",
        "streamWriteValue64",
        *VIRTUAL,
    }
)


@dataclass(frozen=True, slots=True)
class Family:
    """One vendor.

    Parameters
    ----------
    backend
        Name of the backend. The names of the functions in the vendor's runtime library begin with
        the same letters.
    is_hip
        Whether the vendor is AMD. CuPy's runtime has a flag of the same name and meaning.
    vendor
        The vendor's name in messages.
    library
        The name of the vendor's runtime library.
    masks
        The environment variables that restrict the visible devices.
    device_files
        Glob pattern of the device files below ``/dev``.
    tool
        Command that shows the devices.
    install_hint
        What to do if the vendor's driver, CuPy or the vendor's library is missing or unusable.
    dlpack_device_type
        The number of the device type in DLPack's ``dlpack.h``.
    stream_values
        Number of the device attribute that says whether a device's streams can write 64-bit values
        to memory and wait for 64-bit values there.
    """

    backend: str
    is_hip: bool
    vendor: str
    library: str
    masks: tuple[str, ...]
    device_files: str
    tool: str
    install_hint: str
    dlpack_device_type: int
    stream_values: int

    def function(self, name: str) -> str:
        """Return the vendor's name of a function of CuPy's runtime, such as ``"hipMalloc"``."""
        if not self.is_hip and name == _DEVICE_POINTER:
            return "cuMemHostGetDevicePointer"
        # On CUDA, these functions belong to the driver API, because the runtime API lacks or
        # restricts them.
        prefix = "cu" if not self.is_hip and name in _DRIVER_FUNCTIONS else self.backend
        return f"{prefix}{name[0].upper()}{name[1:]}"

    def open_flags(self, runtime_version: int) -> int:
        """Return the flags with which a handle is opened. AMD's runtime refuses all other flags."""
        return 0 if self.is_old(runtime_version) else _LAZY_ENABLE_PEER_ACCESS

    def is_old(self, runtime_version: int) -> bool:
        """Whether a runtime belongs to a release of ROCm before 6.

        The numbers of flags and memory types in these releases differ from those in later ones.
        """
        return self.is_hip and runtime_version // _ROCM_MAJOR < _ROCM_6


HIP: Final = Family(
    backend="hip",
    is_hip=True,
    vendor="AMD",
    library="libamdhip64",
    masks=("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    device_files="kfd",
    tool="rocminfo",
    install_hint="install ROCm (set ROCM_PATH if it is not in /opt/rocm), and optionally "
    "`pip install cupy-rocm-7-0`; a container needs --device /dev/kfd --device /dev/dri",
    dlpack_device_type=10,
    stream_values=10013,  # hipDeviceAttributeCanUseStreamWaitValue
)

CUDA: Final = Family(
    backend="cuda",
    is_hip=False,
    vendor="NVIDIA",
    library="libcudart",
    masks=("CUDA_VISIBLE_DEVICES",),
    device_files="nvidia[0-9]*",
    tool="nvidia-smi",
    install_hint="install NVIDIA's driver, and `pip install cupy-cuda13x` or only `pip install "
    "nvidia-cuda-runtime`; a container needs the NVIDIA Container Toolkit",
    dlpack_device_type=2,
    # CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, for version 2 of the stream functions.
    stream_values=122,
)

FAMILIES: Final = (HIP, CUDA)
