# SPDX-License-Identifier: Apache-2.0
"""What a plugin says about a backend is checked where it says it."""

from typing import Any

import pytest

from crossmem.errors import ConfigurationError
from crossmem.plugin import Availability


def test_available() -> None:
    availability = Availability("available")

    assert availability.available
    assert str(availability) == "available"


def test_unavailable_says_why() -> None:
    availability = Availability("not_installed", "libacme.so.1 was not found")

    assert not availability.available
    assert str(availability) == "not installed: libacme.so.1 was not found"


def test_no_reason() -> None:
    with pytest.raises(ConfigurationError, match="'unusable' needs a reason"):
        Availability("unusable")


def test_states_are_three() -> None:
    state: Any = "perhaps"

    with pytest.raises(ConfigurationError, match="'perhaps' must be one of 'available', 'not_inst"):
        Availability(state, "who knows")


@pytest.mark.parametrize("name", ["", "Acme", "1acme", "ac me", "acme:0", "a" * 33, "acme\n"])
def test_names_that_no_handle_can_hold(world: Any, name: str) -> None:
    with pytest.raises(ConfigurationError, match="does not match"):
        world.backend(name)


def test_names(world: Any) -> None:
    assert world.backend("acme_2-x").name == "acme_2-x"
    assert len(world.backend("a" * 32).name) == 32


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("summary", None),
        ("probe", Availability("available")),
        ("load", "crossmem_acme:load"),
        ("priority", "high"),
        ("priority", 1.5),
        ("priority", True),
        ("install_hint", 5),
        ("runtimes", None),
        ("runtimes", "cupy"),
        ("runtimes", ("cupy", None)),
    ],
)
def test_a_field_of_a_wrong_type_is_named(world: Any, field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{field} of backend 'acme' must be of the type"):
        world.backend(**{field: value})
