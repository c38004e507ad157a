# SPDX-License-Identifier: Apache-2.0
"""Headers of tensor files, good and hostile."""

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from crossmem.cli.formats import Layout, read_layout
from crossmem.cli.problems import UsageProblem
from crossmem.cli.sources import GeneratedSource, parse_nbytes


def layout_of(data: bytes, suffix: str) -> Layout:
    return read_layout(io.BytesIO(data), len(data), suffix)


def safetensors(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(start: int, end: int, *, dtype: str = "U8", shape: Any = None) -> dict[str, Any]:
    extent = [end - start] if shape is None else shape
    return {"dtype": dtype, "shape": extent, "data_offsets": [start, end]}


def npy(header: str, data: bytes = b"", *, version: int = 1) -> bytes:
    size = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + size + header.encode() + data


def test_safetensors_are_found_where_the_library_put_them(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "a": np.arange(12, dtype=np.float32).reshape(3, 4),
        "b.weight": np.arange(5, dtype=np.int64),
        "empty": np.zeros((0, 3), dtype=np.uint8),
    }
    path = tmp_path / "model.safetensors"
    save_file(arrays, path, metadata={"format": "np"})
    data = path.read_bytes()

    layout = layout_of(data, ".safetensors")

    assert (layout.format, layout.note) == ("safetensors", "")
    found = {one.name: one for one in layout.tensors}
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        one = found[name]
        assert one.shape == array.shape
        assert data[one.offset : one.offset + one.nbytes] == array.tobytes()
    assert found["a"].dtype == "F32"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x01\x02", id="shorter than its prefix"),
        pytest.param(struct.pack("<Q", 2**63) + b"{}", id="header larger than the file"),
        pytest.param(safetensors(b"\xff\xfe{}"), id="not text"),
        pytest.param(safetensors(b"{"), id="not JSON"),
        pytest.param(safetensors(b"[" * 100_000), id="nested too deep"),
        pytest.param(safetensors([]), id="not an object"),
        pytest.param(safetensors({}, b"x"), id="bytes of no tensor"),
        pytest.param(safetensors({"a": entry(0, 8)}, b"1234"), id="data cut off"),
        pytest.param(safetensors({"a": entry(-4, 4)}, b"1234"), id="negative offset"),
        pytest.param(safetensors({"a": entry(4, 0)}, b"1234"), id="ends before it starts"),
        pytest.param(safetensors({"a": entry(1, 4)}, b"1234"), id="hole"),
        pytest.param(
            safetensors({"a": entry(0, 3), "b": entry(2, 4)}, b"1234"), id="tensors overlap"
        ),
        pytest.param(safetensors({"a": entry(0, 4, dtype="X9")}, b"1234"), id="unknown type"),
        pytest.param(safetensors({"a": entry(0, 4, shape=[5])}, b"1234"), id="shape too large"),
        pytest.param(safetensors({"a": entry(0, 4, shape=[-4])}, b"1234"), id="shape negative"),
        pytest.param(safetensors({"a": entry(0, 4, shape=[4.0])}, b"1234"), id="shape a float"),
        pytest.param(safetensors({"a": entry(0, 4, shape=[True])}, b"1"), id="shape a bool"),
        pytest.param(
            safetensors({"a": entry(0, 4, shape=[2**62] * 99)}, b"1234"), id="shape absurd"
        ),
        pytest.param(safetensors({"a": {"dtype": "U8"}}, b"1234"), id="entry incomplete"),
        pytest.param(safetensors({"a": 7}, b"1234"), id="entry no object"),
        pytest.param(safetensors({"a\ud800": entry(0, 4)}, b"1234"), id="name no text"),
        pytest.param(
            safetensors(b'{"a":' + json.dumps(entry(0, 1)).encode() + b',"a":{}}', b"1"),
            id="name twice",
        ),
    ],
)
def test_damaged_safetensors_are_plain_bytes_with_a_note(data: bytes) -> None:
    layout = layout_of(data, ".safetensors")

    assert (layout.format, layout.tensors) == ("bytes", ())
    assert "shared as plain bytes" in layout.note


@pytest.mark.parametrize("dtype", ["float32", "<i2", "bool", "S7", "<U3", "datetime64[ns]", "c8"])
def test_npy_is_found(dtype: str) -> None:
    array = np.zeros((2, 3), dtype=dtype)
    stream = io.BytesIO()
    np.save(stream, array)

    for suffix in (".npy", ".bin"):  # known by its name, or by its first bytes
        layout = layout_of(stream.getvalue(), suffix)

        (tensor,) = layout.tensors
        assert layout.format == "npy"
        assert tensor.shape == (2, 3)
        assert tensor.nbytes == array.nbytes
        assert tensor.offset + tensor.nbytes == len(stream.getvalue())


