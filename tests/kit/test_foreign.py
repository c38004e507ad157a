# SPDX-License-Identifier: Apache-2.0
"""Adoptions on a made-up backend that has foreign memory, and what only its driver can show."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit_runs import run_kit

import crossmem
from crossmem.driver import Foreign, TracingDriver
from crossmem.plugin import Registry, hookimpl
from crossmem.settings import Settings
from crossmem.sharing.base import process
from crossmem.sharing.base.process import Process

HERE = Path(__file__).parent


@pytest.mark.timeout(620)
def test_every_law_holds_for_foreign_memory(tmp_path: Path) -> None:
    exit_code, output = run_kit(
        [
            *("--pyargs", "crossmem.conformance", "-k", "foreign", "--crossmem-fork-peers"),
            *("--crossmem-device", "foreign:0", "--crossmem-require", "foreign_memory"),
        ],
        tmp_path,
        within=600,
        measured=True,
        CROSSMEM_PLUGINS="crossmem_foreign",
        PYTHONPATH=str(HERE),
    )

    assert exit_code == 0, output[-5000:]


IMPORTER = """
import sys
import crossmem
imported = crossmem.import_handle(bytes.fromhex(sys.argv[1]))
print(imported.nbytes, "bytes")
addresses = imported.device.reserve(imported.nbytes)
try:
    addresses.map(imported, at=0)
except crossmem.UnsupportedError as error:
    print(error)
addresses.release()
imported.close()
"""


class World:
    """A process state of its own, with a device that has foreign memory."""

    def __init__(self, folder: Path) -> None:
        settings = Settings(run_dir=folder, plugins=("crossmem_foreign",))
        registry = Registry(settings)
        registry.adapt(TracingDriver)
        self.process = Process(settings, registry)
        self.made: list[Any] = []

    @property
    def device(self) -> crossmem.Device:
        return crossmem.device("foreign:0")

    @property
    def driver(self) -> Any:
        tracer = self.device.driver
        assert isinstance(tracer, TracingDriver)
        return tracer.inner

    @property
    def violations(self) -> list[str]:
        tracer = self.device.driver
        assert isinstance(tracer, TracingDriver)
        return tracer.violations

    def allocate(self) -> Any:
        block = self.driver.allocate(0, 1, "memfd")
        self.made.append(block)
        return block


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.syspath_prepend(str(HERE))
    found = World(tmp_path)
    monkeypatch.setattr(process, "_current", found.process)
    driver = found.driver
    yield found
    assert found.violations == []
    found.process.shut_down()
    for block in found.made:
        driver.free(block)


def test_an_obstacle_is_told_in_words(world: World) -> None:
    block = world.allocate()
    world.driver.obstacles[block.pointer] = "is managed memory, which legacy IPC cannot carry"

    with pytest.raises(crossmem.UnsupportedError) as caught:
        world.device.adopt(block.pointer, 1, owner=block)

    assert f"memory at {block.pointer:#x} on foreign:0 is managed memory" in str(caught.value)
    assert (caught.value.backend, caught.value.device) == ("foreign", "host:0")
    report = crossmem.how_can_share(block.pointer, "foreign:0")
    assert report.mechanisms == ()
    assert "- memfd: no, it is managed memory" in str(report)


def test_neighbours_in_the_vendors_slab_are_seen(world: World) -> None:
    block = world.allocate()
    size = block.capacity
    world.driver.slab_nbytes = slab = 64 * size

    (way,) = crossmem.how_can_share(block.pointer, world.device).ways
    assert way.nbytes == size
    assert way.exposed_nbytes in {slab, 2 * slab}
    assert 'neighbours="expose"' in str(crossmem.how_can_share(block.pointer, world.device))
    with pytest.raises(crossmem.UnsupportedError, match=f"{way.exposed_nbytes - size} other bytes"):
        world.device.adopt(block.pointer, size, owner=block)
    world.device.adopt(block.pointer, size, owner=block, neighbours="expose").free()


@pytest.mark.parametrize(
    "answer",
    [(0, 0, 0, 0), (1, 100, 1, 100), (-100, 100, -100, 100), (0, 100, 1, 99), (0, 100, 0, 99)],
    ids=str,
)
def test_a_drivers_answer_is_checked(
    world: World, answer: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    block = world.allocate()
    base, nbytes, exposed_base, exposed_nbytes = answer
    found = Foreign(block.pointer + base, nbytes, block.pointer + exposed_base, exposed_nbytes)
    monkeypatch.setattr(world.driver, "inspect", lambda *_: found)

    with pytest.raises(crossmem.DriverError, match="wrongly: Foreign"):
        world.device.adopt(block.pointer, 1, owner=block, neighbours="expose")
    with pytest.raises(crossmem.DriverError, match="wrongly: Foreign"):
        crossmem.how_can_share(block.pointer, world.device)


def test_an_owner_that_does_not_keep_the_memory_is_found_out(world: World) -> None:
    block = world.allocate()
    adopted = world.device.adopt(block.pointer, block.capacity, owner=object())
    world.driver.tail_nbytes = 96

    with pytest.raises(crossmem.BusyError, match="were freed while they were adopted"):
        world.device.adopt(block.pointer, block.capacity - 96, owner=block)

    adopted.free()
    world.device.adopt(block.pointer, block.capacity - 96, owner=block).free()


def test_other_memory_at_the_same_address_is_not_taken_for_what_was_adopted(world: World) -> None:
    block = world.allocate()
    adopted = world.device.adopt(block.pointer, block.capacity, owner=object())
    world.driver.generation = 2

    with pytest.raises(crossmem.BusyError, match="were freed while they were adopted"):
        world.device.adopt(block.pointer, block.capacity, owner=block)

    adopted.free()
    with world.device.adopt(block.pointer, block.capacity, owner=block):
        world.device.adopt(block.pointer, block.capacity, owner=block).free()


EXITING = """
import crossmem
device = crossmem.device("foreign:0")
block = device.driver.allocate(0, 1, "memfd")

