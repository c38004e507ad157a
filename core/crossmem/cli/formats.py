# SPDX-License-Identifier: Apache-2.0
"""Finds the tensors in ``.safetensors``, ``.npy`` and ``.npz`` files.

This module reads only headers, and unpickles nothing. It checks the sizes in the headers against
the size of the file. For a compressed array, it checks only the size of the compressed bytes. A
file that breaks the rules of its format is treated as plain bytes, with a note.
"""

import ast
import json
import lzma
import math
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import IO, Final, Literal

__all__ = ["Format", "Layout", "Stored", "Tensor", "read_layout"]

Format = Literal["safetensors", "npy", "npz", "bytes"]
"""The format of a file; ``"bytes"`` if the file has none of the other formats."""

Stored = Literal["raw", "deflated"]
"""``"raw"`` if the stored bytes are the tensor itself; ``"deflated"`` if they are compressed."""

_MAX_SAFETENSORS_HEADER: Final = 100_000_000
_MAX_NPY_HEADER: Final = 1_000_000
_MAX_TENSORS: Final = 1_000_000
_MAX_DIMENSIONS: Final = 64

# The number of bits per element for each dtype, from the specification of safetensors.
_SAFETENSORS_BITS: Final = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "F64": 64,
    "I64": 64,
    "U64": 64,
    "C64": 64,
}

_NPY_MAGIC: Final = b"\x93NUMPY"
_NPY_START_NBYTES: Final = 12
_MAX_ITEMSIZE_DIGITS: Final = 9
_SAFETENSORS_PREFIX: Final = struct.Struct("<Q")
_ZIP_MARK: Final = b"PK\x03\x04"
_ZIP_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One named range of bytes in a file.

    Parameters
    ----------
    name
        The name in the file; ``""`` for the only array of a ``.npy`` file.
    dtype, shape
        Dtype and shape in the file's spelling; ``"bytes"`` and None if the file does not state
        them.
    offset, nbytes
        Start of the data in the file, and size of the data in bytes. ``nbytes`` may be 0.
    stored
        ``"deflated"`` if the bytes are compressed, so that they cannot be used as an array.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    offset: int
    nbytes: int
    stored: Stored = "raw"


@dataclass(frozen=True, slots=True)
class Layout:
    """The format and tensors of a file. ``note`` says why a faulty file counts as plain bytes."""

    format: Format
    tensors: tuple[Tensor, ...] = ()
    note: str = ""


class _RefusedError(Exception):
    """The file breaks the rules of its apparent format."""


def read_layout(file: IO[bytes], nbytes: int, suffix: str) -> Layout:
    """Return the format and the tensors of a file.

    Parameters
    ----------
    file
        A seekable file, opened for reading. Its position after the call is undefined.
    nbytes
        Size of the file in bytes.
    suffix
        End of the file's name in lower case, such as ``".npy"``. A NumPy array is also recognised
        by its first bytes.
    """
    file.seek(0)
    start = file.read(8)
    kind: Format
    if suffix == ".safetensors":
        kind, reader = "safetensors", _read_safetensors
    elif suffix == ".npy" or start.startswith(_NPY_MAGIC):
        kind, reader = "npy", _read_npy
    elif suffix == ".npz":
        kind, reader = "npz", _read_npz
    else:
        return Layout("bytes")
    try:
        return Layout(kind, reader(file, nbytes))
    except _RefusedError as error:
        return Layout("bytes", note=f"not a usable {kind} file ({error}); shared as plain bytes")


