# SPDX-License-Identifier: Apache-2.0
"""C and Python programs of one memory group hand buffers over, and are killed at random."""

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import Actor, ok
    from tests.plugins.emulated.acl.queue_kills import (
        Primary,
        PythonPrimary,
        PythonSecondary,
        Secondary,
        storm,
    )
    from tests.plugins.emulated.acl_programs.conftest import Compile
    from tests.plugins.emulated.host_processes import start_server
else:
    from acl_actor import Actor, ok
    from host_processes import start_server
    from queue_kills import Primary, PythonPrimary, PythonSecondary, Secondary, storm

    Compile = Any

Environment = dict[str, str]
StartPython = Callable[[], Actor]
StartC = Callable[[str], "Member"]


class Member:
    """A C program that does what it is told, line by line.

    Parameters
    ----------
    program
        The compiled program.
    role
        The part that it plays.
    environment
        All of its environment.
    """

    def __init__(self, program: Path, role: str, environment: Environment) -> None:
        self._process = subprocess.Popen(
            [program, role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.first = self._answer()

    def tell(self, line: str) -> int:
        """Return the number that it answers."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "it has ended: see its standard error"
        return int(line)

    def wait(self) -> int:
        self._process.communicate()
        return self._process.returncode

    def destroy(self) -> None:
        """End it and its children, however they are."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.communicate()


class CPrimary:
    """A primary in C."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self.pid, self.qid = member.pid, member.first

    def grant(self, pid: int) -> None:
        self._member.tell(f"grant {pid}")

    def feed(self, data: bytes) -> None:
        self._member.tell(f"feed {data[0]} {len(data)}")

    def end(self) -> None:
        assert (self._member.tell("end"), self._member.wait()) == (0, 0)


class CSecondary:
    """A secondary in C, a child of a program that starts such children."""

    def __init__(self, parent: Member) -> None:
        self._parent = parent
        self.pid = parent.tell("begin")

    def consume(self, qid: int) -> None:
        self._parent.tell(f"consume {self.pid} {qid}")

    def kill_after(self, seconds: float) -> None:
        time.sleep(seconds)
        assert self._parent.tell(f"kill {self.pid}") == signal.SIGKILL


@pytest.fixture(scope="module", autouse=True)
def _server() -> None:
    start_server()


@pytest.fixture(params=["0", "1"], ids=["usual", "slow"])
def environment(request: pytest.FixtureRequest, library: Path, host: Path) -> Environment:
    """Return the environment of a member, without and with slow streams."""
    kept = {name: text for name, text in os.environ.items() if "CROSSMEM" not in name}
    return {
        **kept,
        "LD_LIBRARY_PATH": str(library),
        "CROSSMEM_EMULATED_STATE": str(host),
        "CROSSMEM_EMULATED_ACL_PROFILE": "310b-rc",
        "CROSSMEM_EMULATED_ACL_GROUP": "members",
        "CROSSMEM_EMULATED_SLOW_STREAMS": request.param,
        "SHAREGROUP_PRECONFIG": "1",
    }


@pytest.fixture
def start_python(environment: Environment) -> Iterator[StartPython]:
    """Return a function that starts members in Python; none survives the test."""
    started: list[Actor] = []

    def do() -> Actor:
        started.append(Actor(environment))
        ok(started[-1].acl.init())
        ok(started[-1].rt.set_device(0))
        return started[-1]

    yield do
    for one in started:
        one.destroy()


@pytest.fixture
def start_c(compile_program: Compile, environment: Environment) -> Iterator[StartC]:
    """Return a function that starts members in C; none survives the test."""
    started: list[Member] = []

    def do(role: str) -> Member:
        started.append(Member(compile_program("member"), role, environment))
        return started[-1]

    yield do
    for one in started:
        one.destroy()


@pytest.mark.parametrize("language", ["c", "python"])
def test_c_and_python_under_kills(
    start_python: StartPython, start_c: StartC, language: str
) -> None:
    """Secondaries in both languages read and free what a primary in either hands over."""
    primary: Primary = (
        CPrimary(start_c("primary")) if language == "c" else PythonPrimary(start_python())
    )
    parent, turns = start_c("secondaries"), itertools.cycle("ccp")

    def new_secondary() -> Secondary:
        return CSecondary(parent) if next(turns) == "c" else PythonSecondary(start_python())

    storm(primary, new_secondary, start_python(), seed=2)
