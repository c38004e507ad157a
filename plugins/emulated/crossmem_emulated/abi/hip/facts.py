# SPDX-License-Identifier: Apache-2.0
"""Constant properties of the emulated devices, and the names of attributes."""

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["ATTRIBUTES", "FACTS", "POINTERS"]

_KIB: Final = 1 << 10

FACTS: Final[Mapping[str, Any]] = {
    "asyncEngineCount": 2,
    "canUseStreamWaitValue": 1,
    "clockInstructionRate": 100_000,
    "clockRate": 2_100_000,
    "concurrentKernels": 1,
    "concurrentManagedAccess": 1,
    "cooperativeLaunch": 1,
    "cooperativeMultiDeviceLaunch": 1,
    "deviceOverlap": 1,
    "fineGrainSupport": 1,
    "gcnArch": 942,
    "globalL1CacheSupported": 1,
    "hostRegisterSupported": 1,
    "ipcEventSupported": 1,
    "l2CacheSize": 4096 * _KIB,
    "localL1CacheSupported": 1,
    "managedMemory": 1,
    "maxAvailableVgprsPerThread": 512,
    "maxBlocksPerMultiProcessor": 2,
    "maxGridSize": (2**31 - 1, 65536, 65536),
    "maxSharedMemoryPerMultiProcessor": 64 * _KIB,
    "maxThreadsDim": (1024, 1024, 1024),
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerMultiProcessor": 2048,
    "memPitch": 2**31 - 1,
    "memoryBusWidth": 8192,
    "memoryClockRate": 1_300_000,
    "memoryPoolsSupported": 1,
    "numberOfXccs": 8,
    "pageableMemoryAccess": 0,
    "pciChipId": 0x74A1,
    "persistingL2CacheMaxSize": 4096 * _KIB,
    "regsPerBlock": 65536,
    "regsPerMultiprocessor": 65536,
    "sharedMemPerBlock": 64 * _KIB,
    "sharedMemPerMultiprocessor": 64 * _KIB,
    "streamPrioritiesSupported": 1,
    "surfaceAlignment": 256,
    "textureAlignment": 256,
    "texturePitchAlignment": 256,
    "totalConstMem": 2**31 - 1,
    "unifiedAddressing": 1,
    "wallClockRate": 100_000,
}
"""The values of properties. The key is a field of ``hipDeviceProp_t``, or the name of an attribute
that is not a field. A property without an entry is 0, unless ``devices.py`` adds a value."""

_FIRST_OF_AMD: Final = 10_000
# The names of the attributes in the order of their numbers. The numbers begin at 0 in _COMMON, and
# at _FIRST_OF_AMD in _OF_AMD. A dash marks a number that the emulation refuses, as AMD's runtime
# does. A digit after a dot is the index in a field with several values.
_COMMON: Final = """
ECCEnabled accessPolicyMaxWindowSize asyncEngineCount canMapHostMemory
canUseHostPointerForRegisteredMem clockRate computeMode computePreemptionSupported
concurrentKernels concurrentManagedAccess cooperativeLaunch cooperativeMultiDeviceLaunch
deviceOverlap directManagedMemAccessFromHost globalL1CacheSupported hostNativeAtomicSupported
integrated isMultiGpuBoard kernelExecTimeoutEnabled l2CacheSize localL1CacheSupported -
luidDeviceNodeMask major managedMemory maxBlocksPerMultiProcessor
maxThreadsDim.0 maxThreadsDim.1 maxThreadsDim.2 maxGridSize.0 maxGridSize.1 maxGridSize.2
maxSurface1D - - - - - -
maxTexture1D - maxTexture1DLinear maxTexture1DMipmap maxTexture2D.0 maxTexture2D.1 - - - -
maxTexture3D.0 maxTexture3D.1 maxTexture3D.2 - maxTextureCubemap -
- maxThreadsPerBlock maxThreadsPerMultiProcessor memPitch memoryBusWidth memoryClockRate
minor multiGpuBoardGroupID multiProcessorCount - pageableMemoryAccess
pageableMemoryAccessUsesHostPageTables pciBusID pciDeviceID pciDomainID persistingL2CacheMaxSize
regsPerBlock regsPerMultiprocessor reservedSharedMemPerBlock sharedMemPerBlock
sharedMemPerBlockOptin sharedMemPerMultiprocessor -
streamPrioritiesSupported surfaceAlignment - textureAlignment texturePitchAlignment
totalConstMem totalGlobalMem unifiedAddressing - warpSize memoryPoolsSupported
virtualMemoryManagementSupported hostRegisterSupported memoryPoolSupportedHandleTypes hostNumaId
dmaBufSupported gpuDirectRDMAWithHipVMMSupported handleTypeFabricSupported
hostAllocDmaBufSupported
"""
_OF_AMD: Final = """
- - maxSharedMemoryPerMultiProcessor - - hdpMemFlushCntl hdpRegFlushCntl
cooperativeMultiDeviceUnmatchedFunc cooperativeMultiDeviceUnmatchedGridDim
cooperativeMultiDeviceUnmatchedBlockDim cooperativeMultiDeviceUnmatchedSharedMem
isLargeBar asicRevision canUseStreamWaitValue imageSupport multiProcessorCount fineGrainSupport
wallClockRate numberOfXccs maxAvailableVgprsPerThread pciChipId expertSchedMode
maxDynDataPrefetchRegions
"""

ATTRIBUTES: Final[Mapping[int, str]] = {
    first + place: name
    for first, names in ((0, _COMMON), (_FIRST_OF_AMD, _OF_AMD))
    for place, name in enumerate(names.split())
    if name != "-"
}
"""The name of each attribute; most names are fields of ``hipDeviceProp_t``. The key is the
attribute's number in ``hipDeviceAttribute_t``."""

POINTERS: Final = frozenset({"hdpMemFlushCntl", "hdpRegFlushCntl"})
"""The fields that hold addresses of a device's registers. Emulated devices have no registers, so
these addresses are null."""
