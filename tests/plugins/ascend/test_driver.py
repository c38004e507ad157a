# SPDX-License-Identifier: Apache-2.0
"""What the driver says of itself, and what it refuses before the vendor would."""

import os
from collections.abc import Callable
from dataclasses import asdict
from types import ModuleType
from typing import Any, cast

import pytest

import crossmem
from crossmem.driver import Exported, Peer, check_groups, witness_of
from crossmem_ascend import library
from crossmem_ascend.driver import AscendDriver
from crossmem_ascend.runtime import KEY, PEER_ACCESS, SHAREABLE, Rt

MIB = 1 << 20


def without(acl: Any, functions: frozenset[str]) -> Any:
    """Take functions away from a runtime, as an older one lacks them."""
    kind = type(acl.rt)
    acl.rt.__class__ = type(
        "Older",
        (kind,),
        {name: property(lambda _: (_ for _ in ()).throw(AttributeError)) for name in functions},
    )
    return acl


def test_capabilities_by_mechanism(acl: Any) -> None:
    driver = AscendDriver(acl)
    shareable, key = (driver.capabilities(0, name) for name in ("shareable", "key"))
    differ = {name for name, value in asdict(shareable).items() if value != asdict(key)[name]}

    assert driver.capabilities(0, None) == shareable
    assert shareable.mechanisms == ("shareable", "key")
    assert differ == {"survives_owner", "peer_access", "address_ranges"}
    assert (shareable.survives_owner, key.survives_owner) == (True, False)
    assert (shareable.peer_access, key.peer_access) == (True, False)
    assert not any((shareable.fork_safe, shareable.host_visible, shareable.readonly_imports))


def test_capabilities_ask_the_vendor_once(acl: Any) -> None:
    driver = AscendDriver(acl)
    driver.capabilities(0, "key")
    asked = list(acl.rt.calls)
    for name in (None, "shareable", "key"):
        driver.capabilities(0, name)

    assert acl.rt.calls == asked


def test_without_a_way_between_devices_there_is_no_peer_access(
    acl: Any, fake_acl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acl.rt, "device_can_access_peer", lambda *_: (0, 0))

    assert not AscendDriver(acl).capabilities(0, None).peer_access
    assert not AscendDriver(fake_acl(devices=1)).capabilities(0, None).peer_access
    assert not AscendDriver(without(fake_acl(), PEER_ACCESS)).capabilities(0, None).peer_access


def test_an_older_runtime_offers_what_it_has(fake_acl: Any) -> None:
    only_key = AscendDriver(without(fake_acl(), frozenset({"map_mem"})))
    only_shareable = AscendDriver(without(fake_acl(), frozenset({"ipc_mem_close"})))

    assert only_key.capabilities(0, None).mechanisms == ("key",)
    assert not only_key.capabilities(0, None).survives_owner
    assert only_shareable.capabilities(0, None).mechanisms == ("shareable",)
    assert check_groups(only_key) == check_groups(only_shareable) == []


def test_a_runtime_that_cannot_share_is_refused(fake_acl: Any) -> None:
    acl = without(fake_acl(), frozenset({"map_mem", "ipc_mem_close"}))
    with pytest.raises(
        crossmem.BackendUnavailableError, match=r"shareable needs map_mem; key needs ipc_mem_close"
    ):
        AscendDriver(acl)


def test_a_runtime_that_lacks_the_basics_is_refused(fake_acl: Any) -> None:
    with pytest.raises(crossmem.BackendUnavailableError, match=r"lacks memcpy_async of acl\.rt"):
        AscendDriver(without(fake_acl(), frozenset({"memcpy_async"})))


def test_the_port_names_every_function_that_is_needed() -> None:
    functions = {name for name in vars(Rt) if not name.startswith("_")}

    assert functions >= SHAREABLE | KEY | PEER_ACCESS


def test_groups_are_whole(acl: Any) -> None:
    assert check_groups(AscendDriver(acl)) == []


def test_only_an_emulation_is_a_witness(acl: Any, fake_acl: Any) -> None:
    strict = fake_acl()
    strict.violations = [("rt.free", "twice")]
    witness = witness_of(AscendDriver(strict))

    assert witness_of(AscendDriver(acl)) is None
    assert witness is not None
    assert witness.violations() == ["('rt.free', 'twice')"]


# Devices ----------------------------------------------------------------------------------


