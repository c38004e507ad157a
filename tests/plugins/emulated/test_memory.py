# SPDX-License-Identifier: Apache-2.0
"""Memory as the kernel gives it."""

import ctypes
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crossmem_emulated import memory

PAGE = os.sysconf("SC_PAGE_SIZE")
F_SEAL_EXEC = 0x20
MFD_NOEXEC_SEAL = 0x8


@pytest.fixture
def created() -> Iterator[tuple[int, int]]:
    descriptor, pointer = memory.create(PAGE, memory.creation_flags(), is_inherited=True)
    yield descriptor, pointer
    memory.unmap(pointer, PAGE)
    os.close(descriptor)


@pytest.mark.parametrize("nbytes", [0, PAGE - 1, PAGE + 1, 2 * PAGE])
def test_nobody_resizes_the_memory(created: tuple[int, int], nbytes: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(created[0], nbytes)


def test_nobody_writes_past_its_end(created: tuple[int, int]) -> None:
    os.lseek(created[0], PAGE, os.SEEK_SET)
    with pytest.raises(PermissionError):
        os.write(created[0], b"x")


def test_nobody_adds_seals(created: tuple[int, int]) -> None:
    with pytest.raises(PermissionError):
        fcntl.fcntl(created[0], fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_the_descriptor_is_closed_on_exec(created: tuple[int, int]) -> None:
    assert not os.get_inheritable(created[0])


def test_the_memory_cannot_be_executed_where_the_kernel_can_say_so(
    created: tuple[int, int],
) -> None:
    major, minor = map(int, os.uname().release.split(".")[:2])
    if (major, minor) < (6, 3):
        pytest.skip("Linux before 6.3 has no MFD_NOEXEC_SEAL")

    assert os.fstat(created[0]).st_mode & 0o111 == 0
    assert fcntl.fcntl(created[0], fcntl.F_GET_SEALS) & F_SEAL_EXEC


def test_kernels_before_6_3_are_asked_for_what_they_know(monkeypatch: pytest.MonkeyPatch) -> None:
    create = os.memfd_create

    def old_kernel(name: str, flags: int) -> int:
        if flags & MFD_NOEXEC_SEAL:
            raise OSError(errno.EINVAL, "Invalid argument")
        return create(name, flags)

    monkeypatch.setattr(memory, "memfd_create", old_kernel)
    flags = memory.creation_flags()
    descriptor, pointer = memory.create(PAGE, flags, is_inherited=False)

    assert memory.sealed_nbytes(descriptor) == PAGE
    assert not os.get_inheritable(descriptor)
    memory.unmap(pointer, PAGE)
    os.close(descriptor)


def test_huge_pages_are_no_such_memory() -> None:
    try:
        descriptor = os.memfd_create("huge", os.MFD_HUGETLB | os.MFD_ALLOW_SEALING)
    except OSError as error:
        pytest.skip(f"this kernel has no huge pages: {error}")
    try:
        os.ftruncate(descriptor, 1 << 30)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)

        assert memory.sealed_nbytes(descriptor) is None
    finally:
        os.close(descriptor)


def test_a_refusal_of_memfds_is_not_taken_for_an_old_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(memory, "memfd_create", refuse)
    with pytest.raises(memory.SystemCallError) as caught:
        memory.creation_flags()

    assert (caught.value.call, caught.value.code) == ("memfd_create", errno.EACCES)


def test_probing_keeps_nothing(footprint: Callable[[], object]) -> None:
    before = footprint()
    memory.creation_flags()

    assert footprint() == before


def test_the_mapping_outlives_the_descriptor(footprint: Callable[[], object]) -> None:
    before = footprint()
    descriptor, pointer = memory.create(PAGE, memory.creation_flags(), is_inherited=True)
    os.close(descriptor)
    memory.fill(pointer, PAGE, 7)
    memory.copy(pointer + 1, pointer, 1)
    memory.unmap(pointer, PAGE)

    assert footprint() == before


def test_memory_that_a_fork_would_copy_is_not_left(
    monkeypatch: pytest.MonkeyPatch, footprint: Callable[[], object]
) -> None:
    def refuse(*_: object) -> int:
        ctypes.set_errno(errno.EINVAL)
        return -1

    before = footprint()
    monkeypatch.setattr(memory, "_madvise", refuse)
    with pytest.raises(memory.SystemCallError) as caught:
        memory.create(PAGE, memory.creation_flags(), is_inherited=False)

    assert (caught.value.call, caught.value.code) == ("madvise(MADV_DONTFORK)", errno.EINVAL)
    assert footprint() == before


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"shmem_enabled": "always within_size [advise] never deny force"}, True),
        ({"shmem_enabled": "always within_size advise [never] deny force"}, False),
        ({"shmem_enabled": "[always] within_size advise never deny force"}, False),
        ({"shmem_enabled": "always [within_size] advise never deny force"}, False),
        (
            {
                "shmem_enabled": "always within_size advise [never] deny force",
                "hugepages-64kB/shmem_enabled": "always inherit within_size advise [never]",
                "hugepages-2048kB/shmem_enabled": "always inherit within_size [advise] never",
            },
            True,
        ),
        ({}, False),
    ],
)
def test_huge_pages_are_asked_for_only_where_the_kernel_waits_for_it(
    files: dict[str, str], expected: bool, tmp_path: Path
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n", "ascii")

    assert memory.wants_huge_page_advice(tmp_path) is expected


def test_this_kernels_answer_agrees_with_its_own_settings() -> None:
    path = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    if not path.exists():
        assert not memory.wants_huge_page_advice()
    elif "[advise]" in path.read_text("ascii"):
        assert memory.wants_huge_page_advice()


@pytest.mark.parametrize(
    ("nbytes", "alignment"), [((1 << 64) - PAGE, 1 << 21), (PAGE, 1 << 64), ((1 << 63), 1 << 63)]
)
def test_a_size_that_does_not_fit_in_c_s_type_is_refused(
    nbytes: int, alignment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> int:
        raise AssertionError("the kernel was asked")

    monkeypatch.setattr(memory, "_mmap", never)
    with pytest.raises(memory.SystemCallError) as caught:
        memory.reserve(nbytes, alignment)

    assert caught.value.code == errno.ENOMEM


def test_what_is_mapped_is_found_by_its_ends() -> None:
    pointer = memory.reserve(3 * PAGE, PAGE)
    memory.unmap(pointer + 2 * PAGE, PAGE)
    ranges = [(pointer, 1), (pointer + PAGE - 1, PAGE + 1), (pointer + 1, 2 * PAGE), (16, 1)]

    assert [memory.is_mapped(*one) for one in ranges] == [True, True, False, False]
    assert not memory.is_mapped((1 << 64) - PAGE, PAGE + pointer)
    memory.unmap(pointer, 2 * PAGE)
    assert not memory.is_mapped(pointer, 1)
