# SPDX-License-Identifier: Apache-2.0
"""Words of leases are mapped in no forked child, whatever another thread was about to do."""

import ctypes
import errno
import fcntl
import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import crossmem
from crossmem.conformance.forks import in_child
from crossmem.conformance.resources import lease_words
from crossmem.control import segments


@pytest.fixture
def made() -> Iterator[list[segments.Segment]]:
    """Return what a test makes; all of it is closed after the test."""
    found: list[segments.Segment] = []
    yield found
    for segment in found:
        segment.close()


def make(made: list[segments.Segment], name: str) -> None:
    descriptors: list[int] = []
    made.append(segments.create(name, descriptors, is_written_by_maker=True))
    os.close(descriptors[0])


def words_of_a_child() -> list[str]:
    with warnings.catch_warnings():
        # Newer Pythons warn of forks among threads, which this is about.
        warnings.simplefilter("ignore", DeprecationWarning)
        found: list[str] = in_child(lease_words)
    return found


@pytest.mark.parametrize("name", [segments.CONTROL_NAME, segments.ROW_NAME])
def test_a_child_has_no_segment(made: list[segments.Segment], name: str) -> None:
    before = len(lease_words())
    make(made, name)

    assert len(lease_words()) == before + 1
    assert words_of_a_child() == []
    assert len(lease_words()) == before + 1


@pytest.mark.parametrize("name", [segments.CONTROL_NAME, segments.ROW_NAME])
def test_a_child_has_no_segment_that_another_thread_was_about_to_protect(
    made: list[segments.Segment], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    madvise, is_mapped, goes_on = segments._madvise, threading.Event(), threading.Event()

    def advise_late(*arguments: Any) -> int:
        is_mapped.set()
        assert goes_on.wait(60)
        return int(madvise(*arguments))

    monkeypatch.setattr(segments, "_madvise", advise_late)
    before = len(lease_words())
    thread = threading.Thread(target=make, args=(made, name))
    thread.start()
    try:
        assert is_mapped.wait(60)
        assert len(lease_words()) == before + 1
        assert words_of_a_child() == []
    finally:
        goes_on.set()
        thread.join(60)
    assert len(lease_words()) == before + 1
    made[0].words[0] = 1


@pytest.mark.parametrize("seal", [fcntl.F_SEAL_WRITE, 0x10])
def test_a_row_that_cannot_be_written_is_no_row(made: list[segments.Segment], seal: int) -> None:
    descriptors: list[int] = []
    made.append(segments.create(segments.ROW_NAME, descriptors, is_written_by_maker=False))
    try:
        other = os.memfd_create("row", os.MFD_ALLOW_SEALING)
        descriptors.append(other)
        os.ftruncate(other, os.fstat(descriptors[0]).st_size)
        fcntl.fcntl(other, fcntl.F_ADD_SEALS, seal | segments._SEALS)
        with pytest.raises(crossmem.InvalidHandleError):
            segments.receive(other, is_writable=True)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def test_an_old_kernel_seals_without_that_of_later_writing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add, refused = fcntl.fcntl, []

    def before_linux_5_1(descriptor: int, command: int, seals: int = 0) -> int:
        if command == fcntl.F_ADD_SEALS and seals & 0x10:
            refused.append(seals)
            raise OSError(errno.EINVAL, "Invalid argument")
        return add(descriptor, command, seals)

    monkeypatch.setattr(fcntl, "fcntl", before_linux_5_1)
    made: list[int] = []
    segment = segments.create("crossmem-control", made, is_written_by_maker=True)
    received = segments.receive(made[0], is_writable=False)
    segment.words[segments.HEADER_WORDS] = 7

    assert received.words[segments.HEADER_WORDS] == 7
    assert refused == [0x10]
    segment.close()
    received.close()
    os.close(made[0])


def test_a_forked_child_unmaps_no_other_memory(made: list[segments.Segment]) -> None:
    make(made, "words")
    (segment,) = made
    address, anonymous_private = segment.address, 0x22

    def replace_and_close() -> bytes:
        # The child has nothing at this address, so its allocator may use the address.
        prot_rw, fixed = 3, 0x10
        got = segments._mmap(address, 4096, prot_rw, anonymous_private | fixed, -1, 0)
        assert got == address
        ctypes.memset(address, 7, 4096)
        # As in a hook of the fork that runs before the hook of the segments.
        segment._mapped = [address]
        segment.close()
        return ctypes.string_at(address, 1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert in_child(replace_and_close) == b"\7"
