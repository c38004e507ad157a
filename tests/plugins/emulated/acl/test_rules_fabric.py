# SPDX-License-Identifier: Apache-2.0
"""ACL-E33: shareable handles of the second edition, and keys for other servers."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import GRANULARITY, Actor, emulation_only, ok
    from tests.plugins.emulated.acl.conftest import Start
else:
    from acl_actor import GRANULARITY, Actor, emulation_only, ok

    Start = Any


pytestmark = emulation_only
NUMBER, FABRIC = 1, 2
KINDS = [("documented", NUMBER), ("documented", FABRIC), ("a3", FABRIC), ("a2", NUMBER)]
of_kinds = pytest.mark.parametrize(("profile", "kind"), KINDS, indirect=["profile"])


def export(exporter: Actor, kind: int, flags: int = 0) -> tuple[int, Any]:
    """Export new memory that begins with a text."""
    handle, pointer = exporter.physical()
    exporter.write(pointer, b"of the second edition")
    return handle, ok(exporter.c.mem_export_to_shareable_handle_v2(handle, flags, kind))


def check(importer: Actor, handle: int) -> None:
    assert importer.read(importer.map_new(handle), 21) == b"of the second edition"


@of_kinds
def test_e33_sharing_with_a_whitelist(exporter: Actor, importer: Actor, kind: int) -> None:
    _, share = export(exporter, kind)

    assert importer.c.mem_import_from_shareable_handle_v2(share, kind, 0) == (0, 507899)
    ok(exporter.c.mem_set_pid_to_shareable_handle_v2(share, kind, [importer.tgid]))
    check(importer, ok(importer.c.mem_import_from_shareable_handle_v2(share, kind, 0)))
    importer.check_broken("ACL-E17")


@of_kinds
def test_e33_sharing_with_everybody(exporter: Actor, importer: Actor, kind: int) -> None:
    handle, share = export(exporter, kind, flags=1)
    check(importer, ok(importer.c.mem_import_from_shareable_handle_v2(share, kind, 0)))
    importer.check_broken()

    answer = exporter.c.mem_export_to_shareable_handle_v2(handle, 0, kind)
    assert answer == (None, 507899)
    code = exporter.c.mem_set_pid_to_shareable_handle_v2(share, kind, [importer.tgid])
    assert code == 207006
    exporter.check_broken("ACL-E14", "ACL-E16")


def test_e33_both_editions_know_the_number(exporter: Actor, importer: Actor) -> None:
    _, share = export(exporter, NUMBER)
    ok(exporter.rt.mem_set_pid_to_shareable_handle(share, [importer.tgid]))

    check(importer, ok(importer.rt.mem_import_from_shareable_handle(share, 0)))


def test_e33_what_there_is_not(exporter: Actor, importer: Actor) -> None:
    handle, share = export(exporter, NUMBER)

    assert exporter.c.mem_export_to_shareable_handle_v2(handle, 0, 3) == (None, 107000)
    assert exporter.c.mem_set_pid_to_shareable_handle_v2(share, 0, [1]) == 107000
    assert importer.c.mem_import_from_shareable_handle_v2(share, 3, 0) == (0, 107000)
    exporter.check_broken(*["ACL-E33"] * 3)
    assert importer.c.mem_import_from_shareable_handle_v2(share, NUMBER, 1) == (0, 100000)
    assert exporter.c.mem_set_pid_to_shareable_handle_v2(share, NUMBER, []) == 100000


@pytest.mark.parametrize("profile", ["documented", "a3"], indirect=True)
def test_e33_bytes_that_are_no_handle(exporter: Actor, importer: Actor) -> None:
    _, share = export(exporter, FABRIC, flags=1)

    for wrong in (bytes(128), b"\xff" * 128, share[:8] + b"\x99" * 8 + share[16:]):
        assert importer.c.mem_import_from_shareable_handle_v2(wrong, FABRIC, 0) == (0, 107017)


@pytest.mark.parametrize("profile", ["a2", "950", "old-driver", "cann8"], indirect=True)
def test_e33_products_without_a_fabric(exporter: Actor) -> None:
    handle, _ = exporter.physical()

    answer = exporter.c.mem_export_to_shareable_handle_v2(handle, 0, FABRIC)
    assert answer == (None, 207000)
    assert exporter.c.mem_import_from_shareable_handle_v2(bytes(128), FABRIC, 0) == (0, 207000)
    assert exporter.c.mem_set_pid_to_shareable_handle_v2(bytes(128), FABRIC, [1]) == 207000
    exporter.check_broken()


@pytest.mark.parametrize("profile", ["cann8"], indirect=True)
def test_e33_older_editions(exporter: Actor) -> None:
    handle, _ = exporter.physical()

    answer = exporter.c.mem_export_to_shareable_handle_v2(handle, 0, NUMBER)
    assert answer == (None, 207000)
    exporter.check_broken()


@pytest.mark.parametrize("profile", ["documented", "a3"], indirect=True)
def test_keys_for_other_servers(exporter: Actor, importer: Actor) -> None:
    pointer = ok(exporter.rt.malloc(GRANULARITY, 0))
    exporter.write(pointer, b"from here")
    key = ok(exporter.rt.ipc_mem_get_export_key(pointer, GRANULARITY, 65, 0))
    ok(exporter.c.ipc_mem_set_attr(key, 0, 1))

    ok(exporter.c.ipc_mem_import_pid_inter_server(key, [(7, [importer.tgid])]))
    assert importer.rt.ipc_mem_import_by_key(key, 0) == (0, 507899)
    ok(exporter.c.ipc_mem_import_pid_inter_server(key, [(7, [1]), (0, [importer.tgid])]))
    assert importer.read(ok(importer.rt.ipc_mem_import_by_key(key, 0)), 9) == b"from here"
    assert exporter.c.ipc_mem_import_pid_inter_server(key, []) == 100000
    assert exporter.c.ipc_mem_import_pid_inter_server(key, [(0, [])]) == 100000
    assert exporter.c.ipc_mem_set_attr(key, 1, 0) == 107000
    assert exporter.c.ipc_mem_set_attr(key, 0, 2) == 207000
    exporter.check_broken("ACL-E24")


@pytest.mark.parametrize("profile", ["950"], indirect=True)
def test_importers_choose_links(exporter: Actor, importer: Actor) -> None:
    pointer = ok(exporter.rt.malloc(GRANULARITY, 0))
    key = ok(exporter.rt.ipc_mem_get_export_key(pointer, GRANULARITY, 65, 1))

    ok(importer.c.ipc_mem_set_attr(key, 0, 2))
    ok(importer.c.ipc_mem_set_attr(key, 0, 3))
    assert importer.c.ipc_mem_set_attr(key, 0, 1) == 207021
    assert importer.c.ipc_mem_set_attr("0" * 64, 0, 2) == 507899


@pytest.mark.parametrize(
    ("profile", "code"), [("a2", 207000), ("950", 207021)], indirect=["profile"]
)
def test_keys_of_other_products(exporter: Actor, code: int) -> None:
    assert exporter.c.ipc_mem_set_attr("0" * 64, 0, 0) == code
    assert exporter.c.ipc_mem_import_pid_inter_server("0" * 64, [(0, [1])]) == 207000
