# SPDX-License-Identifier: Apache-2.0
"""The reference has a heading for everything that a reader could look up, and says what is so."""

import ast
import inspect
import re
import struct
import textwrap
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

import crossmem
from crossmem.driver import Driver, check_groups, groups
from crossmem.models import (
    TIMELINE_LEVELS,
    BlockHandle,
    EventKind,
    PoolCore,
    ProcessIdentity,
    ReadyHandle,
)
from crossmem.plugin import hookspecs
from crossmem.settings import VARIABLES, Settings
from crossmem_ascend.driver import AscendDriver
from crossmem_emulated import options
from crossmem_emulated.acl import Acl
from crossmem_emulated.hip import Runtime
from crossmem_hip.driver import GpuDriver
from crossmem_hip.family import CUDA, HIP, Family

GetPage = Callable[[str], Any]

ERRORS = {
    name: error
    for name, error in crossmem.errors.__dict__.items()
    if isinstance(error, type) and issubclass(error, crossmem.CrossmemError)
}
HOOKS = {name: hook for name, hook in vars(hookspecs).items() if hasattr(hook, "crossmem_spec")}
OPERATIONS = {
    name: operation
    for name, operation in vars(Driver).items()
    if inspect.isfunction(operation) and not name.startswith("_")
}
GROUPS = {group.__name__: group for group in groups._GROUPS}
HANDLE_FIELDS: dict[str, Any] = {
    "allocation": 0x1122334455667788,
    "export": 0x99AABBCC,
    "secret": bytes(range(16)),
    "nbytes": 0x1111,
    "capacity": 0x2222,
}
OWNER = ProcessIdentity(0x01020304, 0x05060708, 0x090A, bytes(range(16, 32)), 0x0B0C)


def signature(function: Callable[..., Any]) -> str:
    """Return a signature as the source has it, without ``self``."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, ast.FunctionDef)
    assert node.returns is not None
    node.args.args = [one for one in node.args.args if one.arg != "self"]
    shown = f"{node.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}"
    # Annotations of what is imported for type checkers only are quoted.
    return shown.replace("'", "")


def test_every_setting_has_a_heading(page: GetPage) -> None:
    variables = [*VARIABLES.values(), *options.VARIABLES]

    assert page("reference/settings.md").headings[3] == variables


def test_defaults_of_settings(page: GetPage) -> None:
    settings, text = Settings(), page("reference/settings.md")

    assert f"Default: {settings.timeout_s:g}." in text.section("CROSSMEM_TIMEOUT")
    assert f"Default: {settings.exit_wait_s:g}." in text.section("CROSSMEM_EXIT_WAIT")
    assert f"Default: {settings.max_reservations:,}." in text.section("CROSSMEM_MAX_RESERVATIONS")


def test_defaults_of_the_emulated_backend(page: GetPage) -> None:
    default, text = options.Options(), page("reference/settings.md")
    expected = {
        "DEVICES": str(default.devices),
        "GRANULARITY": f"`{default.granularity}`",
        "PREFAULT": f"`{default.prefault:d}`",
        "HUGEPAGES": f"`{default.hugepages:d}`",
        "POISON": f"`{default.poison:d}`",
        "STRICT": f"`{default.strict:d}`",
        "SLOW_STREAMS": f"`{default.slow_streams:d}`",
        "ACL_PROFILE": f"`{default.acl_profile}`",
    }

    for name, value in expected.items():
        assert f"Default: {value}." in text.section(f"CROSSMEM_EMULATED_{name}"), name


def test_every_error_has_a_heading(page: GetPage) -> None:
    assert sorted(page("reference/errors.md").headings[2]) == sorted(ERRORS)


@pytest.mark.parametrize("name", sorted(set(ERRORS) - {"CrossmemError"}))
def test_errors_name_the_builtin_that_they_are(name: str, page: GetPage) -> None:
    bases = [base.__name__ for base in ERRORS[name].__bases__ if base not in ERRORS.values()]

    assert f"Also `{bases[0]}`." in page("reference/errors.md").section(name)


def test_every_capability_has_a_heading_and_a_row(page: GetPage) -> None:
    names = [one.name for one in fields(crossmem.Capabilities)]
    found = page("reference/capabilities.md")

    assert found.headings[2] == names
    assert re.findall(r"^\| `(\w+)` \|", found.text, re.MULTILINE) == names


def capabilities_said(page: GetPage, column: str) -> dict[str, bool]:
    """Return which capabilities the table's column begins with "true"."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page("reference/capabilities.md").text.splitlines()
        if line.startswith("|")
    ]
    index = rows[0].index(column)
    return {row[0].strip("`"): row[index].startswith("true") for row in rows}


