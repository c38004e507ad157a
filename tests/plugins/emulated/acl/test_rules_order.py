# SPDX-License-Identifier: Apache-2.0
"""The vendor's own order of calls, and what each step does that is left out or swapped."""

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from typing_extensions import override

if TYPE_CHECKING:
    from tests.plugins.emulated.acl.acl_actor import GRANULARITY, REAL, Actor, ok, properties
    from tests.plugins.emulated.acl.conftest import Start
else:
    from acl_actor import GRANULARITY, REAL, Actor, ok, properties

    Start = Any


UNIT = GRANULARITY
TEXT = b"written by one, read by the other"
UNKNOWN = 1 << 31
"""A shareable handle or key that nobody exported; 0 could be one."""


class Shareable:
    """Two programs: memory is shared as a shareable handle. Each step returns its code."""

    ORDER: ClassVar[tuple[str, ...]] = (
        "open", "allocate", "reserve", "map", "write", "export", "open_there", "admit",
        "import_", "reserve_there", "map_there", "read_there",
        "unmap_there", "release_there", "free_there", "unmap", "free", "release",
    )  # fmt: skip

    def __init__(self, exporter: Actor, importer: Actor) -> None:
        self.exporter, self.importer = exporter, importer
        self.handle = self.pointer = self.imported = self.there = 0
        self.share = UNKNOWN
        self.key = str(UNKNOWN)
        self.data = b""

    def run(self, order: tuple[str, ...]) -> dict[str, int]:
        """Return the code of each step."""
        return {step: getattr(self, step)() for step in order}

    def open(self) -> int:
        return int(self.exporter.rt.set_device(0))

    def open_there(self) -> int:
        return int(self.importer.rt.set_device(0))

    def allocate(self) -> int:
        self.handle, code = self.exporter.rt.malloc_physical(UNIT, properties(), 0)
        return int(code)

    def reserve(self) -> int:
        self.pointer, code = self.exporter.rt.reserve_mem_address(UNIT, 0, 0, 0)
        return int(code)

    def map(self) -> int:
        return int(self.exporter.rt.map_mem(self.pointer, UNIT, 0, self.handle, 0))

    def write(self) -> int:
        return int(self.exporter.call("write", self.pointer, TEXT))

    def export(self) -> int:
        share, code = self.exporter.rt.mem_export_to_shareable_handle(self.handle, 0, 0)
        self.share = share if code == 0 else UNKNOWN
        return int(code)

    def admit(self) -> int:
        tgids = [self.importer.tgid]
        return int(self.exporter.rt.mem_set_pid_to_shareable_handle(self.share, tgids))

    def import_(self) -> int:
        self.imported, code = self.importer.rt.mem_import_from_shareable_handle(self.share, 0)
        return int(code)

    def reserve_there(self) -> int:
        self.there, code = self.importer.rt.reserve_mem_address(UNIT, 0, 0, 0)
        return int(code)

    def map_there(self) -> int:
        return int(self.importer.rt.map_mem(self.there, UNIT, 0, self.imported, 0))

    def read_there(self) -> int:
        self.data, code = self.importer.call("read", self.there, len(TEXT))
        return int(code)

    def unmap_there(self) -> int:
        return int(self.importer.rt.unmap_mem(self.there))

    def release_there(self) -> int:
        return int(self.importer.rt.release_mem_address(self.there))

    def free_there(self) -> int:
        return int(self.importer.rt.free_physical(self.imported))

    def unmap(self) -> int:
        return int(self.exporter.rt.unmap_mem(self.pointer))

    def free(self) -> int:
        return int(self.exporter.rt.free_physical(self.handle))

    def release(self) -> int:
        return int(self.exporter.rt.release_mem_address(self.pointer))


class Key(Shareable):
    """Two programs: memory is shared by key."""

    ORDER: ClassVar[tuple[str, ...]] = (
        "open", "allocate", "write", "export", "open_there", "admit",
        "import_", "read_there", "close_there", "close", "free",
    )  # fmt: skip

    @override
    def allocate(self) -> int:
        self.pointer, code = self.exporter.rt.malloc(UNIT, 0)
        return int(code)

    @override
    def export(self) -> int:
        self.key, code = self.exporter.rt.ipc_mem_get_export_key(self.pointer, UNIT, 65, 0)
        return int(code)

    @override
    def admit(self) -> int:
        return int(self.exporter.rt.ipc_mem_set_import_pid(self.key, [self.importer.tgid]))

    @override
    def import_(self) -> int:
        self.there, code = self.importer.rt.ipc_mem_import_by_key(self.key, 0)
        return int(code)

    def close_there(self) -> int:
        return int(self.importer.rt.ipc_mem_close(self.key))

    def close(self) -> int:
        return int(self.exporter.rt.ipc_mem_close(self.key))

    @override
    def free(self) -> int:
        return int(self.exporter.rt.free(self.pointer))