def _read_safetensors(file: IO[bytes], nbytes: int) -> tuple[Tensor, ...]:
    file.seek(0)
    prefix = file.read(_SAFETENSORS_PREFIX.size)
    if len(prefix) < _SAFETENSORS_PREFIX.size:
        raise _RefusedError(f"{nbytes} bytes are too few for its header")
    (header_nbytes,) = _SAFETENSORS_PREFIX.unpack(prefix)
    if header_nbytes > min(nbytes - len(prefix), _MAX_SAFETENSORS_HEADER):
        raise _RefusedError(f"its header claims {header_nbytes} bytes, which are too many")
    try:
        header = json.loads(file.read(header_nbytes), object_pairs_hook=_unique)
    # UnicodeDecodeError and JSONDecodeError are ValueErrors.
    except (ValueError, RecursionError) as error:
        raise _RefusedError(f"its header cannot be read: {type(error).__name__}") from error
    if not isinstance(header, dict) or len(header) > _MAX_TENSORS:
        raise _RefusedError("its header is not a JSON object, or has too many entries")
    data_start = len(prefix) + header_nbytes
    tensors = sorted(
        (
            _safetensors_entry(name, entry, data_start, nbytes)
            for name, entry in header.items()
            if name != "__metadata__"
        ),
        key=lambda tensor: (tensor.offset, tensor.nbytes),
    )
    end = data_start
    for tensor in tensors:
        if tensor.offset != end:
            raise _RefusedError(f"tensor {tensor.name!r} overlaps another tensor or follows a gap")
        end += tensor.nbytes
    if end != nbytes:
        raise _RefusedError(f"its tensors end at byte {end} of {nbytes}")
    return tuple(tensors)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name occurs twice")
    return result


def _safetensors_entry(name: str, entry: object, data_start: int, nbytes: int) -> Tensor:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [start, end]}:
            pass
        case _:
            raise _RefusedError(f"tensor {name!r} lacks dtype, shape or data_offsets")
    if not name.isprintable() and any("\ud800" <= c <= "\udfff" for c in name):
        raise _RefusedError(f"the name {name!r} is not Unicode text")
    bits = _SAFETENSORS_BITS.get(dtype)
    if bits is None:
        raise _RefusedError(f"tensor {name!r} has the unknown dtype {dtype!r}")
    elements = _count(name, shape)
    if not (_is_size(start) and _is_size(end) and start <= end <= nbytes - data_start):
        raise _RefusedError(f"tensor {name!r} lies outside the file")
    if elements * bits != (end - start) * 8:
        raise _RefusedError(
            f"tensor {name!r} has {end - start} bytes, which do not match its dtype and shape"
        )
    return Tensor(name, dtype, tuple(shape), data_start + start, end - start)


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _count(name: str, shape: list[object] | tuple[object, ...]) -> int:
    if len(shape) > _MAX_DIMENSIONS or not all(_is_size(extent) for extent in shape):
        raise _RefusedError(f"tensor {name!r} has an impossible shape")
    return math.prod(extent for extent in shape if isinstance(extent, int))


def _read_npy(file: IO[bytes], nbytes: int) -> tuple[Tensor, ...]:
    file.seek(0)
    dtype, shape, header_nbytes, data_nbytes = _npy_header(file)
    if header_nbytes + data_nbytes != nbytes:
        raise _RefusedError(
            f"its header claims {data_nbytes} bytes of data, but {nbytes - header_nbytes} follow"
        )
    return (Tensor("", dtype, shape, header_nbytes, data_nbytes),)