def test_a_device_is_named_by_its_uuid(acl: Any) -> None:
    acl.rt.uuids = {0: list(range(16)), 1: [-1, *[0] * 15]}
    devices = AscendDriver(acl).devices()

    assert [one.identity for one in devices] == [
        "npu:000102030405060708090a0b0c0d0e0f",
        "npu:ff" + "00" * 15,
    ]
    assert {one.name for one in devices} == {"Ascend910B1"}
    assert {one.total_nbytes for one in devices} == {None}


def test_a_pyacl_without_uuids_takes_them_from_the_library(
    fake_acl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = fake_acl()
    opened.rt.uuids = {0: list(range(16))}
    pyacl = cast("Any", ModuleType("acl"))
    old = without(fake_acl(), frozenset({"device_get_uuid"}))
    vars(pyacl).update(init=old.init, rt=old.rt)
    monkeypatch.setattr(library, "acl_library", lambda: None)
    monkeypatch.setattr(library, "LibraryAcl", lambda _: opened)

    assert AscendDriver(pyacl).devices()[0].identity == "npu:000102030405060708090a0b0c0d0e0f"


@pytest.mark.parametrize("mask", ["", "0,1", "5,2"])
def test_without_a_uuid_it_is_named_by_its_number_on_the_machine(
    mask: str, acl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", mask)
    acl.rt.fail("device_get_uuid", 207000)
    names = (mask or "0,1").split(",")

    assert [one.identity for one in AscendDriver(acl).devices()] == [f"npu:{one}" for one in names]


@pytest.mark.parametrize("mask", ["7", "1-2", "a,b"])
def test_a_mask_that_does_not_tell_is_refused(
    mask: str, acl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", mask)
    with pytest.raises(crossmem.ConfigurationError, match="ASCEND_RT_VISIBLE_DEVICES"):
        AscendDriver(acl)


def test_a_runtime_without_names_has_devices_all_the_same(fake_acl: Any) -> None:
    acl = without(fake_acl(), frozenset({"device_get_uuid"}))
    acl.get_soc_name = lambda: None

    assert [(one.identity, one.name) for one in AscendDriver(acl).devices()] == [
        ("npu:0", "Ascend NPU"),
        ("npu:1", "Ascend NPU"),
    ]


# Exports ----------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [False, True])
def test_an_allocation_is_exported_raw_or_leased(raw: bool, acl: Any, story: Any) -> None:
    driver, mechanism = story._driver, story._mechanism
    story.allocate()
    driver.export(story.block, mechanism, "rw", raw=raw)
    with pytest.raises(crossmem.UnsupportedError, match="cannot be exported"):
        driver.export(story.block, mechanism, "rw", raw=not raw)
    (export,) = (call for call in acl.rt.calls if "export" in call[0])

    assert export[-1] == int(raw)


def test_a_driver_that_cannot_leave_the_whitelist_off(
    acl: Any, story_of: Callable[[str], Any]
) -> None:
    story = story_of("shareable")
    story.allocate()
    acl.rt.fail("mem_export_to_shareable_handle", 207000)
    with pytest.raises(crossmem.UnsupportedError, match="without a whitelist"):
        story._driver.export(story.block, "shareable", "rw", raw=True)
    with pytest.raises(crossmem.UnsupportedError):
        story._driver.export(story.block, "shareable", "rw", raw=True)
    story.export()
    story.grant()

    # The vendor exports a handle once, so what it gave beside its refusal is used.
    assert acl.rt.named().count("mem_export_to_shareable_handle") == 1
    assert ("mem_set_pid_to_shareable_handle", story.block.reference.share, [70]) in acl.rt.calls


def test_a_driver_that_knows_no_flags(acl: Any, story_of: Callable[[str], Any]) -> None:
    story = story_of("shareable")
    story.allocate()
    acl.rt.fail("mem_export_to_shareable_handle", 107000)
    with pytest.raises(crossmem.UnsupportedError, match="without a whitelist"):
        story._driver.export(story.block, "shareable", "rw", raw=True)
    story.export()

    assert [call[-1] for call in acl.rt.calls if "export" in call[0]] == [1, 0]


# The whitelist ----------------------------------------------------------------------------


def test_who_this_process_is(acl: Any, driver: AscendDriver) -> None:
    assert driver.peer_identity() == acl.rt.tgid
    assert acl.rt.calls == []


@pytest.mark.parametrize("reported", [0, -1, 1 << 31])
def test_a_peer_that_reports_no_process(reported: int, acl: Any, story: Any) -> None:
    story.until("grant")
    acl.rt.calls.clear()
    with pytest.raises(crossmem.AccessDeniedError, match="which is not a process number"):
        story._driver.grant(story.block, story.exported, [Peer(7, reported)])

    assert acl.rt.calls == []


def test_a_peer_that_reports_the_exporter(acl: Any, story: Any) -> None:
    story.until("grant")
    with pytest.raises(crossmem.AccessDeniedError, match="which is the exporter's"):
        story._driver.grant(story.block, story.exported, [Peer(7, acl.rt.tgid)])


def test_outside_containers_a_peer_reports_its_own_pid(acl: Any, fake_acl: Any) -> None:
    acl.rt.tgid = os.getpid()
    driver = AscendDriver(acl)
    block = driver.allocate(0, 1, "shareable")
    exported = driver.export(block, "shareable", "rw", raw=False)
    driver.grant(block, exported, [Peer(70, 70)])
    driver.grant(block, exported, [Peer(0, 71)])
    with pytest.raises(crossmem.AccessDeniedError, match="72, but is process 73"):
        driver.grant(block, exported, [Peer(73, 72)])


def test_the_whitelist_of_a_key_is_filled_in_portions(
    acl: Any, story_of: Callable[[str], Any]
) -> None:
    story = story_of("key")
    story.until("grant")
    acl.rt.calls.clear()
    peers = [Peer(0, acl.rt.tgid + one) for one in range(1, 34)]
    story._driver.grant(story.block, story.exported, peers)
    portions = [call[2] for call in acl.rt.calls if "pid" in call[0]]

    assert [len(one) for one in portions] == [31, 2]


def test_a_whitelist_that_is_full_says_so(acl: Any, story: Any) -> None:
    story.until("grant")
    reference = story.block.reference
    limit = reference.mechanism.whitelist_limit
    reference.admitted.update(range(1, limit + 1))
    # Who is on it may come again, as another process with the same number.
    story._driver.grant(story.block, story.exported, [Peer(0, limit)])
    with pytest.raises(crossmem.AccessDeniedError, match=f"admits at most {limit} processes"):
        story._driver.grant(story.block, story.exported, [Peer(0, limit + 1)])


# Imports ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "exported"),
    [
        ("shareable", Exported()),
        ("shareable", Exported((bytes(7),))),
        ("shareable", Exported((bytes(8), bytes(8)))),
        ("shareable", Exported((bytes(8),), (1,))),
        ("key", Exported((b"a" * 63,))),
        ("key", Exported((b"\xff" * 64,))),
        ("key", Exported((b"a" * 63 + b"\0",))),
    ],
)
def test_payloads_that_no_export_made(
    mechanism: str, exported: Exported, acl: Any, driver: AscendDriver
) -> None:
    with pytest.raises(crossmem.InvalidHandleError):
        driver.import_(
            0,
            exported,
            home=0,
            mechanism=mechanism,
            nbytes=1,
            capacity=2 * MIB,
            access="rw",
        )

    assert acl.rt.named() == []


@pytest.mark.parametrize(
    ("nbytes", "capacity"), [(0, 2 * MIB), (3 * MIB, 2 * MIB), (1, MIB), (0, 0)]
)
def test_sizes_that_no_export_has(
    nbytes: int, capacity: int, acl: Any, driver: AscendDriver
) -> None:
    with pytest.raises(crossmem.InvalidHandleError, match="must be a multiple"):
        driver.import_(
            0,
            Exported((bytes(8),)),
            home=0,
            mechanism="shareable",
            nbytes=nbytes,
            capacity=capacity,
            access="rw",
        )

    assert acl.rt.named() == []


def test_keys_stay_on_their_device(acl: Any, driver: AscendDriver) -> None:
    with pytest.raises(crossmem.UnsupportedError, match="one device") as raised:
        driver.import_(
            1,
            Exported((b"a" * 64,)),
            home=0,
            mechanism="key",
            nbytes=1,
            capacity=2 * MIB,
            access="rw",
        )

    assert raised.value.hint is not None
    assert "shareable" in raised.value.hint
    assert acl.rt.named() == []
