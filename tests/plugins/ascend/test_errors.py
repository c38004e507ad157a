# SPDX-License-Identifier: Apache-2.0
"""Every code that the headers name becomes a typed error that says what failed and what to do."""

import pickle

import pytest

import crossmem
from crossmem_ascend.errors import CODES, error_for

# acl_base.h, acl_base_rt.h
BASE = {
    100000: "INVALID_PARAM",
    100001: "UNINITIALIZE",
    100002: "REPEAT_INITIALIZE",
    100003: "INVALID_FILE",
    100032: "INVALID_QUEUE_ID",
    100037: "REPEAT_FINALIZE",
    100039: "COMPILING_STUB_MODE",
    148051: "RELATIVE_RESOURCE_NOT_CLEARED",
    200000: "BAD_ALLOC",
    200001: "API_NOT_SUPPORT",
    200002: "INVALID_DEVICE",
    200003: "MEMORY_ADDRESS_UNALIGNED",
    200004: "RESOURCE_NOT_MATCH",
    200005: "INVALID_RESOURCE_HANDLE",
    200006: "FEATURE_UNSUPPORTED",
    200007: "PROF_MODULES_UNSUPPORTED",
    300000: "STORAGE_OVER_LIMIT",
    500000: "INTERNAL_ERROR",
    500001: "FAILURE",
    500002: "GE_FAILURE",
    500003: "RT_FAILURE",
    500004: "DRV_FAILURE",
    500005: "PROFILING_FAILURE",
}
# rt_error_codes.h
RUNTIME = {
    107000: "PARAM_INVALID",
    107001: "INVALID_DEVICEID",
    107002: "CONTEXT_NULL",
    107003: "STREAM_CONTEXT",
    107006: "EVENT_TIMESTAMP_INVALID",
    107007: "EVENT_TIMESTAMP_REVERSAL",
    107008: "ADDR_UNALIGNED",
    107011: "STREAM_SUBSCRIBE",
    107012: "THREAD_SUBSCRIBE",
    107015: "STREAM_NO_CB_REG",
    107016: "INVALID_MEMORY_TYPE",
    107017: "INVALID_HANDLE",
    107018: "INVALID_MALLOC_TYPE",
    107019: "WAIT_TIMEOUT",
    107020: "TASK_TIMEOUT",
    107022: "DEVICE_TASK_ABORT",
    107039: "INSUFFICIENT_INPUT_ARRAY",
    207000: "FEATURE_NOT_SUPPORT",
    207001: "MEMORY_ALLOCATION",
    207002: "MEMORY_FREE",
    207004: "NO_DEVICE",
    207005: "RESOURCE_ALLOC_FAIL",
    207006: "NO_PERMISSION",
    207007: "NO_EVENT_RESOURCE",
    207008: "NO_STREAM_RESOURCE",
    207009: "NO_NOTIFY_RESOURCE",
    207012: "OVER_LIMIT",
    207013: "QUEUE_EMPTY",
    207014: "QUEUE_FULL",
    207015: "REPEATED_INIT",
    207018: "DEVICE_OOM",
    207020: "TIMEOUT",
    207021: "LINK_TYPE_NOT_SUPPORTED",
    507000: "INTERNAL_ERROR",
    507006: "EVENT_NOT_COMPLETE",
    507007: "CONTEXT_RELEASE_ERROR",
    507012: "REPORT_TIMEOUT",
    507022: "IPC_ERROR",
    507033: "DEV_SETUP_ERROR",
    507046: "STREAM_SYNC_TIMEOUT",
    507047: "EVENT_SYNC_TIMEOUT",
    507051: "SEND_MSG",
    507052: "COPY_DATA",
    507053: "DEVICE_MEM_ERROR",
    507899: "DRV_INTERNAL_ERROR",
    507901: "SOCKET_CLOSE",
    507910: "HOST_MEMORY_ALREADY_REGISTERED",
    507911: "HOST_MEMORY_NOT_REGISTERED",
}
NAMES = {code: f"ACL_ERROR_{name}" for code, name in BASE.items()} | {
    code: f"ACL_ERROR_RT_{name}" for code, name in RUNTIME.items()
}
KINDS = {
    200001: crossmem.UnsupportedError,
    200006: crossmem.UnsupportedError,
    207000: crossmem.UnsupportedError,
    207001: crossmem.OutOfMemoryError,
    207006: crossmem.AccessDeniedError,
    207018: crossmem.OutOfMemoryError,
}
IMPORTS = ("rt.mem_import_from_shareable_handle", "rt.ipc_mem_import_by_key")


def test_the_table_is_total() -> None:
    assert {code: known.name for code, known in CODES.items()} == NAMES


def wrong_parts(code: int) -> list[str]:
    """Return the parts of a code's error that are not as they should be."""
    error = error_for("rt.map_mem", code)
    name = NAMES[code]
    right = {
        "type": type(error) is KINDS.get(code, crossmem.DriverError),
        "backend": error.backend == "ascend",
        "hint": bool(error.hint),
        "call": "acl.rt.map_mem failed with" in str(error),
        "name": f"{name} ({code})" in str(error),
    }
    if isinstance(error, crossmem.DriverError):
        right["attributes"] = (error.call, error.code, error.name) == ("acl.rt.map_mem", code, name)
    return [part for part, is_right in right.items() if not is_right]


def test_every_code_says_what_failed_and_what_to_do() -> None:
    wrong = {code: wrong_parts(code) for code in NAMES}

    assert {code: parts for code, parts in wrong.items() if parts} == {}


@pytest.mark.parametrize("call", IMPORTS)
def test_an_import_of_what_is_gone_is_stale(call: str) -> None:
    assert type(error_for(call, 107017)) is crossmem.StaleHandleError


def test_a_code_that_nobody_knows_keeps_its_number() -> None:
    error = error_for("rt.malloc", 999999)

    assert isinstance(error, crossmem.DriverError)
    assert error.code == 999999
    assert error.hint is not None
    assert "rt_error_codes.h" in error.hint


def test_the_catch_all_means_something_else_after_each_call() -> None:
    hints = {error_for(call, 507899).hint for call in (*IMPORTS, "rt.map_mem", "rt.memcpy")}

    assert len(hints) == 4


@pytest.mark.parametrize(
    ("call", "code", "cause"),
    [
        ("rt.value_write", 107000, "stream= is not an existing stream"),
        ("rt.value_wait", 107000, "stream= is not an existing stream"),
        ("rt.synchronize_stream", 107000, "stream= is not an existing stream"),
        ("rt.synchronize_stream", 107003, "stream= belongs to another context"),
        ("rt.memcpy", 507053, "the owner is dead"),
        ("rt.memcpy_async", 507053, "the owner is dead"),
        ("tdt.create_queue", 500001, "in no memory group"),
        ("tdt.dequeue", 207005, "keep producers alive"),
    ],
)
def test_some_calls_have_causes_of_their_own(call: str, code: int, cause: str) -> None:
    assert cause in str(error_for(call, code).hint)
    assert cause not in str(error_for("rt.map_mem", code).hint)


@pytest.mark.parametrize("code", [107000, 207000])
def test_what_cann_says_is_kept(code: int) -> None:
    assert "CANN says: EE1001: no" in str(error_for("rt.map_mem", code, "EE1001: no"))


def test_errors_survive_pickling() -> None:
    errors = [error_for("rt.map_mem", code, "EE1001") for code in NAMES]
    copies = pickle.loads(pickle.dumps(errors))  # noqa: S301
    pairs = zip(errors, copies, strict=True)

    assert [str(error) for error, copy in pairs if str(copy) != str(error)] == []