@pytest.mark.parametrize("backend", ["host", "emulated"])
def test_host_memory_has_the_capabilities_of_the_table(backend: str, page: GetPage) -> None:
    actual = asdict(crossmem.device(backend).capabilities)
    flags = {name: value for name, value in actual.items() if type(value) is bool}
    said = capabilities_said(page, f"`{backend}`")

    assert {name: said[name] for name in flags} == flags


@pytest.mark.parametrize("mechanism", ["shareable", "key", "acltdt"])
def test_the_ascend_backend_has_the_capabilities_of_the_table(
    mechanism: str, page: GetPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHAREGROUP_PRECONFIG", "")
    profile = "310b-rc" if mechanism == "acltdt" else "documented"
    driver = AscendDriver(Acl(profile, options=options.Options(state=tmp_path)))
    actual = asdict(driver.capabilities(0, mechanism))
    flags = {name: value for name, value in actual.items() if type(value) is bool}
    said = capabilities_said(page, f"`ascend`, `{mechanism}`")

    assert {name: said[name] for name in flags} == flags


@pytest.mark.parametrize("mechanism", ["legacy", "vmm"])
@pytest.mark.parametrize(("family", "profile"), [(HIP, "documented"), (CUDA, "cuda")])
def test_the_gpu_backends_have_the_capabilities_of_the_table(
    family: Family, profile: str, mechanism: str, page: GetPage, tmp_path: Path
) -> None:
    runtime: Any = Runtime(profile, options=options.Options(state=tmp_path))
    actual = asdict(GpuDriver(family, runtime).capabilities(0, mechanism))
    flags = {name: value for name, value in actual.items() if type(value) is bool}
    said = capabilities_said(page, f"`{family.backend}`, `{mechanism}`")

    assert {name: said[name] for name in flags} == flags


def test_every_hook_has_a_heading_with_its_signature(page: GetPage) -> None:
    found = page("reference/hooks.md")

    assert sorted(found.headings[2]) == sorted(HOOKS)
    assert [block.strip() for block in found.blocks("text")] == [
        signature(HOOKS[name]) for name in found.headings[2]
    ]


def test_every_event_has_a_row(page: GetPage) -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", page("reference/hooks.md").text, re.MULTILINE)

    assert rows == [str(kind) for kind in EventKind]


def test_every_driver_operation_has_a_heading_with_its_signature(page: GetPage) -> None:
    found = page("reference/driver.md")

    assert found.headings[3] == [*OPERATIONS, *GROUPS]
    assert [block.strip() for block in found.blocks("text")] == [
        signature(operation) for operation in OPERATIONS.values()
    ]


@pytest.mark.parametrize("name", GROUPS)
def test_every_method_of_a_group_is_named(name: str, page: GetPage) -> None:
    section = page("reference/driver.md").section(name)

    for method in groups._methods(GROUPS[name]):
        assert f"`{method}" in section, method


@pytest.mark.parametrize("backend", ["host", "emulated"])
def test_the_drivers_of_host_memory_keep_the_groups_whole(backend: str) -> None:
    assert check_groups(crossmem.device(backend).driver) == []


def byte_table(page: GetPage, title: str = "Wire form, version 1") -> dict[str, slice]:
    section = page("reference/handles.md").section(title)
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ([\w. ]+) \|", section, re.MULTILINE)
    return {name: slice(int(at), int(at) + int(size)) for at, size, name in rows}


def test_the_byte_table_has_no_gap_and_ends_where_the_names_begin(page: GetPage) -> None:
    table = byte_table(page)
    ends = [0, *(one.stop for one in table.values())]

    assert [one.start for one in table.values()] == ends[:-1]
    assert f"From offset {ends[-1]} on" in page("reference/handles.md").text


def test_the_byte_table_of_blocks_is_their_wire_form(page: GetPage) -> None:
    arena = crossmem.ShareableHandle(
        backend="acme",
        mechanism="acme-file",
        device="acme:0000",
        owner=OWNER,
        access="rw",
        **{**HANDLE_FIELDS, "nbytes": 0x2222},
    )
    stride, slot = 0x100, 0x77
    handle = BlockHandle(PoolCore.of(arena, slot, stride), (3, 5, 6, 9, 0xFF))
    blob, plain = handle.to_bytes(), arena.to_bytes()
    table = byte_table(page, "Blocks of pools")
    fields = {name: int.from_bytes(blob[where], "little") for name, where in table.items()}
    start = max(one.stop for one in table.values())
    owner = byte_table(page)["owner.pid"].start

    assert min(one.start for one in table.values()) == byte_table(page)["checksum"].stop
    assert fields == {"offset": 3, "length": 5, "index": 6, "generation": 9, "nbytes": 0xFF}
    assert f"| {start} | | pool |" in page("reference/handles.md").section("Blocks of pools")
    assert blob[start:-8] == plain[owner:]
    assert struct.unpack("<II", blob[-8:]) == (slot, stride // 64)
    assert int.from_bytes(blob[byte_table(page)["flags"]], "little") == 1 << 2


def test_the_byte_table_is_the_wire_form(page: GetPage) -> None:
    handle = crossmem.ShareableHandle(
        backend="acme",
        mechanism="acme-file",
        device="acme:0000",
        owner=OWNER,
        access="ro",
        **HANDLE_FIELDS,
    ).slice(3, 5)
    blob = handle.to_bytes()
    fields = {name: blob[where] for name, where in byte_table(page).items()}
    numbers = {name: int.from_bytes(value, "little") for name, value in fields.items()}
    names = blob[max(where.stop for where in byte_table(page).values()) :]

    assert fields["magic"] == b"XMEM"
    assert (numbers["version"], numbers["flags"], numbers["total"]) == (1, 1, len(blob))
    assert numbers["checksum"] == crc32(blob[:12] + bytes(4) + blob[16:])
    assert (numbers["offset"], numbers["length"]) == (3, 5)
    for name, value in HANDLE_FIELDS.items():
        assert value == (fields if isinstance(value, bytes) else numbers)[name], name
    for name in ("pid", "uid", "start_time", "pid_namespace"):
        assert numbers[f"owner.{name}"] == getattr(OWNER, name), name
    assert fields["owner.boot_id"] == OWNER.boot_id
    assert names == b"acmeacme-fileacme:0000"
    assert struct.pack("<BBBH", 4, 9, 9, 0) == b"".join(
        fields[f"{name} length"] for name in ("backend", "mechanism", "device", "raw")
    )


def test_the_byte_tables_of_timelines_are_their_wire_form(page: GetPage) -> None:
    with crossmem.device("host").timeline() as made:
        handle = made.export()
    blob, words = handle.to_bytes(), handle.memory.to_bytes()
    table = byte_table(page, "Timelines")
    numbers = {name: int.from_bytes(blob[where], "little") for name, where in table.items()}
    ends = [0, *(one.stop for one in table.values())]

    assert [one.start for one in table.values()] == ends[:-1]
    assert f"From offset {ends[-1]} on" in page("reference/handles.md").section("Timelines")
    assert blob[table["magic"]] == b"XMTL"
    assert (numbers["version"], numbers["total"]) == (1, len(blob))
    assert TIMELINE_LEVELS[numbers["level"]] == handle.level
    assert numbers["checksum"] == crc32(blob[:12] + bytes(4) + blob[16:])
    assert numbers["identity"] == handle.identity
    names = (handle.backend + handle.device).encode()
    assert numbers["backend length"] + numbers["device length"] == len(names)
    assert blob[ends[-1] :] == names + words

    ready = ReadyHandle(handle.memory, handle, 7)
    blob, table = ready.to_bytes(), byte_table(page, "Memory that a stream writes")
    numbers = {name: int.from_bytes(blob[where], "little") for name, where in table.items()}
    start = max(one.stop for one in table.values())

    assert numbers == {"value": 7, "length": len(words)}
    assert f"| {start} | | memory |" in page("reference/handles.md").section(
        "Memory that a stream writes"
    )
    assert blob[start:] == words + handle.to_bytes()
    assert int.from_bytes(blob[byte_table(page)["flags"]], "little") == 1 << 3


def test_rows_of_tables_have_the_columns_of_their_heads(pages: list[Any]) -> None:
    wrong = []
    for one in pages:
        head = 0
        for line in one.prose.splitlines():
            # A pipe in code is escaped, too.
            columns = line.replace("\\|", "").count("|") if line.startswith("|") else 0
            head = head if head and columns else columns
            if columns != head:
                wrong.append(f"{one.path.name}: {line}")

    assert wrong == []
