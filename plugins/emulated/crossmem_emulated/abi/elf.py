# SPDX-License-Identifier: Apache-2.0
"""Reads the names of the libraries and symbols that an ELF file needs.

The section headers say where the dynamic loader's tables lie. :func:`needs_of` reads only 64-bit
little-endian files, because the vendors build no other files for Linux.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crossmem.errors import ConfigurationError
from crossmem.guards import clause, shorten

__all__ = ["Needs", "needs_of", "processor_of"]

_IDENT: Final = b"\x7fELF\x02\x01"
_HEADER: Final = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_DYNAMIC: Final = struct.Struct("<qQ")
_VERNEED: Final = struct.Struct("<HHIII")
_VERNAUX: Final = struct.Struct("<IHHII")

_DYNAMIC_SECTION, _DYNSYM_SECTION = 6, 11
_VERNEED_SECTION, _VERSYM_SECTION = 0x6FFFFFFE, 0x6FFFFFFF
_NEEDED: Final = 1
_UNDEFINED: Final = 0
_WEAK: Final = 2
_HIDDEN: Final = 0x8000
_UNVERSIONED: Final = 2
"""The lowest number that refers to a version. A symbol with the number 0 or 1 has no version."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The dependencies of a shared library.

    Parameters
    ----------
    libraries
        Names of the libraries that the library needs.
    symbols
        The undefined, strong symbols. An entry is the symbol's name, the library that provides it,
        and the symbol's version. Library and version are empty if the file does not name them.
    """

    libraries: tuple[str, ...]
    symbols: tuple[tuple[str, str, str], ...]


class _File:
    """Reads the sections of an ELF file. The methods raise struct.error if the file is damaged."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        fields = _HEADER.unpack_from(data)
        first, size, count = fields[5], fields[10], fields[11]
        self.sections = [_SECTION.unpack_from(data, first + size * i) for i in range(count)]

    def _bytes(self, section: tuple[int, ...]) -> bytes:
        start, size = section[4], section[5]
        found = self._data[start : start + size]
        if len(found) < size:
            msg = f"the section at offset {start} is incomplete"
            raise struct.error(msg)
        return found

    def section(self, kind: int) -> tuple[int, ...] | None:
        """Return the header of the first section of a kind, or None if there is no such section."""
        return next((one for one in self.sections if one[1] == kind), None)

    def text(self, section: tuple[int, ...], offset: int) -> str:
        """Return the string at an offset in the string table to which a section refers."""
        link = section[6]
        start = self.sections[link][4] + offset if link < len(self.sections) else -1
        end = self._data.find(b"\0", start) if start >= 0 else -1
        if end < 0:
            msg = f"the string at {offset} in section {link} has no end"
            raise struct.error(msg)
        return self._data[start:end].decode("utf-8", "replace")

    def records(self, section: tuple[int, ...], shape: struct.Struct) -> Iterator[tuple[int, ...]]:
        """Yield the entries of a section."""
        yield from shape.iter_unpack(self._bytes(section))

    def libraries(self) -> Iterator[str]:
        section = self.section(_DYNAMIC_SECTION)
        for tag, value in self.records(section, _DYNAMIC) if section else ():
            if tag == _NEEDED:
                yield self.text(section, value)  # type: ignore[arg-type]

    def versions(self) -> dict[int, tuple[str, str]]:
        """Return, for each version number, the library and the name of the version."""
        found: dict[int, tuple[str, str]] = {}
        section = self.section(_VERNEED_SECTION)
        place = section[4] if section else 0
        for _ in range(section[7] if section else 0):
            _, count, file, first, following = _VERNEED.unpack_from(self._data, place)
            library = self.text(section, file)  # type: ignore[arg-type]
            one = place + first
            for _ in range(count):
                _, _, number, name, after = _VERNAUX.unpack_from(self._data, one)
                found[number] = library, self.text(section, name)  # type: ignore[arg-type]
                one += after
            if not following:
                break
            place += following
        return found

    def symbols(self) -> Iterator[tuple[str, str, str]]:
        section, numbers = self.section(_DYNSYM_SECTION), self.section(_VERSYM_SECTION)
        if section is None:
            return
        versions = self.versions()
        of_symbols = self._bytes(numbers) if numbers else b""
        for index, symbol in enumerate(self.records(section, _SYMBOL)):
            name, info, _, home, _, _ = symbol
            if home != _UNDEFINED or not name or info >> 4 == _WEAK:
                continue
            number = 0
            if of_symbols:
                (number,) = struct.unpack_from("<H", of_symbols, 2 * index)
            number &= ~_HIDDEN
            known = versions.get(number) if number >= _UNVERSIONED else None
            yield (self.text(section, name), *(known or ("", "")))


def needs_of(path: Path) -> Needs | None:
    """Return the dependencies of a file, or None if it is not a 64-bit little-endian ELF file.

    Raises
    ------
    ConfigurationError
        The file cannot be read, or is damaged.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_IDENT)) != _IDENT:
                return None
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                elf = _File(data)
                return Needs(tuple(elf.libraries()), tuple(elf.symbols()))
    except OSError as error:
        msg = f"{shorten(str(path))} cannot be read: {error.strerror}"
        raise ConfigurationError(msg, hint="check the permissions of the file") from None
    except (struct.error, OverflowError) as error:
        msg = f"{shorten(str(path))} is not a complete library ({clause(str(error), 60)})"
        raise ConfigurationError(msg, hint="reinstall the package of the library") from None


def processor_of(path: Path) -> tuple[int, int, int]:
    """Return the class, the byte order and the machine number of an ELF file.

    These three numbers identify the processor for which the file was built.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    with path.open("rb") as file:
        header = os.pread(file.fileno(), _HEADER.size, 0).ljust(_HEADER.size, b"\0")
    return header[4], header[5], _HEADER.unpack(header)[1]
