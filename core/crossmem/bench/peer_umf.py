# SPDX-License-Identifier: Apache-2.0
"""The benchmark's peers that call the C library Unified Memory Framework (UMF) through ctypes."""

import ctypes
import os
import struct
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any, ClassVar, Final

from typing_extensions import override

from crossmem.bench.peer import Peer

__all__ = ["UmfDisjointPeer", "UmfProxyPeer"]

_LIBRARY: Final = "libumf.so.1"
_MAP_SHARED: Final = 2  # UMF_MEM_MAP_SHARED of umf/memory_provider.h
_PR_SET_PTRACER: Final = 0x59616D61
_PR_SET_PTRACER_ANY: Final = ctypes.c_ulong(-1).value
_SIZE: Final = struct.Struct("=Q")

_POINTER = ctypes.c_void_p
_OUT = ctypes.POINTER(ctypes.c_void_p)
_SIZE_OUT = ctypes.POINTER(ctypes.c_size_t)

# The functions of umf 1.2.0 that the peers call: the name, the type of the result, and the types of
# the arguments. A result of type c_int is a umf_result_t.
_FUNCTIONS: Final[tuple[tuple[str, Any, tuple[Any, ...]], ...]] = (
    ("umfOsMemoryProviderParamsCreate", ctypes.c_int, (_OUT,)),
    ("umfOsMemoryProviderParamsSetVisibility", ctypes.c_int, (_POINTER, ctypes.c_int)),
    ("umfOsMemoryProviderParamsDestroy", ctypes.c_int, (_POINTER,)),
    ("umfOsMemoryProviderOps", _POINTER, ()),
    ("umfMemoryProviderCreate", ctypes.c_int, (_POINTER, _POINTER, _OUT)),
    ("umfProxyPoolOps", _POINTER, ()),
    ("umfDisjointPoolOps", _POINTER, ()),
    ("umfDisjointPoolParamsCreate", ctypes.c_int, (_OUT,)),
    ("umfDisjointPoolParamsDestroy", ctypes.c_int, (_POINTER,)),
    ("umfPoolCreate", ctypes.c_int, (_POINTER, _POINTER, _POINTER, ctypes.c_uint32, _OUT)),
    ("umfPoolMalloc", _POINTER, (_POINTER, ctypes.c_size_t)),
    ("umfPoolFree", ctypes.c_int, (_POINTER, _POINTER)),
    ("umfPoolGetIPCHandler", ctypes.c_int, (_POINTER, _OUT)),
    ("umfGetIPCHandle", ctypes.c_int, (_POINTER, _OUT, _SIZE_OUT)),
    ("umfPutIPCHandle", ctypes.c_int, (_POINTER,)),
    ("umfOpenIPCHandle", ctypes.c_int, (_POINTER, ctypes.c_char_p, _OUT)),
    ("umfCloseIPCHandle", ctypes.c_int, (_POINTER,)),
)


def _library_path() -> str | None:
    try:
        files = distribution("umf").files or ()
    except PackageNotFoundError:
        return None
    return next((str(file.locate()) for file in files if file.name == _LIBRARY), None)


def _check(result: int, call: str) -> None:
    if result:
        msg = f"{call} returned {result:#x}"
        raise RuntimeError(msg)


