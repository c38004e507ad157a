# SPDX-License-Identifier: Apache-2.0
"""Processes that call ``cupy.cuda.runtime`` where a test tells them to: emulated, or the real one.

With ``CROSSMEM_TEST_CUPY=1`` CuPy's own module is called instead of the emulation, and has to
answer as the profile ``cuda`` does, or ``clr26`` where it is a ROCm build. On CUDA, the driver
library gives the functions of virtual memory, which CuPy lacks.
"""

import ctypes
import mmap
import os
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from multiprocessing import reduction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

if TYPE_CHECKING:
    from tests.plugins.emulated.host_processes import Functions, HostProcess, HostProgram, preload
else:
    from host_processes import Functions, HostProcess, HostProgram, preload

BLOCK = 2 << 20
TO_DEVICE, TO_HOST, ON_DEVICE, BY_ADDRESS = 1, 2, 3, 4
ALL = ("documented", "clr24", "clr26", "rocm5", "cuda")
AMD = ("documented", "clr24", "clr26", "rocm5")
PINNED, ON_A_DEVICE, READ, READ_WRITE = 1, 1, 1, 3


def _real_profile() -> str | None:
    if os.environ.get("CROSSMEM_TEST_CUPY", "0") in {"", "0"}:
        return None
    return "clr26" if import_module("cupy_backends.cuda.api.runtime").is_hip else "cuda"


REAL = _real_profile()

emulation_only = pytest.mark.skipif(
    REAL is not None, reason="looks at, or sets up, what only an emulation has"
)


virtual_on_devices = pytest.mark.skipif(
    REAL not in {None, "cuda"}, reason="CuPy for ROCm lacks these functions"
)


def on(*profiles: str) -> pytest.MarkDecorator:
    """Run a test on some profiles only."""
    return pytest.mark.parametrize("profile", profiles, indirect=True)


