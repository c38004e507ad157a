# SPDX-License-Identifier: Apache-2.0
"""Law C20: the actions of a normal exit, and the resources that it must not leave behind."""

import json
import multiprocessing
import multiprocessing.connection
import os
import signal
import time
from dataclasses import replace
from multiprocessing import util
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

import crossmem
from crossmem.conformance import actions, resources
from crossmem.conformance.harness import Allocate, FreshPeer, Kit
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S, settle
from crossmem.conformance.speed import SLOWNESS
from crossmem.conformance.test_limits import NOTHING as NOTHING_LIVE
from crossmem.driver import TracingDriver
from crossmem.sharing.base.process import current

_NBYTES = 4096
_LAST_WORDS = "what is left: "
_TOOK = "seconds in crossmem: "
_TOO_LONG = f"{60 * SLOWNESS:g}"
"""A value of ``CROSSMEM_EXIT_WAIT``, in seconds. No test waits that long for an exit."""


def report_at_exit() -> None:
    """Let this process print its remaining resources after crossmem's part of the exit.

    multiprocessing runs finalisers in descending order of their priorities. The priority of
    crossmem's exit is higher than that of this report.
    """
    current().registry.adapt(TracingDriver)
    # When a vendor's library is first used, it opens device files and keeps them open. The report
    # omits these files, because this function uses the library before it lists the descriptors.
    device = actions.device()
    device.allocate(1).free()
    before = resources.descriptors()
    util.Finalize(None, _report, args=(device, before), exitpriority=-100)


def _report(device: crossmem.Device, before: list[str]) -> None:
    tracer = device.driver
    assert isinstance(tracer, TracingDriver)
    after = resources.descriptors()
    for known in before:
        if known in after:
            after.remove(known)
    words = {
        "live": tracer.live,
        "violations": tracer.violations,
        "threads": resources.threads(),
        "descriptors": after,
    }
    print(_LAST_WORDS + json.dumps(words), flush=True)  # noqa: T201 - the test reads it


def report_waits_at_exit() -> None:
    """Let this process count its waits for device work, and print the number at its exit.

    The count begins with this call. The output comes after crossmem's part of the exit.
    """
    current().registry.adapt(TracingDriver)
    tracer = actions.device().driver
    assert isinstance(tracer, TracingDriver)
    before = tracer.calls["synchronize"]

    def report() -> None:
        waits = tracer.calls["synchronize"] - before
        print(_LAST_WORDS + json.dumps({"waits": waits}), flush=True)  # noqa: T201

    util.Finalize(None, report, exitpriority=-100)


def last_words(output: str) -> dict[str, Any]:
    (line,) = (line for line in output.splitlines() if line.startswith(_LAST_WORDS))
    words: dict[str, Any] = json.loads(line.removeprefix(_LAST_WORDS))
    return words


NOTHING: dict[str, Any] = {
    "live": NOTHING_LIVE,
    "violations": [],
    "threads": ["MainThread"],
    "descriptors": [],
}


def _files(kit: Kit) -> set[Path]:
    return set(kit.run_dir.iterdir())


def test_c20_nothing_is_left_of_an_exporter(kit: Kit, fresh_peer: FreshPeer) -> None:
    before = _files(kit)
    # The memory has no holders, so the exit does not wait.
    exporter = fresh_peer(fresh=True, tracing=False, CROSSMEM_EXIT_WAIT=_TOO_LONG)
    exporter.call(report_at_exit)
    for name in "abc":
        exporter.call(actions.offer, name, _NBYTES)
    assert len(_files(kit) - before) == 1

    output = exporter.exit()

    assert last_words(output) == NOTHING
    assert _files(kit) <= before
    assert "leased" not in output


@pytest.mark.crossmem_core
def test_c20_nothing_is_left_of_an_importer(
    allocate: Allocate, kit: Kit, fresh_peer: FreshPeer
) -> None:
    before = _files(kit)
    allocation = allocate(_NBYTES)
    blob = allocation.export().to_bytes()
    importer = fresh_peer(fresh=True, tracing=False, CROSSMEM_EXIT_WAIT=_TOO_LONG)
    importer.call(report_at_exit)
    importer.call(actions.attach, "attached", blob)
    importer.call(actions.import_, "imported", blob)
    importer.call(actions.map_, "mapped", "imported")

    assert last_words(importer.exit()) == NOTHING

    allocation.free(busy="raise")
    assert _files(kit) <= before


def test_c20_an_exit_waits_for_work_before_it_unmaps(
    allocate: Allocate, fresh_peer: FreshPeer
) -> None:
    allocation = allocate(_NBYTES)
    importer = fresh_peer(fresh=True, tracing=False, CROSSMEM_EXIT_WAIT=_TOO_LONG)
    importer.call(report_waits_at_exit)
    importer.call(actions.attach, "attached", allocation.export().to_bytes())

    # The device's work may still use the memory, so the exit waits for the work (law C9).
    assert last_words(importer.exit())["waits"] >= 1


