# SPDX-License-Identifier: Apache-2.0
"""DLPack capsules: what consumers find in them, and when they let go of the memory."""

import ctypes
import gc
import subprocess
import sys
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from generated import examples
from hypothesis import given
from hypothesis import strategies as st
from programs import DEADLINE_S

from crossmem import ConfigurationError, UnsupportedError
from crossmem.arrays import Layout, from_text, to_numpy
from crossmem.arrays.dlpack import (
    CPU,
    CUDA,
    CUDA_MANAGED,
    EXT_DEV,
    ROCM,
    _Unversioned,
    _Versioned,
    check_stream,
    make_capsule,
)

repeatable = examples(200)

F4 = from_text("float32")
NAMES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex128"]

# NumPy 2.1 takes everything to be read-only.
NUMPY_WRITES = np.from_dlpack(np.zeros(1)).flags.writeable

# What NumPy raises for a dtype that it does not have; the former before 2.5.
REFUSED = (RuntimeError, BufferError)

_pointer_of: Any = ctypes.PyDLL(None).PyCapsule_GetPointer
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]
_pointer_of.restype = ctypes.c_void_p


class Owner:
    """Some memory, as long as this object lives."""

    def __init__(self, nbytes: int = 256) -> None:
        self.memory = np.arange(nbytes, dtype=np.uint8)
        self.pointer = self.memory.ctypes.data


class Producer:
    """Offers an array through DLPack, as memory of crossmem does."""

    def __init__(
        self,
        layout: Layout,
        *,
        owner: Owner | None = None,
        readonly: bool = False,
        newest: bool = True,
    ) -> None:
        self.layout = layout
        self.owner = owner or Owner()
        self.readonly = readonly
        self.newest = newest

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None, **_: object) -> Any:
        return make_capsule(
            self.owner.pointer,
            self.layout,
            device=(CPU, 0),
            owner=self.owner,
            readonly=self.readonly,
            max_version=max_version if self.newest else None,
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CPU, 0)


def expected(producer: Producer) -> Any:
    layout = producer.layout
    return np.ndarray(
        layout.shape,
        to_numpy(layout.dtype),
        buffer=producer.owner.memory,
        offset=layout.offset,
        strides=layout.strides,
    )


