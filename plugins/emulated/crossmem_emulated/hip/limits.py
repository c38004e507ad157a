# SPDX-License-Identifier: Apache-2.0
"""Settings of a device: limits, and preferences for caches and waits."""

from collections.abc import Mapping
from typing import Final

from crossmem_emulated.hip.calls import Refused, entry
from crossmem_emulated.hip.codes import Status
from crossmem_emulated.hip.process import HipProcess

__all__ = ["forget_limits"]

_STACK, _PRINTF, _HEAP = range(3)
_LARGEST_STACK_NBYTES: Final = (128 << 10) - 16
_USUAL: Final[Mapping[int, int]] = {_STACK: 1 << 10, _PRINTF: 1 << 20, _HEAP: 8 << 20}
_OF_AMD: Final = frozenset({_STACK, _HEAP})
_NUMBERS: Final = {True: 3, False: 7}
"""How many limits the headers of AMD (True) and of NVIDIA (False) declare."""
_CACHE_CONFIGS: Final = range(4)
_BANK_SIZES: Final = range(3)
_FOUR_BYTES: Final = 1
_SCHEDULES: Final = frozenset({0, 1, 2, 4})
_SCHEDULE_BITS: Final = 7
_OTHER_BITS: Final = 0x18


def _key(process: HipProcess, limit: int) -> tuple[int, int]:
    is_hip = process.profile.is_hip
    if not 0 <= limit < _NUMBERS[is_hip]:
        raise Refused(Status.INVALID_VALUE, f"there is no limit {limit}", "HIP-X10")
    if limit not in (_OF_AMD if is_hip else _USUAL):
        raise Refused(Status.UNSUPPORTED_LIMIT, f"limit {limit} cannot be read or set")
    return process.current().device, limit


@entry("deviceGetLimit(int limit) -> size_t")
def _device_get_limit(process: HipProcess, limit: int) -> int:
    return process.limits.get(_key(process, limit), _USUAL[limit])


@entry("deviceSetLimit(int limit, size_t value)", hip_answers=Status.UNKNOWN)
def _device_set_limit(process: HipProcess, limit: int, value: int) -> None:
    key = _key(process, limit)
    largest = _LARGEST_STACK_NBYTES if limit == _STACK else process.store.capacity_nbytes
    if value > largest:
        raise Refused(Status.INVALID_VALUE, f"{value} is more than {largest}", "HIP-X10")
    process.limits[key] = value


def forget_limits(process: HipProcess, device: int) -> None:
    """Reset a device's limits and flags to their initial values."""
    process.limits = {key: one for key, one in process.limits.items() if key[0] != device}
    process.device_flags.pop(device, None)


# Preferences, which have no effect ------------------------------------------------------------


def _check_hint(process: HipProcess, value: int, known: range) -> None:
    if value not in known:
        raise Refused(Status.INVALID_VALUE, f"there is no setting {value}", "HIP-X10")
    if process.profile.is_before_6:
        raise Refused(Status.NOT_SUPPORTED, "this release does not support this setting")


@entry("deviceGetCacheConfig() -> int")
def _device_get_cache_config(_process: HipProcess) -> int:
    return 0


@entry("deviceSetCacheConfig(int config)")
def _device_set_cache_config(process: HipProcess, config: int) -> None:
    _check_hint(process, config, _CACHE_CONFIGS)


@entry("deviceGetSharedMemConfig() -> int")
def _device_get_shared_mem_config(_process: HipProcess) -> int:
    return _FOUR_BYTES


@entry("deviceSetSharedMemConfig(int config)")
def _device_set_shared_mem_config(process: HipProcess, config: int) -> None:
    _check_hint(process, config, _BANK_SIZES)


@entry("getDeviceFlags() -> unsigned int")
def _get_device_flags(process: HipProcess) -> int:
    return process.device_flags.get(process.current().device, 0)


@entry("setDeviceFlags(unsigned int flags)")
def _set_device_flags(process: HipProcess, flags: int) -> None:
    schedule = flags & _SCHEDULE_BITS
    if schedule not in _SCHEDULES or flags & ~(_SCHEDULE_BITS | _OTHER_BITS):
        raise Refused(Status.INVALID_VALUE, f"the flags {flags} are not valid", "HIP-X10")
    process.device_flags[process.current().device] = schedule
