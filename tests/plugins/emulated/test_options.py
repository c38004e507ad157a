# SPDX-License-Identifier: Apache-2.0
"""The variables CROSSMEM_EMULATED_*."""

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from crossmem.errors import ConfigurationError
from crossmem_emulated.driver import EmulatedDriver
from crossmem_emulated.options import VARIABLES, Options

PREFIX = "CROSSMEM_EMULATED_"


def test_defaults() -> None:
    options = Options.from_environ({})

    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert options.devices == 2
    assert options.visible == (0, 1)
    assert memory // 2 - (2 << 20) < options.capacity_nbytes <= memory // 2
    assert options.granularity_nbytes == 2 << 20
    assert options.hugepages
    assert not options.prefault
    assert not options.poison


def test_every_field_has_its_variable() -> None:
    assert set(VARIABLES.values()) == {one.name for one in fields(Options)}


def test_empty_and_foreign_variables_mean_nothing() -> None:
    environ = {**dict.fromkeys(VARIABLES, ""), "CROSSMEM_DEVICE": "hip:0", "PATH": "/bin"}

    assert Options.from_environ(environ) == Options()


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("2097152", 2 << 20),
        ("2097152B", 2 << 20),
        ("2048KiB", 2 << 20),
        ("64 MiB", 64 << 20),
        (" 8GiB ", 8 << 30),
        ("8gib", 8 << 30),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert Options.from_environ({PREFIX + "CAPACITY": text}).capacity_nbytes == nbytes


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("true", True), ("on", True), ("0", False), ("no", False)]
)
@pytest.mark.parametrize("name", ["prefault", "hugepages", "poison"])
def test_switches(name: str, text: str, value: bool) -> None:
    assert getattr(Options.from_environ({PREFIX + name.upper(): text}), name) is value


def test_page_granularity() -> None:
    options = Options.from_environ({PREFIX + "GRANULARITY": "page", PREFIX + "CAPACITY": "64KiB"})

    assert options.granularity_nbytes == os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DEVICES", "0"),
        ("DEVICES", "-1"),
        ("DEVICES", "many"),
        ("DEVICES", "1025"),
        ("CAPACITY", "0"),
        ("CAPACITY", "1MiB"),
        ("CAPACITY", "-1"),
        ("CAPACITY", "8GB"),
        ("CAPACITY", "1.5GiB"),
        ("CAPACITY", "4194304TiB"),
        ("CAPACITY", "GiB"),
        ("GRANULARITY", "4KiB"),
        ("GRANULARITY", "2mib"),
        ("PREFAULT", "maybe"),
        ("HUGEPAGES", "2"),
        ("POISON", "0xA5"),
        ("VISIBLE_DEVICES", "2"),
        ("VISIBLE_DEVICES", "-1"),
        ("VISIBLE_DEVICES", "0,0"),
        ("VISIBLE_DEVICES", "0,"),
        ("VISIBLE_DEVICES", "all"),
    ],
)
def test_a_bad_value_is_named_with_its_variable_and_what_is_allowed(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=r" must be .*, not '") as caught:
        Options.from_environ({PREFIX + name: value})

    assert str(caught.value).startswith(f"{PREFIX}{name} must be ")
    assert str(caught.value).endswith(f", not {value!r}")


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("devices", True),
        ("granularity", "4KiB"),
        ("capacity_nbytes", "8GiB"),
        ("capacity_nbytes", 4096),
        ("capacity_nbytes", 2**62),
        ("prefault", 1),
        ("visible_devices", ()),
        ("visible_devices", [0]),
        ("visible_devices", (2,)),
        ("state", Path("here")),
        ("hip_profile", None),
        ("hip_quirks", ("unknown",)),
    ],
)
def test_options_made_in_code_are_checked_too(field: str, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"^Options\.{field} is .*; it must be "):
        Options(**{field: wrong})


def test_the_mask_is_checked_against_the_number_of_devices() -> None:
    environ = {PREFIX + "DEVICES": "4", PREFIX + "VISIBLE_DEVICES": "3, 1"}

    assert Options.from_environ(environ).visible == (3, 1)
    with pytest.raises(ConfigurationError, match="below CROSSMEM_EMULATED_DEVICES"):
        Options.from_environ({**environ, PREFIX + "DEVICES": "3"})


def test_a_mask_renumbers_devices_and_keeps_their_identities() -> None:
    everything = EmulatedDriver(Options(devices=4)).devices()
    some = EmulatedDriver(Options(devices=4, visible_devices=(3, 1))).devices()

    assert [device.ordinal for device in some] == [0, 1]
    assert [device.identity for device in some] == ["host:3", "host:1"]
    assert [device.name for device in some] == [everything[3].name, everything[1].name]


def test_a_capacity_is_rounded_down_to_the_granularity() -> None:
    driver = EmulatedDriver(Options(capacity_nbytes=(5 << 20) + 1))

    assert driver.devices()[0].total_nbytes == 4 << 20
    assert driver.capabilities(0, None).max_allocation_nbytes == 4 << 20
