# SPDX-License-Identifier: Apache-2.0
"""The sources of the bytes that the demo shares: a file, or generated weights."""

import json
import os
import random
import stat
import struct
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Final, Protocol

from crossmem.cli.formats import Layout, Tensor, read_layout
from crossmem.cli.problems import UsageProblem

__all__ = ["FileSource", "GeneratedSource", "Source", "parse_nbytes"]

_UNITS: Final = {
    "": 1,
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
}
_MIN_GENERATED_NBYTES: Final = 64 * 1024
_LAYERS: Final = 8  # the smallest number of layers; the largest is 31
_NARROWEST: Final = 8
_POOL_NBYTES: Final = 2**20


class Source(Protocol):
    """A source of ``nbytes`` bytes. They can be read once, from the first to the last."""

    name: str
    path: str | None
    nbytes: int
    layout: Layout

    def readinto(self, target: memoryview) -> int:
        """Fill the start of ``target`` with the next bytes and return their number."""

    def close(self) -> None:
        """Close the source. A second call does nothing."""


class FileSource:
    """A regular file that is not empty. It stays open until :meth:`close`.

    Raises
    ------
    UsageProblem
        The file does not exist, cannot be opened, is empty, or is not a regular file.
    """

    def __init__(self, path: Path) -> None:
        try:
            # With O_NONBLOCK, os.open() does not wait for a writer if the file is a named pipe.
            # Then _check_regular() refuses the pipe.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError as error:
            raise UsageProblem(
                f"there is no file {str(path)!r}",
                hint="check the path, or leave it out to share generated weights",
            ) from error
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UsageProblem(f"the file {str(path)!r} cannot be opened: {reason}") from error
        try:
            self.nbytes = _check_regular(path, os.fstat(descriptor))
        except UsageProblem:
            os.close(descriptor)
            raise
        self._file = FileIO(descriptor)
        try:
            with FileIO(descriptor, closefd=False) as raw, BufferedReader(raw) as file:
                self.layout = read_layout(file, self.nbytes, path.suffix.lower())
            self._file.seek(0)
        except BaseException:
            self._file.close()
            raise
        # A file's name may contain bytes that are not valid UTF-8. Such bytes become escapes.
        self.name = os.fsencode(path.name).decode("utf-8", "backslashreplace")
        self.path: str | None = os.fsencode(path).decode("utf-8", "backslashreplace")

    def readinto(self, target: memoryview) -> int:
        """Fill the start of ``target`` with the next bytes and return their number."""
        return self._file.readinto(target) or 0

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self._file.close()


def _check_regular(path: Path, status: os.stat_result) -> int:
    """Return the size of a file in bytes. Raise if the file is not regular or is empty."""
    if not stat.S_ISREG(status.st_mode):
        kind = _kind(status.st_mode)
        raise UsageProblem(
            f"{str(path)!r} is a {kind}, not a regular file", hint="name a regular file"
        )
    if status.st_size == 0:
        raise UsageProblem(
            f"the file {str(path)!r} is empty, so there is nothing to share",
            hint="name a file of at least one byte",
        )
    return status.st_size


def _kind(mode: int) -> str:
    for test, name in (
        (stat.S_ISDIR, "directory"),
        (stat.S_ISFIFO, "pipe"),
        (stat.S_ISSOCK, "socket"),
        (stat.S_ISCHR, "character device"),
        (stat.S_ISBLK, "block device"),
    ):
        if test(mode):
            return name
    return "special file"