@pytest.mark.crossmem_requires("readonly_imports")
def test_c20_nothing_is_left_of_who_imported_its_own_memory(fresh_peer: FreshPeer) -> None:
    peer = fresh_peer(tracing=False, CROSSMEM_EXIT_WAIT=_TOO_LONG)
    peer.call(report_at_exit)
    blob = peer.call(actions.offer, "memory", _NBYTES)
    peer.call(actions.attach, "alias", blob)
    peer.call(actions.attach, "second", blob, readonly="advisory")

    assert last_words(peer.exit()) == NOTHING


@pytest.mark.crossmem_core
def test_c20_an_exporter_waits_for_leases_and_reports_them(
    capabilities: crossmem.Capabilities, peer: Peer, fresh_peer: FreshPeer
) -> None:
    exporter = fresh_peer(fresh=True, tracing=False, CROSSMEM_EXIT_WAIT="0.6")
    exporter.call(report_at_exit)
    blob = exporter.call(actions.offer, "memory", _NBYTES)
    peer.call(actions.attach, "mapped", blob)

    start = time.monotonic()
    output = exporter.exit()

    assert 0.6 <= time.monotonic() - start < 0.6 + SOON_S
    allocation = crossmem.ShareableHandle.from_bytes(blob).allocation
    assert f"allocation {allocation} is leased by process {peer.pid}" in output
    if capabilities.survives_owner:
        assert last_words(output) == NOTHING


class _Mortal(TracingDriver):
    """A driver that reports that memory does not outlive the process that allocated it."""

    @override
    def capabilities(self, ordinal: int, mechanism: str | None) -> crossmem.Capabilities:
        said = super().capabilities(ordinal, mechanism)
        return replace(said, survives_owner=False)


def _be_mortal() -> None:
    current().registry.adapt(_Mortal)


def test_c20_nothing_is_taken_from_importers_by_a_call(peer: Peer, fresh_peer: FreshPeer) -> None:
    exporter = fresh_peer(tracing=False, CROSSMEM_EXIT_WAIT="0")
    exporter.call(_be_mortal)
    exporter.call(report_at_exit)
    exporter.call(actions.offer, "idle", _NBYTES)
    peer.call(actions.attach, "mapped", exporter.call(actions.offer, "leased", _NBYTES))

    words = last_words(exporter.exit())

    # The leased memory stays until the exporter's process ends.
    assert words["live"] == {**NOTHING["live"], "blocks": 1, "exports": 1}
    assert words["violations"] == []


def test_c20_it_waits_no_longer_than_the_leases_last(peer: Peer, fresh_peer: FreshPeer) -> None:
    exporter = fresh_peer(CROSSMEM_EXIT_WAIT=_TOO_LONG)
    blob, other = (exporter.call(actions.offer, name, _NBYTES) for name in "ab")
    peer.call(actions.attach, "mapped", blob)
    exporter.request_exit()
    # The refusal of a new lease shows that the exporter has begun its exit.
    settle(lambda: _still_grants(other))
    with pytest.raises(crossmem.OwnerGoneError, match="exiting"):
        crossmem.attach(other)
    assert exporter.exitcode is None

    peer.call(actions.unmap, "mapped")

    assert exporter.wait_exit(within=30) == 0
    assert "leased" not in exporter.output()


def _still_grants(blob: bytes) -> list[str]:
    try:
        crossmem.attach(blob).unmap()
    except crossmem.OwnerGoneError:
        return []
    return ["grants"]


def test_c20_killing_the_last_importer_ends_the_wait(fresh_peer: FreshPeer) -> None:
    exporter, importer = (
        fresh_peer(CROSSMEM_EXIT_WAIT=_TOO_LONG),
        fresh_peer(),
    )
    blob, other = (exporter.call(actions.offer, name, _NBYTES) for name in "ab")
    importer.call(actions.attach, "mapped", blob)
    exporter.request_exit()
    settle(lambda: _still_grants(other))
    assert exporter.exitcode is None

    importer.kill()

    assert exporter.wait_exit(within=30) == 0


def test_c20_no_wait_where_none_is_wanted(peer: Peer, fresh_peer: FreshPeer) -> None:
    exporter = fresh_peer(tracing=False, CROSSMEM_EXIT_WAIT="0")
    exporter.call(time_exit)
    peer.call(actions.attach, "mapped", exporter.call(actions.offer, "memory", _NBYTES))

    # By default, an exporter waits for the end of its leases, but no longer than two seconds.
    assert float(exporter.exit().rpartition(_TOOK)[2].split()[0]) < 1.5


def time_exit() -> None:
    """Let this process print how long crossmem's part of the exit takes, in seconds."""
    begun: list[float] = []
    util.Finalize(None, lambda: begun.append(time.monotonic()), exitpriority=-1)
    util.Finalize(None, lambda: _tell_time(begun[0]), exitpriority=-100)


def _tell_time(begun: float) -> None:
    print(f"{_TOOK}{time.monotonic() - begun}", flush=True)  # noqa: T201 - the test reads it


