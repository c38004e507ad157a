# SPDX-License-Identifier: Apache-2.0
"""Processes on an emulated host of the test's own, or on a real one."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# The processes that tests start get this process's sys.path, and find hip_actor there.
sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("", "acl", "hip")]

if TYPE_CHECKING:
    from tests.plugins.emulated.hip.hip_actor import REAL, Actor
    from tests.plugins.emulated.host_processes import MEASURING, start_server
else:
    from hip_actor import REAL, Actor
    from host_processes import MEASURING, start_server

Start = Callable[..., Actor]
OURS = ("CROSSMEM_", "HIP_", "ROCR_", "CUDA_VISIBLE")


@pytest.fixture(scope="session", autouse=True)
def _server() -> None:
    if not REAL:
        start_server()


@pytest.fixture(params=[REAL] if REAL else ["documented", "clr26", "cuda"])
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
            "CROSSMEM_EMULATED_HIP_PROFILE": profile,
            "CROSSMEM_EMULATED_CAPACITY": "8GiB",
        }
    )

    def do(**environment: Any) -> Actor:
        base = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(MEASURING if REAL else (*MEASURING, *OURS))
        }
        actor = Actor({**base, **own, **{name: str(one) for name, one in environment.items()}})
        started.append(actor)
        return actor

    yield do
    for actor in started:
        actor.destroy()


@pytest.fixture
def exporter(start: Start) -> Actor:
    return start()


@pytest.fixture
def importer(start: Start) -> Actor:
    return start()


@pytest.fixture
def two_devices(exporter: Actor) -> None:
    """Skip on hosts with one device."""
    if exporter.rt.getDeviceCount() < 2:
        pytest.skip("needs two devices")
