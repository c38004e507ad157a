# SPDX-License-Identifier: Apache-2.0
"""The numbers of ACL's headers that the emulation uses (acl_base.h, rt_error_codes.h, acl_rt.h)."""

from enum import IntEnum
from typing import Final

__all__ = [
    "GRANULARITY_1G_NBYTES",
    "GRANULARITY_NBYTES",
    "KEY_NBYTES",
    "LARGEST_NBYTES",
    "Attribute",
    "Code",
    "Kind",
]

GRANULARITY_NBYTES: Final = 2 << 20
GRANULARITY_1G_NBYTES: Final = 1 << 30
LARGEST_NBYTES: Final = 1 << 46
"""Requests of more bytes are refused: a process does not have so many addresses."""
KEY_NBYTES: Final = 65
"""Length of an IPC key, with the NUL at its end."""


class Code(IntEnum):
    """The result codes of functions."""

    SUCCESS = 0
    INVALID_PARAM = 100000
    REPEAT_INITIALIZE = 100002
    INVALID_FILE = 100003
    REPEAT_FINALIZE = 100037
    FEATURE_UNSUPPORTED = 200006
    RT_PARAM_INVALID = 107000
    RT_INVALID_DEVICEID = 107001
    RT_CONTEXT_NULL = 107002
    RT_EVENT_TIMESTAMP_INVALID = 107006
    RT_EVENT_TIMESTAMP_REVERSAL = 107007
    RT_STREAM_SUBSCRIBE = 107011
    RT_THREAD_SUBSCRIBE = 107012
    RT_STREAM_NO_CB_REG = 107015
    RT_INVALID_HANDLE = 107017
    RT_FEATURE_NOT_SUPPORT = 207000
    RT_MEMORY_ALLOCATION = 207001
    RT_RESOURCE_ALLOC_FAIL = 207005
    RT_NO_PERMISSION = 207006
    RT_NO_NOTIFY_RESOURCE = 207009
    RT_OVER_LIMIT = 207012
    RT_QUEUE_EMPTY = 207013
    RT_QUEUE_FULL = 207014
    RT_REPEATED_INIT = 207015
    RT_LINK_TYPE_NOT_SUPPORT = 207021
    FAILURE = 500001
    RT_EVENT_NOT_COMPLETE = 507006
    RT_REPORT_TIMEOUT = 507012
    RT_STREAM_SYNC_TIMEOUT = 507046
    RT_EVENT_SYNC_TIMEOUT = 507047
    RT_DEVICE_MEM_ERROR = 507053
    RT_DRV_INTERNAL_ERROR = 507899
    HOST_MEMORY_ALREADY_REGISTERED = 507910
    HOST_MEMORY_NOT_REGISTERED = 507911


class Kind(IntEnum):
    """Direction of a copy (``aclrtMemcpyKind``)."""

    HOST_TO_HOST = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
    DEFAULT = 4
    HOST_TO_BUF_TO_DEVICE = 5
    INNER_DEVICE_TO_DEVICE = 6
    INTER_DEVICE_TO_DEVICE = 7


class Attribute(IntEnum):
    """Type of physical memory (``aclrtMemAttr``)."""

    DDR_MEM = 0
    HBM_MEM = 1
    DDR_MEM_HUGE = 2
    DDR_MEM_NORMAL = 3
    HBM_MEM_HUGE = 4
    HBM_MEM_NORMAL = 5
    DDR_MEM_P2P_HUGE = 6
    DDR_MEM_P2P_NORMAL = 7
    HBM_MEM_P2P_HUGE = 8
    HBM_MEM_P2P_NORMAL = 9
    HBM_MEM_HUGE1G = 10
    HBM_MEM_P2P_HUGE1G = 11
    MEM_NORMAL = 12
    MEM_HUGE = 13
    MEM_HUGE1G = 14
    MEM_P2P_NORMAL = 15
    MEM_P2P_HUGE = 16
    MEM_P2P_HUGE1G = 17
