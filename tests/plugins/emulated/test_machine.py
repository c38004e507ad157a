# SPDX-License-Identifier: Apache-2.0
"""One emulated host is opened whoever else opens it, and never stands in the way of a fork."""

import os
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from crossmem.errors import ConfigurationError
from crossmem_emulated.machine import HostLostError, Machine
from crossmem_emulated.pages import _is_ending

Run = Callable[..., subprocess.CompletedProcess[str]]

# Hooks for forks run in the order opposite to that of their registration: crossmem's last, and
# the one of this script between it and the emulation's.
GRANT_DURING_FORK = """
import faulthandler, threading
from pathlib import Path
from crossmem.sharing.base.process import current
faulthandler.dump_traceback_later(50, exit=True)
is_forking, has_lock = threading.Event(), threading.Event()
os.register_at_fork(before=lambda: (is_forking.set(), has_lock.wait(10)))
from crossmem_emulated.machine import Machine

machine = Machine(Path(sys.argv[1]), "")
with machine.transaction():
    pass
server = current().start_server()

def grant():
    # A lock that a fork takes first, and the emulated host's inside.
    with server.leases.lock:
        has_lock.set()
        is_forking.wait(10)
        with machine.transaction() as tables:
            machine.me(tables)

thread = threading.Thread(target=grant)
thread.start()
child = os.fork()
if not child:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
thread.join(10)
assert not thread.is_alive()
with machine.transaction() as tables:
    machine.me(tables)
"""


# A program that holds memory, and replaces itself by another one.
EXEC = """
from pathlib import Path
from crossmem_emulated.machine import Machine
from crossmem_emulated.pages import PageStore

def open_store():
    return PageStore(Machine(Path(sys.argv[1]), SCHEMA), 64 << 20)

def count():
    with stores[0].machine.transaction() as tables:
        return [tables.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES]

TABLES = ("process", "pages", "holding", "vendor")
SCHEMA = "CREATE TABLE IF NOT EXISTS vendor (process REFERENCES process ON DELETE CASCADE) STRICT;"
SCHEMA = SCHEMA.replace("process REFERENCES", "process INTEGER REFERENCES")
stores = [open_store()]
print(count(), stores[0].used_nbytes(0), flush=True)
for store in range(2):
    # Another object for the same host, in the same program, takes nothing away.
    stores.append(open_store())
    stores[-1].allocate(0, 1 << 20)
    with stores[-1].machine.transaction() as tables:
        tables.execute("INSERT INTO vendor VALUES (?)", (stores[-1].machine.me(tables),))
print(count(), stores[0].used_nbytes(0), flush=True)
for store in stores:
    # Opened again, as it is after a fork.
    store.machine.close()
print(count(), stores[0].used_nbytes(0), flush=True)
if sys.argv[2] != "0":
    words = Path("/proc/self/cmdline").read_bytes().split(b"\\0")[:-1]
    os.execv(sys.executable, [*words[:-1], b"0"])
"""


# A program on the default host, or on one that the user named, and perhaps a child beside it.
MISUSE = """
import subprocess
from pathlib import Path
import crossmem_emulated.machine as module
from crossmem_emulated.acl import Acl

folder = Path(sys.argv[1])
if sys.argv[2] == "default":
    module.default_state = lambda: folder
acl = Acl(options=Options(state=folder))
before = len(acl.violations)
acl.rt.free(64)
print(before, len(acl.violations), flush=True)
if sys.argv[3] != "0":
    words = Path("/proc/self/cmdline").read_bytes().split(b"\\0")[:-1]
    subprocess.run([sys.executable, *words[1:-1], b"0"], check=True)
"""


@pytest.fixture
def locked(tmp_path: Path) -> tuple[Machine, sqlite3.Connection]:
    """Return a host that nobody opened yet, and a connection that keeps others out of it."""
    machine = Machine(tmp_path, "")
    other = sqlite3.connect(machine.boot, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    return machine, other


def test_who_is_turned_away_while_opening_tries_again(
    locked: tuple[Machine, sqlite3.Connection],
) -> None:
    machine, other = locked
    timer = threading.Timer(0.1, other.execute, ("COMMIT",))
    timer.start()
    with machine.transaction() as tables:
        assert machine.me(tables) > 0
    timer.join()
    other.close()
    machine.close()


def test_opening_ends_in_time(
    locked: tuple[Machine, sqlite3.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, other = locked
    monkeypatch.setattr("crossmem_emulated.machine._BUSY_TIMEOUT_S", 0.05)
    with pytest.raises(sqlite3.OperationalError, match="locked"), machine.transaction():
        pass
    other.close()
    with machine.transaction():
        pass
    machine.close()


def test_a_program_that_replaces_itself_gives_back_what_it_had(run: Run, tmp_path: Path) -> None:
    ended = run(EXEC, tmp_path, 1, fresh=True)

    assert ended.returncode == 0, ended.stderr
    full = f"[1, 2, 2, 2] {2 << 20}"
    assert ended.stdout.splitlines() == ["[1, 0, 0, 0] 0", full, full] * 2


def test_a_host_that_was_removed(tmp_path: Path) -> None:
    folder = tmp_path / "own" / "host"
    folder.parent.mkdir()
    machine = Machine(folder, "")
    with machine.transaction() as tables:
        machine.me(tables)
    machine.close()
    shutil.rmtree(folder.parent)

    with pytest.raises(HostLostError, match="was removed"), machine.transaction():
        pass
    with pytest.raises(ConfigurationError, match="the parent folder of the emulated host"):
        Machine(folder, "")
    assert not folder.parent.exists()


def test_a_thread_that_grants_finds_the_host_while_another_forks(run: Run, tmp_path: Path) -> None:
    ended = run(GRANT_DURING_FORK, tmp_path, fresh=True)

    assert ended.returncode == 0, ended.stderr


def test_a_process_that_ends_is_known_by_having_no_memory() -> None:
    """Users other than root are refused its descriptors then, as if they had no permission."""
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert _is_ending(child.pid)
    child.wait()

    assert _is_ending(child.pid)
    assert not _is_ending(os.getpid())


@pytest.mark.parametrize(("host", "later"), [("default", "0 1\n"), ("named", "2 3\n")])
def test_the_default_host_forgets_the_violations_of_earlier_runs(
    run: Run, tmp_path: Path, host: str, later: str
) -> None:
    folder = tmp_path / "host"

    # Processes that run at the same time are one run.
    assert run(MISUSE, folder, host, 1, fresh=True).stdout == "0 1\n1 2\n"
    assert run(MISUSE, folder, host, 0, fresh=True).stdout == later
