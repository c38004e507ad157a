# SPDX-License-Identifier: Apache-2.0
"""Plugins are found in a fixed order, and a broken one is recorded while the rest work."""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from programs import DEADLINE_S

from crossmem.plugin import Backend, PluginFailure, PluginInfo, Registry, hookimpl
from crossmem.settings import Settings

GOOD = "from crossmem.plugin import hookimpl\n"


def site(folder: Path, sources: dict[str, str], entry_points: str) -> None:
    """Write modules and the metadata of the distribution that has them."""
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source, "utf-8")
    metadata = folder / "acme_tools-2.5.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: Acme.Tools\nVersion: 2.5\n", "utf-8"
    )
    (metadata / "entry_points.txt").write_text(entry_points, "utf-8")


def test_nothing_is_discovered_before_it_is_needed(world: Any) -> None:
    imported = []

    class Lazy:
        def load(self) -> object:
            imported.append(self)
            return object()

    Registry(entry_points=[Lazy()])  # type: ignore[list-item]

    assert imported == []


def test_each_is_loaded_once(world: Any) -> None:
    calls = []

    class Plugin:
        @hookimpl
        def crossmem_backends(self) -> Iterable[Backend]:
            calls.append(1)
            return [world.backend()]

    world.install("acme", acme=Plugin())
    registry = world.registry()
    registry.names()
    registry.backend("acme")
    registry.driver("acme")

    assert calls == [1]


def test_threads_share_one_discovery(world: Any) -> None:
    arrived = threading.Barrier(4)
    calls = []

    class Slow:
        @hookimpl
        def crossmem_backends(self) -> Iterable[Backend]:
            calls.append(1)
            time.sleep(0.1)  # Long enough for the other threads to come.
            return [world.backend()]

    def use(_: int) -> tuple[str, ...]:
        arrived.wait(10)
        return registry.names()

    world.install("acme", acme=Slow())
    registry: Registry = world.registry()
    with ThreadPoolExecutor(4) as pool:
        answers = set(pool.map(use, range(4)))

    assert answers == {("acme",)}
    assert calls == [1]


def test_plugins_are_named_with_their_distribution(world: Any) -> None:
    world.install("zeta", "0.3", last=world.plugin())
    world.install("acme", "1.2", one=world.plugin(), other=world.plugin())
    module = world.module(world.plugin(), "made_up_module")

    registry = world.registry(CROSSMEM_PLUGINS=module)

    assert registry.plugins == (
        PluginInfo("one", "acme", "1.2"),
        PluginInfo("other", "acme", "1.2"),
        PluginInfo("last", "zeta", "0.3"),
        PluginInfo("made_up_module"),
    )
    assert list(map(str, registry.plugins)) == [
        "acme:one 1.2",
        "acme:other 1.2",
        "zeta:last 0.3",
        "made_up_module",
    ]


def test_order_of_installation_does_not_matter(world: Any) -> None:
    for name in ("b", "a", "c"):
        world.install(name, plugin=world.plugin(world.backend(name)))
    first = world.registry()
    world.points.reverse()
    second = world.registry()

    assert [info.distribution for info in first.plugins] == ["a", "b", "c"]
    assert first.plugins == second.plugins


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import no_such_vendor_module\n", "ModuleNotFoundError: No module named 'no_such_vendor"),
        ("raise OSError('libacme.so.1: cannot open')\n", "OSError: libacme.so.1: cannot open"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        ("def broken(:\n", "SyntaxError: "),
    ],
)
def test_broken_import(
    source: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site(
        tmp_path,
        {"acme_bad": source, "acme_good": GOOD},
        "[crossmem]\nbad = acme_bad\ngood = acme_good\nmissing = acme_good:nothing\n",
    )
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("acme_bad", "acme_good"):
        monkeypatch.delitem(sys.modules, module, raising=False)

    registry = Registry()
    failed, missing = (one for one in registry.failures if one.distribution == "Acme.Tools")

    assert (failed.plugin, failed.version) == ("bad", "2.5")
    assert failed.error.startswith(error)
    assert missing.plugin == "missing"
    assert missing.error.startswith("AttributeError: ")
    assert PluginInfo("good", "Acme.Tools", "2.5") in registry.plugins


def test_broken_metadata_of_anyone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: Any
) -> None:
    broken, shadowed = tmp_path / "broken", tmp_path / "shadowed"
    for folder in (broken, shadowed):
        folder.mkdir()
    (broken / "junk-1.dist-info").mkdir()
    (broken / "junk-1.dist-info" / "METADATA").write_text("Name: junk\nVersion: 1\n", "utf-8")
    (broken / "junk-1.dist-info" / "entry_points.txt").write_text("[any]\nno value\n", "utf-8")
    site(broken, {"acme_fine": GOOD}, "[crossmem]\nfine = acme_fine\n")
    site(shadowed, {}, "[crossmem]\nold = acme_old\n")
    monkeypatch.setattr(sys, "path", [str(broken), str(shadowed), *sys.path])
    monkeypatch.delitem(sys.modules, "acme_fine", raising=False)

    registry = Registry()
    names = {info.plugin for info in registry.plugins}

    assert "fine" in names
    assert [one.distribution for one in registry.failures] == ["junk"]
    assert registry.failures[0].plugin == "(entry points)"