class Owner:
    def __del__(self):
        print("let go")

adopted = device.adopt(block.pointer, block.capacity, owner=Owner())
handle = adopted.export()
"""


def test_an_owner_is_let_go_at_exit() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXITING],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "CROSSMEM_PLUGINS": "crossmem_foreign", "PYTHONPATH": str(HERE)},
    )

    assert done.stdout == "let go\n"


def test_odd_sizes_are_kept_and_fit_in_no_range(world: World) -> None:
    block = world.allocate()
    world.driver.tail_nbytes = 96
    size = block.capacity - 96
    with world.device.adopt(block.pointer, size, owner=block) as adopted:
        handle = adopted.export()
        assert (adopted.nbytes, adopted.capacity) == (size, size)
        assert (handle.nbytes, handle.capacity, handle.length) == (size, size, size)
        found = subprocess.run(
            [sys.executable, "-c", IMPORTER, handle.to_bytes().hex()],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
            env={
                **os.environ,
                "CROSSMEM_PLUGINS": "crossmem_foreign",
                "CROSSMEM_RUN_DIR": str(world.process.settings.run_dir),
                "PYTHONPATH": str(HERE),
            },
        )

    assert f"{size} bytes" in found.stdout
    assert "capacity must be a multiple of the granularity" in found.stdout


def test_the_read_only_alias_of_adopted_memory(world: World) -> None:
    block = world.allocate()
    pointer = block.pointer + 10
    with world.device.adopt(pointer, 4, owner=block, neighbours="expose") as adopted:
        adopted.write(b"data")
        with crossmem.attach(adopted.export(), readonly=True) as mapping:
            assert mapping.read() == b"data"
            with pytest.raises(crossmem.AccessDeniedError):
                mapping.write(b"x")


def test_events_say_what_was_adopted(world: World) -> None:
    seen: list[tuple[str, int]] = []

    class Observer:
        @hookimpl
        def crossmem_event(self, event: Any) -> None:
            seen.append((str(event.kind), event.nbytes))

    world.process.registry.register(Observer(), name="observer")
    block = world.allocate()
    with world.device.adopt(block.pointer, 100, owner=block, neighbours="expose") as adopted:
        adopted.export()

    assert seen == [("adopted", 100), ("exported", 100), ("given-up", 100)]


def test_the_tracer_notes_what_is_forbidden(world: World) -> None:
    tracer = world.device.driver
    assert isinstance(tracer, TracingDriver)
    block = world.allocate()
    found = tracer.inspect(0, block.pointer, "memfd")
    one = tracer.adopt(0, found, "memfd")
    other = tracer.adopt(0, found, "memfd")
    tracer.export(one, "memfd", "rw", raw=False)
    tracer.disown(one)
    tracer.disown(one)

    assert [line.split(":")[0] for line in tracer.violations] == ["adopt", *3 * ["disown"]]
    tracer.violations.clear()
    tracer.disown(other)


def test_without_the_group_nothing_is_offered() -> None:
    device = crossmem.device("emulated:0")

    assert not hasattr(TracingDriver(device.driver), "adopt")
    report = crossmem.how_can_share(4096, device)
    assert report.mechanisms == ()
    assert "foreign_memory" in str(report)