def torch_or_skip() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@st.composite
def layouts(draw: st.DrawFn, *, lowest: int = -3) -> Layout:
    """Return layouts in 256 bytes, with strides that elements can express."""
    dtype = from_text(draw(st.sampled_from(NAMES)))
    shape = draw(st.lists(st.integers(0, 2), max_size=3))
    steps = draw(st.lists(st.integers(lowest, 3), min_size=len(shape), max_size=len(shape)))
    # Seven elements lie before, and seven after the one in the middle.
    strides = [step * dtype.itemsize for step in steps]
    return Layout(dtype, shape, strides, 7 * 16 // dtype.itemsize * dtype.itemsize)


@repeatable
@given(layouts(), st.booleans(), st.booleans())
def test_numpy_sees_what_is_there(layout: Layout, readonly: bool, newest: bool) -> None:
    producer = Producer(layout, readonly=readonly and newest, newest=newest)

    array = np.from_dlpack(producer)

    there = expected(producer)
    assert array.dtype == there.dtype
    assert array.shape == there.shape
    assert array.tobytes() == there.tobytes()
    if array.size:
        # What comes without a version NumPy takes to be read-only.
        assert array.flags.writeable == (newest and not readonly and NUMPY_WRITES)
        assert array.ctypes.data == there.ctypes.data
        for axis, size in enumerate(array.shape):
            assert size < 2 or array.strides[axis] == there.strides[axis]


@repeatable
@given(layouts(lowest=0), st.booleans())
def test_pytorch_sees_what_is_there(layout: Layout, newest: bool) -> None:
    torch = torch_or_skip()
    producer = Producer(layout, newest=newest)

    tensor = torch.from_dlpack(producer)

    there = expected(producer)
    assert tensor.shape == there.shape
    assert tensor.numpy().dtype == there.dtype
    assert tensor.numpy().tobytes() == there.tobytes()
    if tensor.numel():
        assert tensor.data_ptr() == there.ctypes.data


def test_both_see_each_others_writes() -> None:
    torch = torch_or_skip()
    producer = Producer(Layout(F4, (2, 3), None, 8))
    array, tensor = np.from_dlpack(producer), torch.from_dlpack(producer)

    array[:] = 1
    tensor[1, 2] = 7

    assert expected(producer).tolist() == array.tolist() == [[1, 1, 1], [1, 1, 7]]


@pytest.mark.parametrize("name", ["bfloat16", "complex32", "float8_e4m3fn", "float8_e8m0fnu"])
def test_pytorch_knows_what_numpy_does_not(name: str) -> None:
    torch = torch_or_skip()
    producer = Producer(Layout(from_text(name), (4,)))

    assert torch.from_dlpack(producer).dtype == getattr(torch, name)
    with pytest.raises(REFUSED, match="Unsupported dtype"):
        np.from_dlpack(producer)


@pytest.mark.parametrize("newest", [False, True])
def test_what_the_structs_say(newest: bool) -> None:
    layout = Layout(F4, (3, 1, 2), (-16, 3, 0), 100)
    capsule = make_capsule(
        0x7F0000000000,
        layout,
        device=(ROCM, 3),
        owner=None,
        readonly=newest,
        max_version=(1, 1) if newest else (0, 8),
    )

    if newest:
        versioned = _Versioned.from_address(_pointer_of(capsule, b"dltensor_versioned"))
        assert (versioned.major, versioned.minor, versioned.flags) == (1, 1, 1)
        tensor = versioned.tensor
        assert versioned.deleter
    else:
        unversioned = _Unversioned.from_address(_pointer_of(capsule, b"dltensor"))
        tensor = unversioned.tensor
        assert unversioned.deleter
    assert (tensor.data, tensor.byte_offset) == (0x7F0000000000 + 100, 0)
    assert (tensor.device_type, tensor.device_id, tensor.ndim) == (ROCM, 3, 3)
    assert (tensor.code, tensor.bits, tensor.lanes) == (2, 32, 1)
    assert (tensor.shape[:3], tensor.strides[:3]) == ([3, 1, 2], [-4, 1, 0])


def test_the_sizes_of_structs_are_those_of_c() -> None:
    assert (ctypes.sizeof(_Unversioned), ctypes.sizeof(_Versioned)) == (64, 80)


@pytest.mark.parametrize("ndim", [0, 1, 64])
def test_any_number_of_dimensions(ndim: int) -> None:
    producer = Producer(Layout(F4, (2,) + (1,) * (ndim - 1) if ndim else ()))

    array = np.from_dlpack(producer)

    assert array.ndim == ndim
    assert array.ravel().tolist() == expected(producer).ravel().tolist()


def test_empty_arrays_have_no_address() -> None:
    capsule = make_capsule(
        4096, Layout(F4, (0, 3)), device=(1, 0), owner=None, readonly=False, max_version=(1, 0)
    )

    assert _Versioned.from_address(_pointer_of(capsule, b"dltensor_versioned")).tensor.data is None
    assert np.from_dlpack(Producer(Layout(F4, (0, 3)))).shape == (0, 3)


@pytest.mark.parametrize(
    ("layout", "readonly", "max_version", "message"),
    [
        (Layout(F4, (2,)), True, None, "read-only"),
        (Layout(F4, (2,)), True, (0, 8), "read-only"),
        (Layout(from_text("|S4"), (2,)), False, (1, 0), "no type for elements"),
        (Layout(F4, (2,), (6,)), False, (1, 0), "not a multiple of 4"),
    ],
)
def test_what_dlpack_cannot_say(
    layout: Layout, readonly: bool, max_version: tuple[int, int] | None, message: str
) -> None:
    with pytest.raises(BufferError, match=message):
        make_capsule(
            4096, layout, device=(1, 0), owner=None, readonly=readonly, max_version=max_version
        )


def test_numpy_must_be_there_and_new(monkeypatch: pytest.MonkeyPatch) -> None:
    class OldArray:
        def __dlpack__(self, *, stream: object = None) -> object:
            raise AssertionError

    def make() -> Any:
        return make_capsule(
            4096, Layout(F4, (2,)), device=(1, 0), owner=None, readonly=False, max_version=(1, 0)
        )

    old = SimpleNamespace(__version__="2.0.2", asarray=lambda _: OldArray())
    monkeypatch.setitem(sys.modules, "numpy", old)
    with pytest.raises(UnsupportedError, match=r"not 2\.0\.2"):
        make()
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(UnsupportedError, match="install numpy"):
        make()


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("library", ["numpy", "torch", "nobody"])
def test_thousands_of_capsules_let_go_of_their_owners(library: str, newest: bool) -> None:
    consume: Any = {
        "numpy": np.from_dlpack,
        "torch": lambda producer: torch_or_skip().from_dlpack(producer),
        "nobody": lambda producer: producer.__dlpack__(max_version=(1, 0)),
    }[library]
    kept: list[Any] = []
    owners: list[weakref.ref[Owner]] = []
    for _ in range(3000):
        owner = Owner()
        owners.append(weakref.ref(owner))
        kept.append(consume(Producer(Layout(F4, (2, 3), None, 4), owner=owner, newest=newest)))
    del owner
    assert all(owner() is not None for owner in owners)

    del kept[::2]
    assert [owner() is not None for owner in owners] == [False, True] * 1500

    kept.clear()
    assert not any(owner() for owner in owners)


@pytest.mark.parametrize("library", ["numpy", "torch", "nobody", "refused"])
@pytest.mark.parametrize("newest", [False, True])
def test_an_exception_on_its_way_arrives(library: str, newest: bool) -> None:
    torch = torch_or_skip() if library == "torch" else None
    owner = Owner()
    gone = weakref.ref(owner)
    dtype = from_text("bfloat16") if library == "refused" else F4
    made = [Producer(Layout(dtype, (2,)), owner=owner, newest=newest)]
    del owner

    def consume() -> Any:
        producer = made.pop()
        if torch is not None:
            return torch.from_dlpack(producer)
        return producer.__dlpack__() if library == "nobody" else np.from_dlpack(producer)

    # What was made before the error is dropped while the error is on its way.
    with pytest.raises(REFUSED if library == "refused" else ZeroDivisionError):
        print(consume(), 1 / 0)

    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("newest", [False, True])
def test_deleters_may_be_called_without_the_gil_from_any_thread(newest: bool) -> None:
    owner = Owner()
    gone = weakref.ref(owner)
    capsule = Producer(Layout(F4, (2,)), owner=owner, newest=newest).__dlpack__(max_version=(1, 0))
    del owner
    name = b"dltensor_versioned" if newest else b"dltensor"
    address = _pointer_of(capsule, name)
    managed = (_Versioned if newest else _Unversioned).from_address(address)
    # What a consumer does: rename the capsule, and call the deleter once it is done. A function
    # of CFUNCTYPE is called without the GIL.
    used = ctypes.c_char_p(b"used_" + name)
    set_name: Any = ctypes.PyDLL(None).PyCapsule_SetName
    set_name.argtypes = [ctypes.py_object, ctypes.c_char_p]
    assert set_name(capsule, used) == 0
    deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(managed.deleter)
    del capsule
    assert gone() is not None

    thread = threading.Thread(target=deleter, args=(address,))
    thread.start()
    thread.join(30)

    assert gone() is None


END_OF_PROCESS = """
import ctypes, sys
import numpy as np
{imports}
from crossmem.arrays import Layout, from_text
from crossmem.arrays.dlpack import make_capsule

memory = (ctypes.c_ubyte * 64)()

class Producer:
    def __dlpack__(self, **asked):
        return make_capsule(
            ctypes.addressof(memory), Layout(from_text("float32"), (4,)), device=(1, 0),
            owner=memory, readonly=False, max_version=asked.get("max_version"),
        )
    def __dlpack_device__(self):
        return (1, 0)

{keep}
kept = [consume() for _ in range(20)]
sys.kept = kept
cycle = [kept[0]]
cycle.append(cycle)
forever = ctypes.py_object(consume())
ctypes.pythonapi.Py_IncRef(forever)
"""


@pytest.mark.parametrize("library", ["numpy", "torch", "nobody"])
def test_the_end_of_the_interpreter_is_survived(library: str) -> None:
    imports, keep = {
        "numpy": ("", "consume = lambda: np.from_dlpack(Producer())"),
        "torch": ("import torch", "consume = lambda: torch.from_dlpack(Producer())"),
        "nobody": ("", "consume = lambda: Producer().__dlpack__()"),
    }[library]
    if library == "torch":
        torch_or_skip()
    code = END_OF_PROCESS.format(imports=imports, keep=keep)

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        check=False,
        timeout=DEADLINE_S,
    )

    assert (done.returncode, done.stderr) == (0, b"")


