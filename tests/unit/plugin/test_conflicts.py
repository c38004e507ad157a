# SPDX-License-Identifier: Apache-2.0
"""What must not be guessed is reported: versions that differ and names that two plugins offer."""

from collections.abc import Iterable
from typing import Any

import pytest

from crossmem.errors import BackendUnavailableError, ConfigurationError
from crossmem.plugin import Backend, PluginFailure, PluginInfo, hookimpl


def test_version_mismatch(world: Any) -> None:
    new, good = world.backend("new", api_version=2), world.backend("good")
    world.install("acme", acme=world.plugin(new, good))
    registry = world.registry()

    assert registry.names() == ("good", "new")
    assert registry.backends() == (good,)
    assert registry.failures == (
        PluginFailure(
            "acme",
            "acme",
            "1.0",
            "backend 'new' is written for version 2 of the plugin interface; this crossmem "
            "supports version 1",
        ),
    )
    assert registry.availability("new").state == "unusable"
    with pytest.raises(BackendUnavailableError, match=r"plugin acme:acme 1\.0 is written for vers"):
        registry.driver("new")
    assert world.probes == world.loads == []


def test_ambiguous_name(world: Any) -> None:
    world.install("acme", acme=world.plugin(world.backend(priority=9)))
    world.install("rival", "2.0", acme=world.plugin(world.backend(priority=1)))
    registry = world.registry()

    assert registry.backends() == ()
    assert [str(one) for one in registry.failures] == [
        f"{who}: backend 'acme' is offered 2 times: by acme:acme 1.0, rival:acme 2.0"
        for who in ("acme:acme 1.0", "rival:acme 2.0")
    ]
    assert registry.availability("acme").state == "unusable"
    with pytest.raises(BackendUnavailableError) as caught:
        registry.driver("acme")
    assert caught.value.hint == (
        "set CROSSMEM_DISABLE_PLUGINS to the unwanted plugin: acme:acme or rival:acme"
    )
    assert world.probes == world.loads == []


def test_ambiguity_is_resolved_by_name(world: Any) -> None:
    world.install("acme", acme=world.plugin(world.backend(priority=9)))
    world.install("rival", acme=world.plugin(world.backend(priority=1)))

    registry = world.registry(CROSSMEM_DISABLE_PLUGINS="acme:acme")

    assert registry.backend("acme").priority == 1
    assert registry.failures == ()


def test_version_mismatch_makes_no_ambiguity(world: Any) -> None:
    world.install("acme", acme=world.plugin(world.backend(api_version=0)))
    world.install("rival", acme=world.plugin(world.backend(priority=1)))
    registry = world.registry()

    assert registry.backend("acme").priority == 1
    assert [one.distribution for one in registry.failures] == ["acme"]


def test_registered_plugins(world: Any) -> None:
    registry = world.registry()
    registry.register(world.plugin(world.backend()), name="mine")

    assert registry.names() == ("acme",)
    assert registry.plugins == (PluginInfo("mine"),)
    with pytest.raises(ConfigurationError, match="already a plugin named 'mine'"):
        registry.register(world.plugin(), name="mine")
    registry.unregister("mine")
    assert registry.names() == registry.plugins == ()
    with pytest.raises(ConfigurationError, match="no plugin is named 'mine'"):
        registry.unregister("mine")


def test_unregistering_leaves_what_others_offer(world: Any) -> None:
    world.install("acme", acme=world.plugin(world.backend(priority=1)))
    registry = world.registry()
    registry.register(world.plugin(world.backend(priority=2)), name="mine")

    assert len(registry.failures) == 2
    registry.unregister("mine")
    assert registry.failures == ()
    assert registry.backend("acme").priority == 1


def test_registering_what_is_broken_changes_nothing(world: Any) -> None:
    class Broken:
        @hookimpl
        def crossmem_event(self) -> None:
            pass

        @hookimpl
        def crossmem_backends(self) -> Iterable[Backend]:
            msg = "no idea"
            raise RuntimeError(msg)

    registry = world.registry()

    with pytest.raises(ConfigurationError, match="'mine' cannot be registered: no idea"):
        registry.register(Broken(), name="mine")
    assert registry.plugins == ()
    assert registry.observed is False
    registry.register(world.plugin(), name="mine")
