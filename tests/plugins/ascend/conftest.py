# SPDX-License-Identifier: Apache-2.0
"""A small stand-in for pyACL that notes every call and fails where it is told to.

It keeps count of what was acquired and not released, and knows nothing else of the vendor's rules:
those are the emulation's, on which the conformance kit runs.
"""

import itertools
import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from crossmem.driver import Block, Exported, Imported, Peer
from crossmem_ascend.driver import AscendDriver

CONTEXT_CALLS = frozenset(
    {"create_context", "destroy_context", "get_context", "get_device", "set_context", "set_device"}
)
SHARE_OFFSET = 0x1_0000_0000
MIB = 1 << 20


class FakeRt:
    """``acl.rt``: every function notes its call, may fail as told, and else does the least."""

    def __init__(self, devices: int) -> None:
        self.devices = devices
        self.calls: list[tuple[Any, ...]] = []
        self.held: set[tuple[str, Any]] = set()
        self.codes: dict[str, list[int]] = {}
        self.uuids: dict[int, list[int]] = {}
        self.peers: set[tuple[int, int]] = set()
        self.tgid = os.getpid() + 1000
        self._numbers = itertools.count(0x1000)
        self._contexts: dict[int, int] = {}
        self._defaults: dict[int, int] = {}
        self._thread = threading.local()

    def fail(self, call: str, code: int, *, skip: int = 0) -> None:
        """Let a call fail once, after so many that succeed."""
        self.codes[call] = [0] * skip + [code]

    def named(self, *, context: bool = False) -> list[str]:
        """Names of the calls so far, without those for device and context."""
        return [call[0] for call in self.calls if context or call[0] not in CONTEXT_CALLS]

    @property
    def context(self) -> int:
        """What is current for this thread, 0 for nothing."""
        return getattr(self._thread, "context", 0)

    @context.setter
    def context(self, context: int) -> None:
        self._thread.context = context

    def _note(self, name: str, *args: Any) -> int:
        self.calls.append((name, *args))
        codes = self.codes.get(name)
        return codes.pop(0) if codes else 0

    def _acquire(self, kind: str, name: str, *args: Any) -> tuple[int, int]:
        code = self._note(name, *args)
        if code:
            return 0, code
        number = next(self._numbers)
        self.held.add((kind, number))
        return number, 0

    def _release(self, kind: str, name: str, key: Any) -> int:
        code = self._note(name, key)
        if not code:
            self.held.remove((kind, key))
        return code

    # Devices and contexts.
    def get_device_count(self) -> tuple[int, int]:
        return self.devices, self._note("get_device_count")

    def set_device(self, device: int, /) -> int:
        code = self._note("set_device", device)
        if not code:
            context = self._defaults.setdefault(device, next(self._numbers))
            self._contexts[context] = device
            self.context = context
        return code

    def get_device(self) -> tuple[int, int]:
        code = self._note("get_device") or (0 if self.context else 107002)
        return (0 if code else self._contexts[self.context]), code

    def get_context(self) -> tuple[int, int]:
        code = self._note("get_context") or (0 if self.context else 107002)
        return (0 if code else self.context), code

    def create_context(self, device: int, /) -> tuple[int, int]:
        context, code = self._acquire("context", "create_context", device)
        if not code:
            self._contexts[context] = device
            self.context = context
        return context, code

    def set_context(self, context: int, /) -> int:
        code = self._note("set_context", context)
        if not code:
            self.context = context
        return code

    def destroy_context(self, context: int, /) -> int:
        code = self._release("context", "destroy_context", context)
        if not code and self.context == context:
            self.context = 0
        return code

    def synchronize_device(self) -> int:
        return self._note("synchronize_device")

    def device_get_bare_tgid(self) -> tuple[int, int]:
        return self.tgid, self._note("device_get_bare_tgid")

    def device_get_uuid(self, device: int, /) -> tuple[dict[str, list[int]], int]:
        code = self._note("device_get_uuid", device)
        return {"bytes": self.uuids.get(device, [0] * 16)}, code

    def device_can_access_peer(self, device: int, peer: int, /) -> tuple[int, int]:
        return 1, self._note("device_can_access_peer", device, peer)

    def device_enable_peer_access(self, peer: int, flags: int, /) -> int:
        code = self._note("device_enable_peer_access", peer, flags)
        if not code:
            self.peers.add((self._contexts[self.context], peer))
        return code

    def device_peer_access_status(self, device: int, peer: int, /) -> tuple[int, int]:
        code = self._note("device_peer_access_status", device, peer)
        return int((device, peer) in self.peers), code

    # Copies.
    def create_stream(self) -> tuple[int, int]:
        return self._acquire("stream", "create_stream")

    def synchronize_stream(self, stream: int, /) -> int:
        return self._note("synchronize_stream", stream)

    def destroy_stream(self, stream: int, /) -> int:
        return self._release("stream", "destroy_stream", stream)

    def memcpy(self, *args: int) -> int:
        return self._note("memcpy", *args)

    def memcpy_async(self, *args: int) -> int:
        return self._note("memcpy_async", *args)

    # Shareable handles.
    def mem_get_allocation_granularity(
        self, prop: dict[str, Any], option: int, /
    ) -> tuple[int, int]:
        return 2 * MIB, self._note("mem_get_allocation_granularity", prop, option)

    def malloc_physical(self, size: int, prop: dict[str, Any], flags: int, /) -> tuple[int, int]:
        return self._acquire("physical", "malloc_physical", size, prop, flags)

    def free_physical(self, handle: int, /) -> int:
        return self._release("physical", "free_physical", handle)

    def reserve_mem_address(self, *args: int) -> tuple[int, int]:
        return self._acquire("addresses", "reserve_mem_address", *args)

    def release_mem_address(self, pointer: int, /) -> int:
        return self._release("addresses", "release_mem_address", pointer)

    def map_mem(self, pointer: int, *args: int) -> int:
        code = self._note("map_mem", pointer, *args)
        if not code:
            self.held.add(("mapping", pointer))
        return code

    def unmap_mem(self, pointer: int, /) -> int:
        return self._release("mapping", "unmap_mem", pointer)

    def mem_export_to_shareable_handle(
        self, handle: int, handle_type: int, flags: int, /
    ) -> tuple[int, int]:
        code = self._note("mem_export_to_shareable_handle", handle, handle_type, flags)
        return SHARE_OFFSET + handle, code

    def mem_set_pid_to_shareable_handle(self, share: int, pids: list[int], /) -> int:
        return self._note("mem_set_pid_to_shareable_handle", share, pids)

    def mem_import_from_shareable_handle(self, share: int, device: int, /) -> tuple[int, int]:
        return self._acquire("physical", "mem_import_from_shareable_handle", share, device)

    # Keys.
    def malloc(self, size: int, policy: int, /) -> tuple[int, int]:
        return self._acquire("memory", "malloc", size, policy)

    def free(self, pointer: int, /) -> int:
        return self._release("memory", "free", pointer)

    def ipc_mem_get_export_key(
        self, pointer: int, size: int, length: int, flags: int, /
    ) -> tuple[str, int]:
        code = self._note("ipc_mem_get_export_key", pointer, size, length, flags)
        if code:
            return "", code
        key = f"{pointer:064x}"
        self.held.add(("key", key))
        return key, 0

    def ipc_mem_set_import_pid(self, key: str, pids: list[int], /) -> int:
        return self._note("ipc_mem_set_import_pid", key, pids)

    def ipc_mem_import_by_key(self, key: str, flags: int, /) -> tuple[int, int]:
        code = self._note("ipc_mem_import_by_key", key, flags)
        if code:
            return 0, code
        self.held.add(("key", key))
        return 0x7000, 0

    def ipc_mem_close(self, key: str, /) -> int:
        return self._release("key", "ipc_mem_close", key)