FAMILIES = {"shareable": Shareable, "key": Key}
LEFT_OUT = [
    ("shareable", "open", "allocate", 107002),
    ("shareable", "allocate", "map", 100000),
    ("shareable", "reserve", "map", 100000),
    ("shareable", "map", "write", 507899),
    ("shareable", "export", "admit", 107017),
    ("shareable", "open_there", "import_", 107002),
    ("shareable", "admit", "import_", 507899),
    ("shareable", "import_", "map_there", 100000),
    ("shareable", "reserve_there", "map_there", 100000),
    ("shareable", "map_there", "read_there", 507899),
    ("shareable", "unmap_there", "release_there", 507899),
    ("shareable", "unmap", "release", 507899),
    ("key", "open", "allocate", 107002),
    ("key", "allocate", "write", 100000),
    ("key", "export", "admit", 507899),
    ("key", "open_there", "import_", 107002),
    ("key", "admit", "import_", 507899),
    ("key", "import_", "read_there", 100000),
]
SWAPPED = [
    ("shareable", "open", "allocate", "allocate", 107002),
    ("shareable", "reserve", "map", "map", 100000),
    ("shareable", "allocate", "export", "export", 100000),
    ("shareable", "map", "write", "write", 507899),
    ("shareable", "export", "admit", "admit", 107017),
    ("shareable", "admit", "import_", "import_", 507899),
    ("shareable", "open_there", "import_", "import_", 107002),
    ("shareable", "reserve_there", "map_there", "map_there", 100000),
    ("shareable", "map_there", "read_there", "read_there", 507899),
    ("shareable", "unmap_there", "release_there", "release_there", 507899),
    ("shareable", "unmap", "release", "release", 507899),
    ("key", "allocate", "export", "export", 100000),
    ("key", "export", "admit", "admit", 507899),
    ("key", "admit", "import_", "import_", 507899),
]
HARMLESS = [
    ("shareable", "write", "export"),
    ("shareable", "release_there", "free_there"),
    ("shareable", "unmap", "free"),
    ("shareable", "free", "release"),
    ("shareable", "free_there", "free"),
    ("shareable", "import_", "reserve_there"),
    ("key", "open_there", "export"),
]


def first_failure(codes: dict[str, int]) -> tuple[str, int] | None:
    return next(((step, code) for step, code in codes.items() if code), None)


def swap(order: tuple[str, ...], one: str, other: str) -> tuple[str, ...]:
    changes = {one: other, other: one}
    return tuple(changes.get(step, step) for step in order)


@pytest.fixture
def peers(start: Start) -> tuple[Actor, Actor]:
    """Return two processes that have not opened a device."""
    return start(device=None), start(device=None)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_vendor_s_order(peers: tuple[Actor, Actor], family: str) -> None:
    sharing = FAMILIES[family](*peers)
    codes = sharing.run(sharing.ORDER)

    assert first_failure(codes) is None
    assert sharing.data == TEXT
    peers[0].check_broken()
    if not REAL:
        free, total = ok(peers[0].rt.get_mem_info(1))
        assert free == total


@pytest.mark.parametrize(("family", "step", "failing", "code"), LEFT_OUT)
def test_a_step_is_left_out(
    peers: tuple[Actor, Actor], family: str, step: str, failing: str, code: int
) -> None:
    sharing = FAMILIES[family](*peers)
    codes = sharing.run(tuple(one for one in sharing.ORDER if one != step))

    assert first_failure(codes) == (failing, code)


@pytest.mark.parametrize(("family", "one", "other", "failing", "code"), SWAPPED)
def test_two_steps_are_swapped(
    peers: tuple[Actor, Actor], family: str, one: str, other: str, failing: str, code: int
) -> None:
    sharing = FAMILIES[family](*peers)
    codes = sharing.run(swap(sharing.ORDER, one, other))

    assert first_failure(codes) == (failing, code)


@pytest.mark.parametrize(("family", "one", "other"), HARMLESS)
def test_orders_that_are_as_good(
    peers: tuple[Actor, Actor], family: str, one: str, other: str
) -> None:
    sharing = FAMILIES[family](*peers)
    codes = sharing.run(swap(sharing.ORDER, one, other))

    assert first_failure(codes) is None
    assert sharing.data == TEXT
    peers[0].check_broken()


@pytest.mark.parametrize("step", ["free", "free_there"])
def test_what_is_not_freed_stays_charged(peers: tuple[Actor, Actor], step: str) -> None:
    sharing = Shareable(*peers)
    ok(sharing.open())
    before = peers[0].free_nbytes
    codes = sharing.run(tuple(one for one in sharing.ORDER if one != step))

    assert first_failure(codes) is None
    assert peers[0].free_nbytes == before - UNIT


def test_a_key_is_closed_before_its_imports(peers: tuple[Actor, Actor]) -> None:
    sharing = Key(*peers)
    codes = sharing.run(swap(sharing.ORDER, "close_there", "close"))

    assert codes["close"] == codes["free"] == 0
    peers[0].check_broken("ACL-E26")
