# SPDX-License-Identifier: Apache-2.0
"""ACL-E32: what each profile has; masks; what cannot be configured."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from crossmem.errors import ConfigurationError
from crossmem_emulated.acl import PROFILES, Acl
from crossmem_emulated.hooks import crossmem_runtime
from crossmem_emulated.options import Options

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import (
        GRANULARITY,
        Actor,
        emulation_only,
        ok,
        properties,
    )
    from tests.plugins.emulated.acl.conftest import Start
else:
    from acl_actor import GRANULARITY, Actor, emulation_only, ok, properties

    Start = Any


ALL = ["documented", "cann8", "a2", "a3", "950", "310b-rc", "310b-rc-driver", "old-driver"]
RC = ["310b-rc", "310b-rc-driver"]
SOC = {"a3": "Ascend910_9391", "950": "Ascend950PR", **dict.fromkeys(RC, "Ascend310B1")}
HUGE1G = {
    10: {"documented", "a2", "a3", "950", "old-driver"},
    14: {"documented", "a2", "a3", "old-driver"},
    17: {"a3"},
}
DDR, PLAIN = {2, 3, 6, 7}, {4, 5, 12, 13, 15, 16}
NORMAL = {3, 7, 12, 15}


def test_profiles() -> None:
    assert list(PROFILES) == ALL


@pytest.mark.parametrize("profile", ALL, indirect=True)
def test_e32_products(acl: Actor, profile: str) -> None:
    assert acl.acl.get_soc_name() == SOC.get(profile, "Ascend910B1")


@pytest.mark.parametrize("profile", RC, indirect=True)
def test_e32_a_product_without_sharing(acl: Actor) -> None:
    pointer = ok(acl.rt.malloc(GRANULARITY, 0))
    calls: list[tuple[Any, ...]] = [
        ("mem_get_allocation_granularity", properties(), 0),
        ("malloc_physical", GRANULARITY, properties(), 0),
        ("free_physical", 64),
        ("reserve_mem_address", GRANULARITY, 0, 0, 0),
        ("release_mem_address", GRANULARITY),
        ("map_mem", GRANULARITY, GRANULARITY, 0, 64, 0),
        ("unmap_mem", GRANULARITY),
        ("mem_export_to_shareable_handle", 64, 0, 0),
        ("mem_set_pid_to_shareable_handle", 0, [1]),
        ("mem_import_from_shareable_handle", 0, 0),
        ("ipc_mem_get_export_key", pointer, GRANULARITY, 65, 0),
        ("ipc_mem_set_import_pid", "0" * 64, [1]),
        ("ipc_mem_import_by_key", "0" * 64, 0),
        ("ipc_mem_close", "0" * 64),
    ]
    for name, *arguments in calls:
        answer = acl.call(f"acl.rt.{name}", *arguments)
        assert (answer if isinstance(answer, int) else answer[-1]) == 207000, name
    acl.check_broken()


@emulation_only
@pytest.mark.parametrize("profile", sorted(set(ALL) - set(RC)), indirect=True)
def test_e32_attributes(acl: Actor, profile: str) -> None:
    plain = {4, 5} if profile == "cann8" else PLAIN
    huge = {attribute for attribute, names in HUGE1G.items() if profile in names}
    host = set() if profile == "cann8" else DDR
    for attribute in range(19):
        prop = properties(0, memAttr=attribute)
        on_host = properties(0, memAttr=attribute, location={"id": 0, "type": 0})
        expected = GRANULARITY if attribute in plain else 1 << 30 if attribute in huge else 0

        assert acl.rt.mem_get_allocation_granularity(prop, 0)[0] == expected, attribute
        if attribute in host or attribute in plain - {4, 5}:
            page = 4096 if attribute in NORMAL else GRANULARITY
            assert ok(acl.rt.mem_get_allocation_granularity(on_host, 1)) == page, attribute


@emulation_only
@pytest.mark.parametrize("profile", ["a2"], indirect=True)
def test_e32_pages_of_1_gib_are_rounded_up(acl: Actor) -> None:
    before = acl.free_nbytes
    handle = ok(acl.rt.malloc_physical(1, properties(0, memAttr=10), 0))

    assert acl.free_nbytes == before - (1 << 30)
    ok(acl.rt.free_physical(handle))


@emulation_only
@pytest.mark.parametrize(
    ("profile", "works"), [("documented", True), ("a2", True), ("950", False)], indirect=["profile"]
)
def test_e32_expected_addresses(acl: Actor, works: bool) -> None:
    wanted = 17 << 40
    pointer, code = acl.rt.reserve_mem_address(GRANULARITY, 0, wanted, 0)

    assert (pointer, code) == ((wanted, 0) if works else (0, 107000))
    assert acl.rt.reserve_mem_address(GRANULARITY, 0, 1 << 40, 0) == (0, 107000)
    large = (18 << 40) + GRANULARITY
    assert acl.rt.reserve_mem_address((1 << 30) + 1, 0, large, 0) == (0, 107000)


def test_profiles_that_there_are_not() -> None:
    with pytest.raises(ConfigurationError, match="documented, cann8"):
        Acl("a1")


@pytest.mark.parametrize("place", ["/proc/no", "/dev/null"])
def test_folders_that_cannot_be(place: str) -> None:
    with pytest.raises(ConfigurationError, match="folder"):
        Acl(options=Options(state=Path(place)))


def test_the_runtime_is_configured_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CROSSMEM_EMULATED_STATE", str(tmp_path))
    monkeypatch.setenv("CROSSMEM_EMULATED_ACL_PROFILE", "a3")
    monkeypatch.setenv("CROSSMEM_EMULATED_STRICT", "0")

    assert repr(crossmem_runtime("ascend", "emulated")) == f"<Acl a3 lax on {tmp_path}>"
    assert crossmem_runtime("ascend", "other") is None


MASKS = {"1": [1], "1,0": [1, 0], "0, 1": [0, 1], "1,9,0": [1], "1,1,0": [1], "x": [], "": []}


@emulation_only
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("profile", ["documented"], indirect=True)
def test_masks_renumber_devices(start: Start, mask: str) -> None:
    seeing, masked = start(), start(None, ASCEND_RT_VISIBLE_DEVICES=mask)
    uuids = [ok(seeing.rt.device_get_uuid(number)) for number in range(2)]

    assert ok(masked.rt.get_device_count()) == len(MASKS[mask])
    for number, index in enumerate(MASKS[mask]):
        assert ok(masked.rt.device_get_uuid(number)) == uuids[index]
    assert masked.rt.set_device(len(MASKS[mask])) == 107001


@emulation_only
@pytest.mark.parametrize("profile", ["documented"], indirect=True)
def test_masks_do_not_move_memory(start: Start) -> None:
    exporter, importer = start(ASCEND_RT_VISIBLE_DEVICES="1"), start(device=1)
    handle, pointer = exporter.physical()
    exporter.write(pointer, b"on device 1")
    share = ok(exporter.rt.mem_export_to_shareable_handle(handle, 0, 1))
    assert importer.free_nbytes == exporter.free_nbytes
    imported = ok(importer.rt.mem_import_from_shareable_handle(share, 1))

    assert importer.read(importer.map_new(imported), 11) == b"on device 1"
    importer.check_broken()