@pytest.mark.crossmem_requires("survives_owner")
@pytest.mark.crossmem_core
def test_c20_importers_keep_the_memory(peer: Peer, fresh_peer: FreshPeer) -> None:
    exporter = fresh_peer(CROSSMEM_EXIT_WAIT="0")
    blob = exporter.call(actions.offer, "memory", _NBYTES, b"outlives")
    peer.call(actions.import_, "imported", blob)
    peer.call(actions.attach, "attached", blob)

    exporter.exit()

    assert not peer.call(actions.attribute, "attached", "owner_alive")
    peer.call(actions.map_, "mapped", "imported")
    for name in ("attached", "mapped"):
        assert peer.call(actions.read, name, 8) == b"outlives"
    with pytest.raises(crossmem.OwnerGoneError):
        crossmem.attach(blob)


def test_c20_two_that_import_from_each_other_need_not_wait_for_each_other(
    fresh_peer: FreshPeer,
) -> None:
    pair = [fresh_peer(CROSSMEM_EXIT_WAIT=_TOO_LONG) for _ in range(2)]
    blobs = [one.call(actions.offer, "memory", _NBYTES) for one in pair]
    for one, blob in zip(pair, reversed(blobs), strict=True):
        one.call(actions.attach, "mapped", blob)

    for one in pair:
        one.request_exit()
    assert [one.wait_exit() for one in pair] == [0, 0]


@pytest.mark.crossmem_requires("host_visible")
def test_c20_memory_that_is_still_viewed_crashes_nobody(
    allocate: Allocate, fresh_peer: FreshPeer
) -> None:
    allocation = allocate(_NBYTES)
    peer = fresh_peer()
    peer.call(actions.offer, "memory", _NBYTES)
    peer.call(actions.attach, "mapped", allocation.export().to_bytes())
    for name in ("memory", "mapped"):
        peer.call(actions.call, name, "view", keep=f"view of {name}")

    peer.exit()

    allocation.free(busy="wait", timeout=1)


@pytest.mark.parametrize(
    ("ending", "exitcode"),
    [(SystemExit(3), 3), (KeyboardInterrupt(), -signal.SIGINT), (GeneratorExit(), 1)],
    ids=["exit", "interrupt", "error"],
)
def test_c20_a_program_that_fails_exits_normally_too(
    kit: Kit,
    allocate: Allocate,
    fresh_peer: FreshPeer,
    ending: BaseException,
    exitcode: int,
) -> None:
    before = _files(kit)
    allocation = allocate(_NBYTES)
    peer = fresh_peer(fresh=True, tracing=False)
    peer.call(report_at_exit)
    peer.call(actions.offer, "memory", _NBYTES)
    peer.call(actions.attach, "mapped", allocation.export().to_bytes())

    # Nothing in the peer catches these exceptions, so they end the peer.
    peer.start(_fail, ending)

    assert peer.wait_exit() == exitcode
    assert last_words(peer.output()) == NOTHING
    assert _files(kit) <= before
    allocation.free(busy="raise")


def _fail(ending: BaseException) -> None:
    raise ending


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_c20_children_of_multiprocessing_release_at_exit(
    kit: Kit, allocate: Allocate, fresh_peer: FreshPeer, method: str
) -> None:
    if method == "fork" and not kit.device.capabilities.fork_safe:
        pytest.skip("the device's capability fork_safe is false")
    before = _files(kit)
    allocation = allocate(_NBYTES, b"data")
    blob = allocation.export().to_bytes()
    parent = fresh_peer(fresh=True)

    device = kit.device
    place = (device.name, device.runtime, device.mechanism)

    assert parent.call(_run_child, method, place, blob, within=150) == b"data"

    # A child that skips crossmem's part of the exit leaves the socket of its lease server.
    assert _files(kit) - before == set()
    allocation.free(busy="wait", timeout=1)


def _run_child(method: str, place: tuple[str, str | None, str], blob: bytes) -> bytes:
    context: Any = multiprocessing.get_context(method)
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(place, blob, sending))
    child.start()
    sending.close()
    assert receiving.poll(60), "the child sent nothing within 60 s"
    found: bytes = receiving.recv()
    child.join(60)
    words = json.loads(receiving.recv())
    receiving.close()
    assert child.exitcode == 0
    assert words["live"] == NOTHING["live"]
    assert words["violations"] == []
    return found


def _child(
    place: tuple[str, str | None, str],
    blob: bytes,
    sending: multiprocessing.connection.Connection,
) -> None:
    actions.begin(*place, tracing=True)
    tracer = actions.tracer()
    # This finaliser has a lower priority than crossmem's, so it runs later.
    util.Finalize(
        None,
        lambda: sending.send(json.dumps({"live": tracer.live, "violations": tracer.violations})),
        exitpriority=-100,
    )
    actions.offer("memory", _NBYTES)
    actions.attach("mapped", blob)
    sending.send(actions.read("mapped", 4))
    assert os.getpid() == current().identity.pid
