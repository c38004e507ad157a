# SPDX-License-Identifier: Apache-2.0
"""crossmem.ray where Ray is missing, or lacks something."""

import sys
from types import ModuleType
from typing import Any

import pytest

import crossmem
from crossmem.ray.serializers import register


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(crossmem.UnsupportedError, match=r"install crossmem\[ray\]"):
        register()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("SerializationContext", "is_in_band_serialization"),
        ("CoreWorker", "add_object_out_of_scope_callback"),
        ("FunctionActorManager", "lock"),
    ],
)
def test_a_ray_that_lacks_something_is_refused(
    owner: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def has(which: str, attribute: str) -> Any:
        return type(which, (), {} if which == owner else {attribute: None})

    fake: Any = ModuleType("ray")
    fake.__version__ = "2.0.0"
    fake._raylet = ModuleType("ray._raylet")
    fake._raylet.CoreWorker = has("CoreWorker", "add_object_out_of_scope_callback")
    serialization: Any = ModuleType("ray._private.serialization")
    serialization.SerializationContext = has("SerializationContext", "is_in_band_serialization")
    worker: Any = ModuleType("ray._private.worker")
    worker.global_worker = type("Worker", (), {})()
    worker.global_worker.function_actor_manager = has("FunctionActorManager", "lock")
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "ray._private.serialization", serialization)
    monkeypatch.setitem(sys.modules, "ray._private.worker", worker)

    with pytest.raises(crossmem.UnsupportedError, match=f"of Ray 2.0.0 has no {name}"):
        register()


def test_a_ray_without_the_private_modules_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = ModuleType("ray")
    fake.__version__ = "1.0.0"
    for name, module in (("", fake), ("._private.serialization", None), ("._private.worker", None)):
        monkeypatch.setitem(sys.modules, f"ray{name}", module)

    with pytest.raises(crossmem.UnsupportedError, match=r"of Ray 1.0.0 has no is_in_band"):
        register()
