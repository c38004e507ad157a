# SPDX-License-Identifier: Apache-2.0
"""Processes that call ACL where a test tells them to: the emulation, or a real pyACL.

With ``CROSSMEM_TEST_PYACL`` set to the name of a profile, the module ``acl`` of a CANN
installation is called instead of the emulation, and has to answer as that profile does.
"""

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugins.emulated.host_processes import (
        DEADLINE_S,
        Functions,
        HostProcess,
        HostProgram,
        preload,
    )
else:
    from host_processes import DEADLINE_S, Functions, HostProcess, HostProgram, preload

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


if not REAL:
    # Imported early, for the process that forks the others.
    import_module("crossmem_emulated.acl")
    preload(Path(__file__).stem)
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


class Program(HostProgram):
    """What a child can be told to do, beside calling ACL's functions."""

    def __init__(self) -> None:
        if REAL:
            self.acl: Any = import_module("acl")
        else:
            options = import_module("crossmem_emulated.options").Options.from_environ(os.environ)
            emulation = import_module("crossmem_emulated.acl").Acl
            self.acl = emulation(options.acl_profile, options.strict, options=options)
        self.library = self.acl
        self.buffers: list[Any] = []

    def buffer(self, data: bytes) -> int:
        """Return the address of memory that is the process's own, and stays."""
        self.buffers.append(ctypes.create_string_buffer(data, len(data)))
        return ctypes.addressof(self.buffers[-1])

    def map_words(self, path: str, nbytes: int) -> int:
        """Map a file that other processes map too; return its address for devices."""
        with Path(path).open("r+b") as file:
            self.words = mmap.mmap(file.fileno(), nbytes)
        pointer = ctypes.addressof(ctypes.c_char.from_buffer(self.words))
        address: int = ok(self.acl.rt.host_register(pointer, nbytes, 0))
        return address

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

    def in_thread(self, *names: str) -> list[Any]:
        """Call functions without arguments in a thread of their own."""
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.extend(map(self.ask, names)))
        thread.start()
        thread.join()
        return results

    def fork_idler(self) -> int:
        """Fork a child that does nothing, for as long as a test may take."""
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            os.write(theirs, b"!")
            time.sleep(DEADLINE_S)
            os._exit(0)
        os.read(ours, 1)
        return child


class Actor(HostProcess):
    """A process that calls ACL where it is told to."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__(Program, environment, is_real=REAL is not None)
        self.acl: Any = Functions(self.call, "acl")
        self.rt: Any = Functions(self.call, "acl.rt")
        self.tdt: Any = Functions(self.call, "acl.tdt")
        self.c: Any = Functions(self.call, "acl.c")
        self.util: Any = Functions(self.call, "acl.util")

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