def differs(codes: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Run a test on several profiles, with what is different there."""
    cases = [(name, code) for names, code in codes.items() for name in names.split()]
    return pytest.mark.parametrize(("profile", "code"), cases, indirect=["profile"])


if not REAL:
    # Imported early, for the process that forks the others.
    import_module("crossmem_emulated.hip")
    preload(Path(__file__).stem)


def status(function: Callable[..., Any], *arguments: Any) -> int:
    """Return the code with which a call fails, 0 where it does not."""
    try:
        function(*arguments)
    except RuntimeError as error:
        return int(error.status)  # type: ignore[attr-defined]  # the vendor's class
    return 0


class Program(HostProgram):
    """What a child can be told to do, beside calling the runtime's functions."""

    def __init__(self) -> None:
        if REAL:
            self.rt: Any = import_module("cupy_backends.cuda.api.runtime")
            if REAL == "cuda":
                # With the functions of the driver library, which CuPy lacks.
                family = import_module("crossmem_hip.family").CUDA
                self.rt = import_module("crossmem_hip.library").extend(family, self.rt)
            self.lazy_flag = 1
        else:
            options = import_module("crossmem_emulated.options").Options.from_environ(os.environ)
            emulation = import_module("crossmem_emulated.hip").Runtime
            self.rt = emulation(options.hip_profile, options.strict, options=options)
            self.lazy_flag = int(options.hip_profile != "rocm5")
        self.library = self.rt

    def write(self, pointer: int, data: bytes) -> None:
        source = ctypes.create_string_buffer(data, len(data))
        self.rt.memcpy(pointer, ctypes.addressof(source), len(data), TO_DEVICE)

    def read(self, pointer: int, nbytes: int) -> bytes:
        target = ctypes.create_string_buffer(nbytes)
        self.rt.memcpy(ctypes.addressof(target), pointer, nbytes, TO_HOST)
        return target.raw

    def read_by_kernel(self, pointer: int, nbytes: int) -> bytes:
        """Read as a kernel does, which a real device checks less than a copy."""
        if not REAL:
            return self.read(pointer, nbytes)
        cupy = import_module("cupy")
        memory = cupy.cuda.UnownedMemory(pointer, nbytes, None, 0)
        there = cupy.ndarray(nbytes, "uint8", cupy.cuda.MemoryPointer(memory, 0))
        found: bytes = (there + 0).get().tobytes()
        return found

    def own_memory(self, nbytes: int) -> int:
        """Return the address of memory that the vendor knows nothing of."""
        self.kept = ctypes.create_string_buffer(nbytes)
        return ctypes.addressof(self.kept)

    def map_words(self, path: str, nbytes: int) -> int:
        """Map a file that other processes map too; return its address for devices."""
        with Path(path).open("r+b") as file:
            self.words = mmap.mmap(file.fileno(), nbytes)
        pointer = ctypes.addressof(ctypes.c_char.from_buffer(self.words))
        self.c("hostRegister", pointer, nbytes, 2)
        address: int = self.c("hostGetDevicePointer", pointer, 0)
        return address

    def open(self, handle: bytes) -> int:
        """Open memory with the flags that this edition wants."""
        pointer: int = self.rt.ipcOpenMemHandle(handle, self.lazy_flag)
        return pointer

    def create(self, nbytes: int = BLOCK, device: int = 0, handle_type: int = 1) -> int:
        """Make memory without an address."""
        handle: int = self.rt.memCreate(nbytes, PINNED, handle_type, ON_A_DEVICE, device, 0)
        return handle

    def map(self, handle: int, nbytes: int = BLOCK, access: int = READ_WRITE) -> int:
        """Give memory an address where device 0 may use it."""
        pointer: int = self.rt.memAddressReserve(nbytes, 0, 0, 0)
        self.rt.memMap(pointer, nbytes, 0, handle, 0)
        self.rt.memSetAccess(pointer, nbytes, [(ON_A_DEVICE, 0, access)])
        return pointer

    def unmap(self, pointer: int, nbytes: int = BLOCK) -> None:
        self.rt.memUnmap(pointer, nbytes)
        self.rt.memAddressFree(pointer, nbytes)

    def send(self, descriptor: int) -> None:
        reduction.send_handle(self.connection, descriptor, os.getppid())

    def receive(self) -> int:
        descriptor: int = reduction.recv_handle(self.connection)
        return descriptor

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def renumber(self, descriptor: int, number: int) -> None:
        os.dup2(descriptor, number)
        os.close(descriptor)

    def open_file(self, path: str) -> int:
        return os.open(path, os.O_RDONLY)

    def descriptors(self) -> int:
        """Return how many are open here."""
        return len(list(Path("/proc/self/fd").iterdir()))

    def attributes(self, pointer: int) -> tuple[int, int, int, int]:
        found = self.rt.pointerGetAttributes(pointer)
        return found.type, found.device, found.devicePointer, found.hostPointer

    def attributes_in_thread(self, pointer: int) -> list[tuple[int, int, int, int]]:
        """Return attributes as a new thread sees them, before and after its first use of memory."""
        found = []

        def work() -> None:
            found.append(self.attributes(pointer))
            self.rt.memGetInfo()
            found.append(self.attributes(pointer))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return found

    def raw(self, name: str, *arguments: Any) -> int:
        """Return the code of a call as C sees it; the failure is remembered."""
        code: int = self.rt.call(name, *arguments)[0]
        return code

    def c(self, name: str, *arguments: Any) -> Any:
        """Call a function as C does, which has some that CuPy's builds for ROCm lack."""
        code, value = self.rt.call(name, *arguments)
        self.rt.check_status(code)
        return value

    def copy_box(  # noqa: PLR0917
        self,
        name: str,
        target: tuple[int, ...],
        source: tuple[int, ...],
        extent: tuple[int, ...],
        kind: int,
        array: int = 0,
        stream: int = 0,
    ) -> None:
        """Copy a box; a side is address, pitch, width, height, and where the box begins in it."""
        sides = [((*side, 0, 0, 0)[:7]) for side in (source, target)]
        words = [word for side in sides for word in (array, *side[4:], *side[:4])]
        parms = (ctypes.c_size_t * 20)(*words, *extent, kind)
        more = (stream,) * name.endswith("Async")
        self.c(name, ctypes.addressof(parms), *more)

    def occupy(self, stream: int) -> None:
        """Give a stream a function as work that ends when it is told to."""
        self.may_end = threading.Event()
        self.rt.launchHostFunc(stream, lambda _argument: self.may_end.wait(), 0)

    def let_go(self) -> None:
        self.may_end.set()

    def new_pool(self, *properties: int) -> int:
        pool: int = self.c("memPoolCreate", self.rt.MemPoolProps(*properties))
        return pool

    def in_threads(self, count: int, *call: Any) -> list[Any]:
        """Make the same call in several threads at the same time."""
        results: list[Any] = []
        barrier = threading.Barrier(count)

        def work() -> None:
            barrier.wait()
            results.append(self.ask(*call))

        threads = [threading.Thread(target=work) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def in_thread_codes(self, *calls: tuple[Any, ...]) -> list[int]:
        """Return the codes of calls in another thread."""
        codes: list[int] = []
        thread = threading.Thread(
            target=lambda: codes.extend(status(self.ask, *one) for one in calls)
        )
        thread.start()
        thread.join()
        return codes

    @override
    def answer(self, name: str, *arguments: Any) -> Any:
        """Return the code of a call."""
        return status(self.ask, name, *arguments)


class Actor(HostProcess):
    """A process that calls the runtime where it is told to."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__(Program, environment, is_real=REAL is not None)
        self.rt: Any = Functions(self.call, "rt")
        self.c: Any = Functions(lambda name, *more: self.call("c", name[2:], *more), "c")

    def write(self, pointer: int, data: bytes) -> None:
        self.call("write", pointer, data)

    def read(self, pointer: int, nbytes: int) -> bytes:
        return bytes(self.call("read", pointer, nbytes))

    def open(self, handle: bytes) -> int:
        return int(self.call("open", handle))

    def export(self, data: bytes = b"", nbytes: int = BLOCK) -> tuple[int, bytes]:
        """Allocate, fill and export; return address and handle."""
        pointer = self.rt.malloc(nbytes)
        if data:
            self.write(pointer, data)
        return pointer, self.rt.ipcGetMemHandle(pointer)

    def export_twice(self, data: bytes = b"") -> tuple[bytes, bytes]:
        """Export memory, free it, and export other memory at its address; return both handles."""
        for _ in range(5):
            first, old = self.export()
            self.rt.free(first)
            second, new = self.export(data)
            if second == first:
                return old, new
            # Python itself took the addresses meanwhile.
            self.rt.free(second)
        raise AssertionError("what is freed is never allocated again")

    def give(self, descriptor: int, receiver: "Actor") -> int:
        """Send a descriptor as programs do, and return its number there."""
        self.begin("send", descriptor)
        passing: int = reduction.recv_handle(self._connection)
        self.result()
        receiver.begin("receive")
        reduction.send_handle(receiver._connection, passing, receiver.pid)
        os.close(passing)
        return int(receiver.result())

    def export_virtual(self, data: bytes = b"", nbytes: int = BLOCK) -> tuple[int, int]:
        """Make memory, fill it, and export it; return handle and descriptor."""
        handle = self.call("create", nbytes)
        if data:
            pointer = self.call("map", handle, nbytes)
            self.write(pointer, data)
            self.call("unmap", pointer, nbytes)
        return handle, self.rt.memExportToShareableHandle(handle, 1, 0)

    def import_virtual(self, exporter: "Actor", descriptor: int) -> int:
        """Import by a descriptor of another process, and close the own one."""
        own = exporter.give(descriptor, self)
        try:
            return int(self.rt.memImportFromShareableHandle(own, 1))
        finally:
            self.call("close", own)

    @property
    def free_nbytes(self) -> int:
        return int(self.rt.memGetInfo()[0])

    def check_broken(self, *rules: str) -> None:
        """Check what the emulation recorded on the whole host; a device records nothing."""
        if not REAL:
            assert [one.rule for one in self.call("rt.violations")] == list(rules)
