# SPDX-License-Identifier: Apache-2.0
"""Processes that call ACL where a test tells them to: the emulation, or a real pyACL.

With ``CROSSMEM_TEST_PYACL`` set to the name of a profile, the module ``acl`` of a CANN
installation is called instead of the emulation, and has to answer as that profile does.
"""

import ctypes
import multiprocessing
import os
import resource
import signal
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import pytest

REAL = os.environ.get("CROSSMEM_TEST_PYACL")
GRANULARITY = 2 << 20
HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, BY_ADDRESS = 1, 2, 3, 4

emulation_only = pytest.mark.skipif(
    REAL is not None, reason="looks at, or sets up, what only an emulation has"
)

DOCUMENTED, DRIVER = "documented cann8", "a2 a3 950 old-driver"


def differs(codes: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Run a test on every profile, with the code that it answers there."""
    cases = [(name, code) for names, code in codes.items() for name in names.split()]
    return pytest.mark.parametrize(("profile", "code"), cases, indirect=["profile"])


# A clean process that forks the others, each within milliseconds. Vendors' libraries may not
# survive that, so there everybody starts anew.
_CONTEXT: Any = multiprocessing.get_context("spawn" if REAL else "forkserver")
_CONTEXT.set_forkserver_preload([Path(__file__).stem])
if not REAL:
    # What takes long, for that process to have done: imports, and what pydantic puts off.
    import_module("crossmem_emulated.acl")
    import_module("crossmem_emulated.options").Options.from_environ({})
_DEADLINE_S = 30.0
START_TIME_RESOLUTION_S = 2 / os.sysconf("SC_CLK_TCK")


def properties(device: int = 0, **changed: Any) -> dict[str, Any]:
    """Return a description of huge pages on a device."""
    location = {"id": device, "type": 1}
    base = {"handleType": 0, "allocationType": 0, "memAttr": 4, "location": location, "reserve": 0}
    return {**base, **changed}


def ok(result: Any) -> Any:
    """Return a call's outputs, which must have gone well."""
    if isinstance(result, int):
        assert result == 0
        return None
    *outputs, code = result
    assert code == 0, result
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


class Program:
    """What a child can be told to do, beside calling ACL's functions."""

    def __init__(self) -> None:
        if REAL:
            self.acl: Any = import_module("acl")
        else:
            options = import_module("crossmem_emulated.options").Options.from_environ(os.environ)
            emulation = import_module("crossmem_emulated.acl").Acl
            self.acl = emulation(options.acl_profile, options.strict, options=options)

    def write(self, pointer: int, data: bytes) -> int:
        source = self.acl.util.bytes_to_ptr(data)
        code: int = self.acl.rt.memcpy(pointer, len(data), source, len(data), HOST_TO_DEVICE)
        return code

    def read(self, pointer: int, nbytes: int) -> tuple[bytes, int]:
        target = ctypes.create_string_buffer(nbytes)
        address = ctypes.addressof(target)
        code = self.acl.rt.memcpy(address, nbytes, pointer, nbytes, DEVICE_TO_HOST)
        return (target.raw if not code else b""), code

    def map_new(self, handle: int, nbytes: int) -> int:
        """Map a whole handle at addresses of its own."""
        pointer: int = ok(self.acl.rt.reserve_mem_address(nbytes, 0, 0, 0))
        ok(self.acl.rt.map_mem(pointer, nbytes, 0, handle, 0))
        return pointer

    def physical(self, nbytes: int = GRANULARITY, device: int = 0) -> tuple[int, int]:
        """Allocate and map; return handle and address."""
        handle = ok(self.acl.rt.malloc_physical(nbytes, properties(device), 0))
        return handle, self.map_new(handle, nbytes)

    def peek(self, pointer: int, nbytes: int = 1) -> bytes:
        """Read as the host does, without asking ACL."""
        return ctypes.string_at(pointer, nbytes)

    def poke(self, pointer: int, data: bytes) -> None:
        ctypes.memmove(pointer, data, len(data))

    def in_thread(self, *names: str) -> list[Any]:
        """Call functions without arguments in a thread of their own."""
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.extend(map(self.ask, names)))
        thread.start()
        thread.join()
        return results

    def in_fork(self, *calls: tuple[Any, ...]) -> list[Any]:
        """Call functions in a forked child."""
        ours, theirs = multiprocessing.Pipe(duplex=False)
        child = os.fork()
        if not child:
            try:
                theirs.send([self.ask(*call) for call in calls])
            finally:
                os._exit(0)
        theirs.close()
        try:
            results: list[Any] = ours.recv() if ours.poll(_DEADLINE_S) else ["it hangs"]
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return results

    def fork_idler(self) -> int:
        """Fork a child that does nothing, for as long as a test may take."""
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            os.write(theirs, b"!")
            time.sleep(_DEADLINE_S)
            os._exit(0)
        os.read(ours, 1)
        return child

    def memory_held(self, pid: int | str = "self") -> int:
        """Return how many descriptors and mappings of emulated memory a process has."""
        folder = Path(f"/proc/{pid}")
        # The descriptor that lists the folder is gone by the time that its link is read.
        links = [str(one.readlink()) for one in (folder / "fd").iterdir() if one.is_symlink()]
        maps = (folder / "maps").read_text("utf-8").splitlines()
        return sum("/memfd:crossmem" in one for one in (*links, *maps))

    def run(self, module: str, function: str, *arguments: Any) -> Any:
        """Call a function that a file beside this one has for its tests."""
        return getattr(import_module(module), function)(self.acl, *arguments)

    def rows(self) -> dict[str, int]:
        """Return how much the emulated host knows, after it looked who is alive."""
        machine = self.acl.machine
        with machine.transaction() as tables:
            machine.reap(tables)
            query = "SELECT name FROM sqlite_master WHERE type = 'table'"
            names = [name for (name,) in tables.execute(query)]
            return {
                name: tables.execute(f"SELECT count(*) FROM {name}").fetchone()[0]  # noqa: S608
                for name in names
            }

    def fail(self, name: str, code: int, counts: dict[str, int]) -> None:
        """Let calls of the emulation fail."""
        self.acl.faults.add(name, code, **counts)

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call one of these functions or of ACL's, or return an attribute."""
        found: Any = self
        for part in name.split("."):
            found = getattr(found, part)
        return found(*arguments) if callable(found) else found