class FakeAcl(SimpleNamespace):
    """The module ``acl``."""

    def __init__(self, devices: int = 2) -> None:
        super().__init__(rt=FakeRt(devices), inits=[], init_code=0)

    def init(self) -> int:
        self.inits.append(())
        code: int = self.init_code
        return code

    def get_soc_name(self) -> str:
        return "Ascend910B1"

    def get_recent_err_msg(self) -> str:
        return "EE1001: The argument\n is invalid."


@pytest.fixture
def acl() -> Any:
    return FakeAcl()


@pytest.fixture
def fake_acl() -> type[FakeAcl]:
    return FakeAcl


@pytest.fixture
def driver(acl: Any) -> AscendDriver:
    driver = AscendDriver(acl)
    driver.peer_identity()
    driver.synchronize(0)
    acl.rt.calls.clear()
    return driver


Operation = Callable[[], object]


class Story:
    """One allocation's life on both sides, one operation at a time."""

    def __init__(self, driver: AscendDriver, mechanism: str) -> None:
        self._driver = driver
        self._mechanism = mechanism
        self.block: Block | None = None
        self.exported: Exported | None = None
        self.imported: Imported | None = None
        self.pointer = 0

    def allocate(self) -> None:
        self.block = self._driver.allocate(0, 3 * MIB, self._mechanism)

    def export(self) -> None:
        assert self.block
        self.exported = self._driver.export(self.block, self._mechanism, "rw", raw=False)

    def grant(self) -> None:
        assert self.block
        assert self.exported
        self._driver.grant(self.block, self.exported, [Peer(7, 70)])

    def import_(self) -> None:
        payload = (0x55).to_bytes(8, "little") if self._mechanism == "shareable" else b"a" * 64
        self.imported = self._driver.import_(
            0,
            Exported((payload,)),
            home=0,
            mechanism=self._mechanism,
            nbytes=3 * MIB,
            capacity=4 * MIB,
            access="rw",
        )

    def map(self) -> None:
        assert self.imported
        self.mapped = self._driver.map(self.imported, remappable=True)
        self.pointer = self.mapped.pointer

    def unmap(self) -> None:
        assert self.imported
        self._driver.unmap(self.mapped)

    def close(self) -> None:
        assert self.imported
        self._driver.close(self.imported)

    def free(self) -> None:
        assert self.block
        self._driver.free(self.block)

    OPERATIONS = ("allocate", "export", "grant", "import_", "map", "unmap", "close", "free")

    def until(self, operation: str) -> None:
        """Do everything that comes before an operation."""
        for name in self.OPERATIONS[: self.OPERATIONS.index(operation)]:
            getattr(self, name)()


@pytest.fixture(params=["shareable", "key"])
def story(driver: AscendDriver, request: pytest.FixtureRequest) -> Story:
    return Story(driver, request.param)


@pytest.fixture
def story_of(driver: AscendDriver) -> Callable[[str], Story]:
    return lambda mechanism: Story(driver, mechanism)
