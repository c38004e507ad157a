# SPDX-License-Identifier: Apache-2.0
"""Processes on an emulated host of the test's own, or on a real one."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# The processes that tests start get this process's sys.path, and find acl_actor there.
sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("", "acl", "hip")]

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import REAL, Actor, ok
    from tests.plugins.emulated.host_processes import MEASURING, start_server
else:
    from acl_actor import REAL, Actor, ok
    from host_processes import MEASURING, start_server

Start = Callable[..., Actor]
Members = Callable[..., list[Actor]]
OURS = ("CROSSMEM_", "ASCEND_")


@pytest.fixture(scope="session", autouse=True)
def _server() -> None:
    if not REAL:
        start_server()


@pytest.fixture(params=[REAL] if REAL else ["documented", "a2"])
def profile(request: pytest.FixtureRequest) -> str:
    """Return the edition of the rules that the test is about."""
    name: str = request.param
    if REAL and name != REAL:
        pytest.skip(f"the device is to answer as {REAL}")
    return name


@pytest.fixture
def host() -> Iterator[Path]:
    """Return the folder of an emulated host, in memory as by default: it is used all the time."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="crossmem-test-") as folder:
        yield Path(folder)


@pytest.fixture
def start(profile: str, host: Path) -> Iterator[Start]:
    """Return a function that starts processes on one host; none survives the test."""
    started: list[Actor] = []
    own = (
        {}
        if REAL
        else {
            "CROSSMEM_EMULATED_STATE": str(host),
            "CROSSMEM_EMULATED_ACL_PROFILE": profile,
            "CROSSMEM_EMULATED_CAPACITY": "8GiB",
        }
    )

    def do(device: int | None = 0, **environment: Any) -> Actor:
        base = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(MEASURING if REAL else (*MEASURING, *OURS))
        }
        actor = Actor({**base, **own, **{name: str(one) for name, one in environment.items()}})
        started.append(actor)
        ok(actor.acl.init())
        if device is not None:
            ok(actor.rt.set_device(device))
        return actor

    yield do
    for actor in started:
        actor.destroy()


@pytest.fixture
def acl(start: Start) -> Actor:
    """Return a process that has opened device 0."""
    return start()


@pytest.fixture
def exporter(acl: Actor) -> Actor:
    return acl


@pytest.fixture
def importer(start: Start) -> Actor:
    """Return another process that has opened device 0."""
    return start()


@pytest.fixture
def two_devices(acl: Actor) -> None:
    """Skip on hosts with one device."""
    if ok(acl.rt.get_device_count()) < 2:
        pytest.skip("needs two devices")


@pytest.fixture
def members(start: Start) -> Members:
    """Return a function that starts processes of one memory group on the device's processor."""

    def do(count: int, **environment: Any) -> list[Actor]:
        group = {"SHAREGROUP_PRECONFIG": "1", "CROSSMEM_EMULATED_ACL_GROUP": "members"}
        return [start(**group, **environment) for _ in range(count)]

    return do