def test_distribution_without_readable_metadata(world: Any) -> None:
    world.install("acme", acme=world.plugin(world.backend()))
    world.points[0].dist.files_by_name["METADATA"] = "Version: 1.0\n"
    world.install("worse", worse=world.plugin(world.backend("worse")))
    del world.points[1].dist.files_by_name["METADATA"]
    world.install("worst", worst=world.plugin(world.backend("worst")))
    del world.points[2].dist.files_by_name
    registry = world.registry()

    assert registry.names() == ("acme", "worse", "worst")
    assert [info.plugin for info in registry.plugins] == ["acme", "worse", "worst"]
    assert registry.offered_by("worst") == (PluginInfo("worst"),)


def test_failures_are_logged(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    world.install("acme", "1.2", bad="no_such_module_of_acme")

    with caplog.at_level(logging.WARNING, "crossmem"):
        failures = world.registry().failures

    error = "ModuleNotFoundError: No module named 'no_such_module_of_acme'"
    assert failures == (PluginFailure("bad", "acme", "1.2", error),)
    assert caplog.messages == [f"plugin acme:bad 1.2: {error}"]


def test_hook_that_raises(world: Any) -> None:
    class Raises:
        @hookimpl
        def crossmem_backends(self) -> Iterable[Backend]:
            msg = "no idea"
            raise RuntimeError(msg)

    class Midway:
        @hookimpl
        def crossmem_backends(self) -> Iterator[Backend]:
            yield world.backend("half")
            msg = "lost the rest"
            raise RuntimeError(msg)

    world.install("acme", a=Raises(), b=Midway(), c=world.plugin(world.backend("fine")))
    registry = world.registry()

    assert registry.names() == ("fine",)
    assert [(one.plugin, one.error) for one in registry.failures] == [
        ("a", "RuntimeError: no idea"),
        ("b", "RuntimeError: lost the rest"),
    ]
    assert [info.plugin for info in registry.plugins] == ["c"]


@pytest.mark.parametrize("answer", [None, ["acme"], 7])
def test_hook_that_gives_no_backends(world: Any, answer: Any) -> None:
    class Wrong:
        @hookimpl
        def crossmem_backends(self) -> Any:
            return answer

    world.install("acme", a=Wrong())

    assert "not a crossmem.plugin.Backend" in world.registry().failures[0].error


def test_one_backend_without_a_list_is_no_fault(world: Any) -> None:
    class Single:
        @hookimpl
        def crossmem_backends(self) -> Any:
            return world.backend()

    world.install("acme", a=Single())
    registry = world.registry()

    assert registry.failures == ()
    assert registry.names() == ("acme",)


def test_misspelt_hook(world: Any) -> None:
    class Misspelt:
        @hookimpl
        def crossmem_backend(self) -> None:
            pass

    class FromTheFuture:
        @hookimpl(optionalhook=True)
        def crossmem_weather(self) -> None:
            pass

    world.install("acme", a=Misspelt(), b=FromTheFuture())
    registry = world.registry()

    assert [one.plugin for one in registry.failures] == ["a"]
    assert "unknown hook, crossmem_backend; known hooks: crossmem_backends, crossmem_emulate" in (
        registry.failures[0].error
    )


def test_hook_with_unknown_parameter(world: Any) -> None:
    class Wrong:
        @hookimpl
        def crossmem_event(self, event: Any, colour: Any) -> None:
            pass

    world.install("acme", a=Wrong(), b=world.plugin(world.backend()))
    registry = world.registry()

    assert [one.plugin for one in registry.failures] == ["a"]
    assert "colour" in registry.failures[0].error
    assert registry.observed is False


def test_wrappers_are_refused(world: Any) -> None:
    class Wrapper:
        @hookimpl(wrapper=True)
        def crossmem_backends(self) -> Any:
            return (yield)

    class OldWrapper:
        @hookimpl(hookwrapper=True)
        def crossmem_event(self) -> Any:
            yield

    world.install("acme", a=Wrapper(), b=OldWrapper())

    assert ["is a wrapper" in one.error for one in world.registry().failures] == [True, True]


def test_classes_are_refused(world: Any) -> None:
    class Hooks:
        @hookimpl
        def crossmem_event(self) -> None:
            pass

    world.install("acme", a=Hooks)

    assert "Hooks is a class" in world.registry().failures[0].error


def test_plugin_named_twice_is_one(world: Any) -> None:
    module = world.module(world.plugin(world.backend()))
    world.install("acme", acme=module)

    registry = world.registry(CROSSMEM_PLUGINS=f"{module},{module}")

    assert registry.failures == ()
    assert registry.plugins == (PluginInfo("acme", "acme", "1.0"),)


def test_modules_named_in_the_environment(world: Any) -> None:
    module = world.module(world.plugin(world.backend()))

    registry = world.registry(CROSSMEM_PLUGINS=f"no_such_module_here,{module}")

    assert registry.names() == ("acme",)
    assert [one.plugin for one in registry.failures] == ["no_such_module_here"]


@pytest.mark.parametrize("block", ["acme", "ACME", "Acme_Tools:acme", "acme-tools:acme"])
def test_disabled(world: Any, block: str) -> None:
    world.install("acme.tools", acme="a_module_that_is_never_imported")
    world.install("other", other=world.plugin(world.backend("other")))

    registry = world.registry(CROSSMEM_DISABLE_PLUGINS=block)

    assert registry.disabled == (PluginInfo("acme", "acme.tools", "1.0"),)
    assert registry.failures == ()
    assert registry.names() == ("other",)


def test_disabled_module(world: Any) -> None:
    registry = world.registry(CROSSMEM_PLUGINS="a.b", CROSSMEM_DISABLE_PLUGINS="a.b")

    assert registry.disabled == (PluginInfo("a.b"),)
    assert registry.failures == ()


def test_plugin_that_uses_crossmem_while_it_is_discovered(world: Any) -> None:
    registries: list[Registry] = []

    class Impatient:
        @hookimpl
        def crossmem_backends(self) -> Iterable[Backend]:
            registries[0].names()
            return ()

    world.install("acme", acme=Impatient(), fine=world.plugin(world.backend()))
    registries.append(world.registry())

    assert registries[0].names() == ("acme",)
    assert "while plugins were being discovered" in registries[0].failures[0].error


def test_interrupt_is_no_fault_of_a_plugin(world: Any) -> None:
    interrupts = [KeyboardInterrupt()]

    class Slow:
        @hookimpl
        def crossmem_backends(self) -> Iterable[Backend]:
            if interrupts:
                raise interrupts.pop()
            return [world.backend()]

    world.install("acme", acme=Slow())
    registry = world.registry()

    with pytest.raises(KeyboardInterrupt):
        registry.names()
    assert registry.names() == ("acme",)


def test_installed_plugins_are_found() -> None:
    registry = Registry(Settings())

    assert "emulated" in registry.names()
    assert registry.backend("emulated").priority is None


def test_hooks_of_installed_plugins_load_no_vendor() -> None:
    script = (
        "import importlib.metadata, sys\n"
        "for name in ('acl', 'cupy', 'hip', 'torch', 'numpy'):\n"
        "    sys.modules[name] = None\n"
        "own = importlib.metadata.distribution('crossmem').entry_points\n"
        "for point in own.select(group='crossmem'):\n"
        "    point.load()\n"
        "    print(point.name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert done.stderr == ""
    assert "emulated" in done.stdout.split()