class UmfProxyPeer(Peer):
    """Shares memory of a UMF pool that forwards each request to a provider of anonymous memory."""

    title: ClassVar[str] = "UMF proxy"
    distribution: ClassVar[str | None] = "umf"
    asks_exporter: ClassVar[bool] = False

    def __init__(self, device: str) -> None:
        super().__init__(device)
        path = _library_path()
        if path is None:
            msg = "the umf distribution is not installed"
            raise RuntimeError(msg)
        library = ctypes.CDLL(path)
        for name, result, arguments in _FUNCTIONS:
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
        self._umf: Any = library
        self._pool = self._make_pool(self._make_provider())
        handler = ctypes.c_void_p()
        _check(library.umfPoolGetIPCHandler(self._pool, handler), "umfPoolGetIPCHandler")
        self._handler = handler

    @override
    @classmethod
    def missing(cls) -> str | None:
        return None if _library_path() else "not installed"

    def _make_provider(self) -> ctypes.c_void_p:
        umf = self._umf
        parameters, provider = ctypes.c_void_p(), ctypes.c_void_p()
        _check(umf.umfOsMemoryProviderParamsCreate(parameters), "umfOsMemoryProviderParamsCreate")
        _check(
            umf.umfOsMemoryProviderParamsSetVisibility(parameters, _MAP_SHARED),
            "umfOsMemoryProviderParamsSetVisibility",
        )
        _check(
            umf.umfMemoryProviderCreate(umf.umfOsMemoryProviderOps(), parameters, provider),
            "umfMemoryProviderCreate",
        )
        umf.umfOsMemoryProviderParamsDestroy(parameters)
        return provider

    def _make_pool(self, provider: ctypes.c_void_p) -> ctypes.c_void_p:
        umf, pool = self._umf, ctypes.c_void_p()
        _check(umf.umfPoolCreate(umf.umfProxyPoolOps(), provider, None, 0, pool), "umfPoolCreate")
        return pool

    @override
    def serve(self) -> bytes:
        # The consumer copies the memory's descriptor from this process. If the security module Yama
        # restricts ptrace, a sibling process such as the consumer can copy descriptors only after
        # this call of prctl().
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(_PR_SET_PTRACER_ANY), 0, 0, 0)
        return str(os.getpid()).encode()

    @override
    def create(self, nbytes: int) -> tuple[int, int]:
        pointer = self._umf.umfPoolMalloc(self._pool, nbytes)
        if not pointer:
            msg = f"umfPoolMalloc of {nbytes} bytes failed"
            raise MemoryError(msg)
        return pointer, nbytes

    @override
    def export(self, memory: tuple[int, int]) -> bytes:
        pointer, nbytes = memory
        handle, size = ctypes.c_void_p(), ctypes.c_size_t()
        _check(self._umf.umfGetIPCHandle(pointer, handle, size), "umfGetIPCHandle")
        # The handle does not contain the size of the memory, so the token begins with the size.
        token = _SIZE.pack(nbytes) + ctypes.string_at(handle.value or 0, size.value)
        _check(self._umf.umfPutIPCHandle(handle), "umfPutIPCHandle")
        return token

    @override
    def attach(self, token: bytes) -> tuple[int, int]:
        (nbytes,) = _SIZE.unpack_from(token)
        pointer = ctypes.c_void_p()
        result = self._umf.umfOpenIPCHandle(self._handler, token[_SIZE.size :], pointer)
        _check(result, "umfOpenIPCHandle")
        return pointer.value or 0, nbytes

    @override
    def detach(self, mapping: tuple[int, int]) -> None:
        _check(self._umf.umfCloseIPCHandle(mapping[0]), "umfCloseIPCHandle")

    @override
    def free(self, memory: tuple[int, int]) -> None:
        _check(self._umf.umfPoolFree(self._pool, memory[0]), "umfPoolFree")

    @override
    def view(self, memory: Any) -> memoryview:
        pointer, nbytes = memory
        return memoryview((ctypes.c_ubyte * nbytes).from_address(pointer)).cast("B")


class UmfDisjointPeer(UmfProxyPeer):
    """Shares memory of a UMF pool that cuts small allocations out of larger slabs.

    The slabs come from the same provider of anonymous memory that :class:`UmfProxyPeer` uses. All
    allocations in a slab have the same descriptor. A process that opens one allocation can access
    the whole slab.
    """

    title: ClassVar[str] = "UMF disjoint"

    @override
    def _make_pool(self, provider: ctypes.c_void_p) -> ctypes.c_void_p:
        umf = self._umf
        parameters, pool = ctypes.c_void_p(), ctypes.c_void_p()
        _check(umf.umfDisjointPoolParamsCreate(parameters), "umfDisjointPoolParamsCreate")
        _check(
            umf.umfPoolCreate(umf.umfDisjointPoolOps(), provider, parameters, 0, pool),
            "umfPoolCreate",
        )
        umf.umfDisjointPoolParamsDestroy(parameters)
        return pool