LATE = """
#include <stddef.h>
typedef void (*deleter_t)(void *);
static void *kept;
static deleter_t deleter;
void keep(void *managed, void *function) { kept = managed; deleter = (deleter_t)function; }
__attribute__((destructor)) static void late(void) { if (kept != NULL) deleter(kept); }
"""


def test_a_deleter_may_be_called_after_the_interpreter(compile_library: Any, tmp_path: Any) -> None:
    source = tmp_path / "late.c"
    source.write_text(LATE)
    library = compile_library(source, tmp_path / "late.so")
    code = END_OF_PROCESS.format(imports="", keep="consume = lambda: Producer().__dlpack__()")
    code += f"""
get = ctypes.pythonapi.PyCapsule_GetPointer
get.argtypes, get.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
address = get(kept[0], b"dltensor")
name = ctypes.pythonapi.PyCapsule_SetName
name.argtypes = [ctypes.py_object, ctypes.c_char_p]
used = ctypes.c_char_p(b"used_dltensor")
name(kept[0], used)
from crossmem.arrays.dlpack import _Unversioned
keep = ctypes.CDLL({str(library)!r}).keep
keep.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
keep(address, _Unversioned.from_address(address).deleter)
"""

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, timeout=DEADLINE_S
    )

    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("device_type", "stream", "waits"),
    [
        (CPU, None, False),
        (CUDA, None, True),
        (CUDA, -1, False),
        (CUDA, 1, True),
        (CUDA, 2, True),
        (CUDA, 2**47, True),
        (CUDA_MANAGED, 1, True),
        (ROCM, None, True),
        (ROCM, -1, False),
        (ROCM, 0, True),
        (ROCM, 3, True),
        (EXT_DEV, None, True),
        (EXT_DEV, -1, False),
        (EXT_DEV, 2**47, True),
    ],
)
def test_streams(device_type: int, stream: int | None, waits: bool) -> None:
    assert check_stream(device_type, stream) is waits


@pytest.mark.parametrize(
    ("device_type", "stream"),
    [
        (CPU, 0),
        (CPU, -1),
        (CUDA, 0),
        (CUDA_MANAGED, 0),
        (CUDA, -2),
        (CUDA, True),
        (CUDA, "1"),
        (ROCM, 1),
        (ROCM, 2),
        (EXT_DEV, -2),
        (EXT_DEV, object()),
    ],
)
def test_streams_that_do_not_exist(device_type: int, stream: object) -> None:
    with pytest.raises(ConfigurationError, match=r"stream (is|must be)"):
        check_stream(device_type, stream)