_NPY = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"hello", id="no mark"),
        pytest.param(npy(_NPY, b"1234567"), id="data cut off"),
        pytest.param(npy(_NPY, b"123456789"), id="data too long"),
        pytest.param(npy(_NPY, b"12345678", version=9), id="unknown version"),
        pytest.param(npy(_NPY)[:20], id="header cut off"),
        pytest.param(b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1), id="header too long"),
        pytest.param(npy("__import__('os')"), id="code"),
        pytest.param(npy("(" * 5000), id="nested too deep"),
        pytest.param(npy("{'descr': '<f4'}"), id="incomplete"),
        pytest.param(npy(_NPY.replace("<f4", "|O"), b"12345678"), id="objects"),
        pytest.param(npy(_NPY.replace("'<f4'", "[('a', '<f4')]"), b"1234"), id="records"),
        pytest.param(npy(_NPY.replace("(2,)", "(-2,)"), b""), id="shape negative"),
        pytest.param(npy(_NPY.replace("f4", "f" + "9" * 50), b""), id="element absurd"),
    ],
)
def test_damaged_npy_is_plain_bytes_with_a_note(data: bytes) -> None:
    layout = layout_of(data, ".npy")

    assert (layout.format, layout.tensors) == ("bytes", ())
    assert "npy" in layout.note


def test_npz_members_are_found_compressed_or_not() -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "a": np.arange(6, dtype=np.int16).reshape(2, 3),
        "b": np.ones(4),
    }
    stored, deflated = io.BytesIO(), io.BytesIO()
    np.savez(stored, **arrays)  # type: ignore[arg-type]
    np.savez_compressed(deflated, **arrays)  # type: ignore[arg-type]

    layout = layout_of(stored.getvalue(), ".npz")
    assert [one.name for one in layout.tensors] == ["a", "b"]
    for one in layout.tensors:
        data = stored.getvalue()[one.offset : one.offset + one.nbytes]
        assert (one.stored, data) == ("raw", arrays[one.name].tobytes())

    layout = layout_of(deflated.getvalue(), ".npz")
    assert [(one.name, one.shape, one.stored) for one in layout.tensors] == [
        ("a", (2, 3), "deflated"),
        ("b", (4,), "deflated"),
    ]
    for one in layout.tensors:
        assert one.offset + one.nbytes <= len(deflated.getvalue())


def test_members_of_an_npz_that_are_no_arrays_are_bytes() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("notes.txt", "hello")

    (tensor,) = layout_of(stream.getvalue(), ".npz").tensors

    assert (tensor.name, tensor.dtype, tensor.shape) == ("notes.txt", "bytes", None)
    assert stream.getvalue()[tensor.offset : tensor.offset + tensor.nbytes] == b"hello"


def test_every_damage_to_an_npz_leaves_parts_inside_the_file() -> None:
    stream = io.BytesIO()
    np.savez_compressed(stream, a=np.arange(50), b=np.zeros((2, 2), dtype=np.int8))
    good = stream.getvalue()
    damaged = [good[:cut] for cut in range(len(good))]
    for position in range(len(good)):
        head, tail = good[:position], good[position + 1 :]
        damaged += [head + bytes([value]) + tail for value in (0, 0x7F, 0xFF)]

    for data in damaged:
        for one in layout_of(data, ".npz").tensors:
            assert 0 <= one.offset <= one.offset + one.nbytes <= len(data)


@pytest.mark.parametrize("nbytes", [65_536, 65_537, 1_000_003, 64 * 2**20])
def test_generated_weights_are_a_safetensors_file(nbytes: int) -> None:
    source, again = GeneratedSource(nbytes), GeneratedSource(nbytes)
    data, repeated = bytearray(nbytes), bytearray(nbytes)
    for one, target in ((source, data), (again, repeated)):
        view, done = memoryview(target), 0
        while count := one.readinto(view[done : done + 300_000]):
            done += count
        assert done == nbytes

    assert data == repeated
    assert layout_of(bytes(data), ".safetensors") == source.layout


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("1", 1), ("64MiB", 2**26), ("1.5 GiB", 3 * 2**29), ("2g", 2**31), ("1_000 kB", 10**6)],
)
def test_sizes_are_read(text: str, nbytes: int) -> None:
    assert parse_nbytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "-1", "MiB", "1 parsec", "nan", "inf", "1e3", "1.2.3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageProblem, match="not a size"):
        parse_nbytes(text)
