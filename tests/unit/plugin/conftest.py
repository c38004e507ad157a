# SPDX-License-Identifier: Apache-2.0
"""Plugins made up for a test: no test here depends on what is installed."""

import itertools
import os
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from typing import Any, cast

import pytest
from typing_extensions import override

from crossmem.driver import Driver
from crossmem.plugin import Availability, Backend, Registry, hookimpl
from crossmem.settings import Settings


class FakeDistribution(Distribution):
    """An installed distribution without files."""

    def __init__(self, name: str, version: str, points: dict[str, str]) -> None:
        lines = "".join(f"{name} = {value}\n" for name, value in points.items())
        self.files_by_name = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            "entry_points.txt": f"[crossmem]\n{lines}",
        }

    @override
    def read_text(self, filename: str | os.PathLike[str]) -> str | None:
        return self.files_by_name.get(str(filename))

    @override
    def locate_file(self, path: str | os.PathLike[str]) -> Any:
        return Path("/nowhere") / path


class World:
    """Makes backends, plugins, distributions and registries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._numbers = itertools.count()
        self.probes: list[str] = []
        self.loads: list[tuple[str, str | None]] = []
        self.points: list[EntryPoint] = []

    def driver(self, backend: str) -> Driver:
        methods = {name: lambda *_, **__: None for name in Driver.__abstractmethods__}
        made = type("FakeDriver", (Driver,), {**methods, "backend": backend})()
        return cast("Driver", made)

    def backend(
        self, name: str = "acme", state: str = "available", reason: str = "", **fields: Any
    ) -> Backend:
        def probe() -> Availability:
            self.probes.append(name)
            return Availability(cast("Any", state), reason)

        def load(runtime: str | None) -> Driver:
            self.loads.append((name, runtime))
            return self.driver(name)

        given: dict[str, Any] = {
            "summary": f"memory of {name}",
            "api_version": 1,
            "probe": probe,
            "load": load,
        }
        return Backend(name=name, **(given | fields))

    def plugin(
        self,
        *backends: Backend,
        runtime: Callable[[str, str], object] | None = None,
        event: Callable[[Any], object] | None = None,
    ) -> Any:
        """Return an object with the hooks for which there is something to do."""

        class Plugin:
            if backends:

                @hookimpl
                def crossmem_backends(self) -> Iterable[Backend]:
                    return backends

            if runtime:

                @hookimpl
                def crossmem_runtime(self, api: str, name: str) -> object:
                    return answer(api, name)

            if event:

                @hookimpl
                def crossmem_event(self, event: Any) -> None:
                    observe(event)

        answer = cast("Callable[[str, str], object]", runtime)
        observe = cast("Callable[[Any], object]", event)
        return Plugin()

    def module(self, plugin: object, name: str = "") -> str:
        """Make a plugin importable and return the name of its module."""
        name = name or f"made_up_plugin_{next(self._numbers)}"
        self._monkeypatch.setitem(sys.modules, name, cast("Any", plugin))
        return name

    def install(self, distribution: str, version: str = "1.0", /, **plugins: object) -> None:
        """Install a distribution whose entry points name plugins, or modules by name."""
        values = {
            name: plugin if isinstance(plugin, str) else self.module(plugin)
            for name, plugin in plugins.items()
        }
        self.points += FakeDistribution(distribution, version, values).entry_points

    def registry(self, **environ: str) -> Registry:
        settings = Settings.from_environ(environ)
        return Registry(settings, entry_points=self.points)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)
