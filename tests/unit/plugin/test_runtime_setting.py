# SPDX-License-Identifier: Apache-2.0
"""``CROSSMEM_RUNTIME`` names the runtime of a backend where the call names none."""

from typing import Any

import pytest

from crossmem.errors import ConfigurationError
from crossmem.plugin import DeviceSpec, Registry, choose
from crossmem.settings import Settings


def registry_with(world: Any, setting: str) -> Registry:
    runtimes = ("native", "slow")
    acme = world.backend(state="not_installed", reason="no library", runtimes=runtimes, priority=1)
    world.install("tools", tools=world.plugin(acme, world.backend("plain")))
    registry: Registry = world.registry(CROSSMEM_RUNTIME=setting)
    return registry


def test_it_is_used_where_the_call_names_none(world: Any) -> None:
    registry = registry_with(world, "acme=slow")

    assert registry.runtime_of("acme") == "slow"
    assert registry.runtime_of("plain") is None
    assert registry.driver("acme") is registry.driver("acme", runtime="slow")
    assert registry.driver("plain").backend == "plain"
    assert world.loads == [("acme", "slow"), ("plain", None)]


def test_an_argument_wins(world: Any) -> None:
    registry = registry_with(world, "acme=slow")

    registry.driver("acme", runtime="native")

    assert world.loads == [("acme", "native")]


def test_it_is_not_probed_for(world: Any) -> None:
    registry = registry_with(world, "acme=slow")

    assert registry.availability("acme").available
    assert choose(None, Settings(), registry).spec == DeviceSpec("acme")
    assert choose("acme", Settings(), registry).spec == DeviceSpec("acme")
    assert world.probes == []


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("acme=fast", "backend 'acme' has no runtime 'fast'\nHint: its runtimes: native, slow"),
        ("plain=fast", "backend 'plain' has no runtime 'fast'\nHint: its runtimes: none"),
        ("acne=slow", "no plugin offers the backend 'acne'\nHint: known backends: acme, plain"),
    ],
)
def test_what_no_plugin_offers_is_refused_each_time(world: Any, setting: str, message: str) -> None:
    registry = registry_with(world, setting)

    for question in (registry.names, registry.names, lambda: registry.runtime_of("plain")):
        with pytest.raises(ConfigurationError) as caught:
            question()
        assert str(caught.value) == f"CROSSMEM_RUNTIME: {message}"