class GeneratedSource:
    """Random int8 weights of a small transformer, laid out as a ``.safetensors`` file.

    The bytes depend only on ``nbytes``, and on the lengths of the successive targets of
    :meth:`readinto`.

    Raises
    ------
    UsageProblem
        ``nbytes`` is too small for a header and weights.
    """

    def __init__(self, nbytes: int) -> None:
        if nbytes < _MIN_GENERATED_NBYTES:
            raise UsageProblem(
                f"{nbytes} bytes are too few for generated weights",
                hint=f"give --size at least {_MIN_GENERATED_NBYTES} bytes",
            )
        self.name = "generated weights"
        self.path: str | None = None
        self.nbytes = nbytes
        header, self.layout = _generate_header(nbytes)
        self._header = memoryview(header)
        self._left = nbytes - len(header)
        # All chunks come from one array of random bytes, because new random bytes for each chunk
        # would take longer than the rest of the demo.
        self._random = random.Random(0)  # noqa: S311 - weights, not secrets
        self._pool = memoryview(self._random.randbytes(2 * _POOL_NBYTES))

    def readinto(self, target: memoryview) -> int:
        """Fill the start of ``target`` with the next bytes and return their number."""
        if self._header:
            count = min(len(self._header), len(target))
            target[:count] = self._header[:count]
            self._header = self._header[count:]
            return count
        count = min(self._left, len(target), _POOL_NBYTES)
        start = self._random.randrange(_POOL_NBYTES)
        target[:count] = self._pool[start : start + count]
        self._left -= count
        return count

    def close(self) -> None:
        """Do nothing; there is no file."""


def _generate_header(nbytes: int) -> tuple[bytes, Layout]:
    """Return the header and the layout of a ``.safetensors`` file of exactly ``nbytes`` bytes."""
    budget = nbytes * 3 // 4
    width = _NARROWEST
    while _LAYERS * 12 * (2 * width) ** 2 <= budget:
        width *= 2
    shapes: list[tuple[str, tuple[int, int]]] = []
    for layer in range(budget // (12 * width * width)):
        shapes.append((f"layers.{layer:02d}.attention.weight", (4 * width, width)))
        shapes.append((f"layers.{layer:02d}.mlp.up.weight", (4 * width, width)))
        shapes.append((f"layers.{layer:02d}.mlp.down.weight", (width, 4 * width)))
    layers_nbytes = sum(rows * columns for _, (rows, columns) in shapes)
    # The embedding gets all rows that fit into the remaining bytes. Spaces at the end of the header
    # fill the rest.
    guess = _encode([*shapes, ("embedding.weight", (nbytes, width))])
    rows = (nbytes - 8 - len(guess) - layers_nbytes) // width
    shapes.append(("embedding.weight", (rows, width)))
    header_nbytes = nbytes - 8 - layers_nbytes - rows * width
    header = struct.pack("<Q", header_nbytes) + _encode(shapes).ljust(header_nbytes)
    tensors: list[Tensor] = []
    offset = len(header)
    for name, shape in shapes:
        tensors.append(Tensor(name, "I8", shape, offset, shape[0] * shape[1]))
        offset += tensors[-1].nbytes
    return header, Layout("safetensors", tuple(tensors))


def _encode(shapes: list[tuple[str, tuple[int, int]]]) -> bytes:
    entries: dict[str, object] = {}
    offset = 0
    for name, shape in shapes:
        end = offset + shape[0] * shape[1]
        entries[name] = {"dtype": "I8", "shape": shape, "data_offsets": (offset, end)}
        offset = end
    return json.dumps(entries, separators=(",", ":")).encode()


def parse_nbytes(text: str) -> int:
    """Return the number of bytes of a size such as ``"256MiB"``, ``"1.5G"`` or ``"4096"``.

    Raises
    ------
    UsageProblem
        The text is not a positive size.
    """
    stripped = text.strip().replace("_", "")
    digits = stripped.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = _UNITS.get(stripped[len(digits) :].strip().lower())
    try:
        value = float(digits) if "." in digits else int(digits)
        nbytes = int(value * unit) if unit is not None else 0
    except (ValueError, OverflowError):
        nbytes = 0
    if nbytes <= 0:
        raise UsageProblem(
            f"{text!r} is not a size",
            hint="write a number of bytes, or a size with a unit, such as 64MiB or 1.5GiB",
        )
    return nbytes
