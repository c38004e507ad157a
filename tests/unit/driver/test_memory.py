# SPDX-License-Identifier: Apache-2.0
"""Limits of the machine and of cgroups, read from folders that look like the kernel's."""

from pathlib import Path

import pytest

from crossmem.driver.memory import Limits

MIB = 1 << 20
GIB = 1 << 30


def write(folder: Path, files: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n", "ascii")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a ``/proc`` of a machine that can give 6 GiB of its 8."""
    folder = tmp_path / "proc"
    meminfo = f"MemTotal: {8 * MIB} kB\nMemAvailable: {6 * MIB} kB\nSwapFree: 0 kB\nHugePages: 0"
    write(folder, {"meminfo": meminfo})
    write(folder / "self", {"cgroup": "0::/"})
    return folder


@pytest.fixture
def cgroups(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


def free_swap(proc: Path, kib: int) -> None:
    text = (proc / "meminfo").read_text("ascii")
    (proc / "meminfo").write_text(text.replace("SwapFree: 0", f"SwapFree: {kib}"), "ascii")


def test_the_machine_is_the_limit_where_no_cgroup_has_one(proc: Path, cgroups: Path) -> None:
    limit = Limits(proc, cgroups).tightest()

    assert limit is not None
    assert (limit.name, limit.total_nbytes) == ("the machine's memory", 8 * GIB)
    assert limit.free_nbytes == 6 * GIB


def test_swap_space_counts_as_free(proc: Path, cgroups: Path) -> None:
    free_swap(proc, MIB)
    limit = Limits(proc, cgroups).tightest()

    assert limit is not None
    assert limit.free_nbytes == 7 * GIB


V2 = {
    "memory.max": 2 * GIB,
    "memory.current": GIB,
    "memory.stat": (
        f"anon {MIB}\nshmem {MIB}\ninactive_file {MIB}\nactive_file {2 * MIB}\n"
        f"inactive_anon {MIB}\nslab_reclaimable {4 * MIB}"
    ),
}
V1 = {
    "memory.limit_in_bytes": 2 * GIB,
    "memory.usage_in_bytes": GIB,
    "memory.stat": (
        f"inactive_file {GIB}\ntotal_shmem {MIB}\ntotal_inactive_file {3 * MIB}\n"
        f"total_active_file {4 * MIB}"
    ),
}
UNLIMITED = {"memory.max": "max", "memory.current": GIB}


@pytest.mark.parametrize(
    ("line", "mounted", "files"),
    [("0::/a/b", "", V2), ("4:cpu,memory:/a/b", "memory", V1)],
    ids=["v2", "v1"],
)
def test_page_cache_of_a_cgroup_counts_as_free(
    proc: Path, cgroups: Path, line: str, mounted: str, files: dict[str, object]
) -> None:
    (proc / "self/cgroup").write_text(f"9:name=systemd:/\n{line}\n", "ascii")
    folder = cgroups / mounted / "a/b"
    write(folder, files)
    limit = Limits(proc, cgroups).tightest()

    assert limit is not None
    assert Path(limit.name) == folder / next(iter(files))
    assert limit.total_nbytes == 2 * GIB
    assert limit.free_nbytes == GIB + 7 * MIB
    assert Limits(proc, cgroups).total_nbytes() == 2 * GIB


@pytest.mark.parametrize("path", ["/a/b", "/../a/b"], ids=["inside", "outside the namespace"])
def test_a_cgroup_above_limits_too(proc: Path, cgroups: Path, path: str) -> None:
    (proc / "self/cgroup").write_text(f"0::{path}\n", "ascii")
    write(cgroups / "a/b", UNLIMITED)
    write(cgroups / "a", V2)
    limit = Limits(proc, cgroups).tightest()

    assert limit is not None
    assert Path(limit.name) == cgroups / "a/memory.max"


def test_a_container_finds_its_cgroup_at_the_root(proc: Path, cgroups: Path) -> None:
    (proc / "self/cgroup").write_text("4:memory:/docker/0123\n", "ascii")
    write(cgroups / "memory", V1)
    limit = Limits(proc, cgroups).tightest()

    assert limit is not None
    assert Path(limit.name) == cgroups / "memory/memory.limit_in_bytes"


@pytest.mark.parametrize(
    ("files", "swap_nbytes"),
    [
        ({}, GIB),
        ({"memory.swap.max": "max", "memory.swap.current": 0}, GIB),
        ({"memory.swap.max": 9 * MIB, "memory.swap.current": MIB}, 8 * MIB),
        ({"memory.swap.max": 2 * GIB, "memory.swap.current": 0}, GIB),
        ({"memory.swap.max": 0, "memory.swap.current": MIB}, 0),
    ],
    ids=["not counted", "unlimited", "limited", "more than there is", "lowered"],
)
def test_a_cgroup_gets_its_part_of_the_swap_space(
    proc: Path, cgroups: Path, files: dict[str, object], swap_nbytes: int
) -> None:
    free_swap(proc, MIB)
    write(cgroups, {**V2, **files})
    limit = Limits(proc, cgroups).tightest()

    assert limit is not None
    assert limit.free_nbytes == GIB + 7 * MIB + swap_nbytes


def test_a_cgroup_over_its_limit_has_nothing_left(proc: Path, cgroups: Path) -> None:
    write(cgroups, {**V2, "memory.current": 3 * GIB})
    limit = Limits(proc, cgroups).tightest()

    assert limit is not None
    assert limit.free_nbytes == 0


def test_a_limit_of_all_the_machines_memory_is_none(proc: Path, cgroups: Path) -> None:
    write(cgroups, {**V2, "memory.max": 8 * GIB, "memory.current": 8 * GIB})
    limit = Limits(proc, cgroups).tightest()

    assert limit is not None
    assert limit.name == "the machine's memory"


@pytest.mark.parametrize("missing", ["memory.current", "memory.stat"])
def test_a_cgroup_that_cannot_be_read_is_passed_over(
    proc: Path, cgroups: Path, missing: str
) -> None:
    write(cgroups, V2)
    (cgroups / missing).unlink()
    limit = Limits(proc, cgroups).tightest()

    assert limit is not None
    assert limit.name == "the machine's memory"


def test_without_proc_there_is_no_limit(tmp_path: Path) -> None:
    assert Limits(tmp_path, tmp_path).tightest() is None
    assert Limits(tmp_path, tmp_path).total_nbytes() > 0


def test_this_machine_has_memory() -> None:
    limit = Limits().tightest()

    assert limit is not None
    assert limit.free_nbytes > 0
    assert limit.total_nbytes >= Limits().total_nbytes()
