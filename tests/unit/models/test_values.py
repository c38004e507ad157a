# SPDX-License-Identifier: Apache-2.0
"""Devices and capabilities as values: immutable, and checked where a driver makes them."""

import pickle
from dataclasses import FrozenInstanceError, asdict, fields, replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from crossmem import Capabilities, ConfigurationError, DeviceInfo

FLAGS = [one.name for one in fields(Capabilities) if one.type is bool]
INFO = DeviceInfo(ordinal=1, identity="host:1", name="Device 1", total_nbytes=None)
CAPABILITIES = Capabilities(
    mechanisms=("memfd",),
    granularity_nbytes=4096,
    max_allocation_nbytes=1 << 40,
    **dict.fromkeys(FLAGS, True),  # type: ignore[arg-type]
)


@pytest.mark.parametrize("value", [INFO, CAPABILITIES])
def test_values_are_immutable_and_travel(value: Any) -> None:
    copied = pickle.loads(pickle.dumps(value))  # noqa: S301
    adapter = TypeAdapter(type(value))

    assert copied == value
    assert hash(copied) == hash(value)
    assert repr(copied) == repr(value)
    assert adapter.validate_json(adapter.dump_json(value)) == value
    with pytest.raises(FrozenInstanceError):
        setattr(value, next(iter(asdict(value))), None)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("ordinal", -1),
        ("ordinal", 65536),
        ("ordinal", True),
        ("ordinal", "1"),
        ("identity", ""),
        ("identity", "two words"),
        ("identity", "gerät"),
        ("identity", "x\n"),
        ("identity", "x" * 129),
        ("identity", b"host:1"),
        ("name", ""),
        ("name", "x" * 257),
        ("name", None),
        ("total_nbytes", -1),
        ("total_nbytes", 1.5),
    ],
)
def test_a_wrong_field_of_a_device_is_named(field: str, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"^DeviceInfo\.{field} is .*; it must be "):
        replace(INFO, **{field: wrong})


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("mechanisms", ()),
        ("mechanisms", ["memfd"]),
        ("mechanisms", ("Memfd",)),
        ("mechanisms", ("memfd\n",)),
        ("mechanisms", ("m" * 33,)),
        ("granularity_nbytes", 0),
        ("max_allocation_nbytes", 0),
        ("max_allocation_nbytes", 1.0),
        ("dlpack_device_type", 0),
        ("dlpack_device_type", 2**31),
        ("lease_end", "never"),
        *((flag, 1) for flag in FLAGS),
    ],
)
def test_a_wrong_field_of_capabilities_is_named(field: str, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"^Capabilities\.{field} is .*; it must be "):
        replace(CAPABILITIES, **{field: wrong})