def _npy_header(file: IO[bytes]) -> tuple[str, tuple[int, ...], int, int]:
    """Return dtype, shape, size of the header and size of the data. Both sizes are in bytes."""
    start = file.read(_NPY_START_NBYTES)
    if len(start) < _NPY_START_NBYTES or not start.startswith(_NPY_MAGIC):
        raise _RefusedError("it does not start with the magic bytes of a NumPy array")
    if start[6] == 1:
        (text_nbytes,), text_start = struct.unpack_from("<H", start, 8), 10
    elif start[6] in (2, 3):
        (text_nbytes,), text_start = struct.unpack_from("<I", start, 8), 12
    else:
        raise _RefusedError(f"its format version {start[6]} is unknown")
    if text_nbytes > _MAX_NPY_HEADER:
        raise _RefusedError(f"its header claims {text_nbytes} bytes, which are too many")
    rest = text_start + text_nbytes - len(start)
    text = start[text_start:] + file.read(max(0, rest))
    if len(text) < text_nbytes:
        raise _RefusedError("it ends inside its header")
    try:
        header = ast.literal_eval(text[:text_nbytes].decode("utf-8").strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise _RefusedError(f"its header cannot be read: {type(error).__name__}") from error
    match header:
        case {"descr": str(dtype), "shape": tuple(shape), "fortran_order": bool()}:
            pass
        case {"descr": list()}:
            raise _RefusedError("it holds records, not numbers")
        case _:
            raise _RefusedError("its header lacks descr, shape or fortran_order")
    itemsize = _npy_itemsize(dtype)
    return dtype, shape, text_start + text_nbytes, _count("", shape) * itemsize


def _npy_itemsize(dtype: str) -> int:
    order, kind, digits = dtype[:1], dtype[1:2], dtype[2:].partition("[")[0]
    if order not in "<>|=" or kind not in "?biufcmMSUV" or not digits.isdecimal():
        raise _RefusedError(f"it holds elements of type {dtype!r}, which are not plain numbers")
    if len(digits) > _MAX_ITEMSIZE_DIGITS:
        raise _RefusedError(f"its elements are too large: {digits[:_MAX_ITEMSIZE_DIGITS]}... bytes")
    return int(digits) * (4 if kind == "U" else 1)


def _read_npz(file: IO[bytes], nbytes: int) -> tuple[Tensor, ...]:
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len(members) > _MAX_TENSORS:
                raise _RefusedError(f"it has {len(members)} members, which are too many")
            tensors = [_npz_member(archive, file, member, nbytes) for member in members]
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, ValueError) as error:
        msg = f"{error}".splitlines()[0] if str(error) else type(error).__name__
        raise _RefusedError(msg) from error
    except (RuntimeError, EOFError, OSError, struct.error, zlib.error, lzma.LZMAError) as error:
        # zipfile raises RuntimeError for an encrypted member, and does not convert the errors of
        # zlib and struct.
        raise _RefusedError(f"{type(error).__name__}: {error}") from error
    tensors.sort(key=lambda tensor: tensor.offset)
    return tuple(tensors)


def _npz_member(
    archive: zipfile.ZipFile, file: IO[bytes], member: zipfile.ZipInfo, nbytes: int
) -> Tensor:
    file.seek(member.header_offset)
    local = file.read(_ZIP_LOCAL_HEADER.size)
    if len(local) < _ZIP_LOCAL_HEADER.size:
        raise _RefusedError(f"member {member.filename!r} lies outside the file")
    # The data begin after the member's local header. The directory at the end of the file does not
    # state the length of this header.
    mark, name_nbytes, extra_nbytes = _ZIP_LOCAL_HEADER.unpack(local)
    start = member.header_offset + _ZIP_LOCAL_HEADER.size + name_nbytes + extra_nbytes
    raw = member.compress_type == zipfile.ZIP_STORED
    cut = start + member.compress_size > nbytes or (
        raw and member.compress_size != member.file_size
    )
    if mark != _ZIP_MARK or cut:
        raise _RefusedError(f"member {member.filename!r} is damaged or lies outside the file")
    name = member.filename.removesuffix(".npy")
    stored: Stored = "raw" if raw else "deflated"
    try:
        with archive.open(member) as stream:
            dtype, shape, header_nbytes, data_nbytes = _npy_header(stream)
    except _RefusedError:
        return Tensor(name, "bytes", None, start, member.compress_size, stored)
    if not raw:
        # The offset and size are those of the compressed bytes.
        return Tensor(name, dtype, shape, start, member.compress_size, stored)
    if header_nbytes + data_nbytes != member.file_size:
        raise _RefusedError(f"member {member.filename!r} is not as long as its header says")
    return Tensor(name, dtype, shape, start + header_nbytes, data_nbytes)