def _serve(connection: Connection, environment: Mapping[str, str]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.clear()
    os.environ.update(environment)
    program = Program()
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            os._exit(0)
        try:
            answer = (True, program.ask(name, *arguments))
        except Exception as error:  # noqa: BLE001 - the test decides whether it is wanted
            answer = (False, error)
        connection.send(answer)


class _Functions:
    """Functions of a module in another process."""

    def __init__(self, actor: "Actor", module: str) -> None:
        self._actor = actor
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self._actor.call(f"{self._module}.{name}", *arguments)


class Actor:
    """A process that calls ACL where it is told to."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(theirs, dict(environment)))
        self._process.start()
        theirs.close()
        self.pid: int = self._process.pid
        self.acl: Any = _Functions(self, "acl")
        self.rt: Any = _Functions(self, "acl.rt")
        self.c: Any = _Functions(self, "acl.c")
        self.util: Any = _Functions(self, "acl.util")

    def begin(self, name: str, *arguments: Any) -> None:
        self._connection.send((name, arguments))

    def result(self) -> Any:
        if not self._connection.poll(_DEADLINE_S):
            raise TimeoutError(f"process {self.pid} does not answer")
        try:
            is_fine, value = self._connection.recv()
        except ConnectionResetError:
            # It died before it read what it was told.
            raise EOFError from None
        if not is_fine:
            raise value
        return value

    def result_or_kill(self, after_s: float) -> Any:
        """Return what it answers within a time; after that, kill it."""
        if not self._connection.poll(after_s):
            self._process.kill()
        return self.result()

    def call(self, name: str, *arguments: Any) -> Any:
        self.begin(name, *arguments)
        return self.result()

    def write(self, pointer: int, data: bytes) -> None:
        ok(self.call("write", pointer, data))

    def read(self, pointer: int, nbytes: int) -> bytes:
        return bytes(ok(self.call("read", pointer, nbytes)))

    def physical(self, nbytes: int = GRANULARITY, device: int = 0) -> tuple[int, int]:
        handle, pointer = self.call("physical", nbytes, device)
        return handle, pointer

    def map_new(self, handle: int, nbytes: int = GRANULARITY) -> int:
        return int(self.call("map_new", handle, nbytes))

    @property
    def tgid(self) -> int:
        """Its number as a whitelist knows it."""
        return int(ok(self.rt.device_get_bare_tgid()))

    @property
    def free_nbytes(self) -> int:
        free, _total = ok(self.rt.get_mem_info(1))
        return int(free)

    @property
    def broken_rules(self) -> list[str]:
        """Rules that any process of the host broke, in order."""
        return [one.rule for one in self.call("acl.violations")]

    def check_broken(self, *rules: str) -> None:
        """Check what the emulation recorded; a device records nothing."""
        if not REAL:
            assert self.broken_rules == list(rules)

    def kill(self) -> None:
        """Let it die as it stands."""
        self._process.kill()
        assert self.wait() == -signal.SIGKILL

    def wait(self) -> int | None:
        """Return how it ended."""
        self._process.join(_DEADLINE_S)
        return cast("int | None", self._process.exitcode)

    def leave(self) -> None:
        """Let it exit, without releasing anything."""
        self._connection.close()
        assert self.wait() == 0

    def destroy(self) -> None:
        """End it, however it is."""
        self._connection.close()
        self._process.kill()
        self._process.join(_DEADLINE_S)
