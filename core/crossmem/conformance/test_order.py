# SPDX-License-Identifier: Apache-2.0
"""Laws C21 and C22: exports wait for device work, and driver calls keep the vendor's order."""

import os

import pytest

import crossmem
from crossmem.conformance import actions, blocks, probes
from crossmem.conformance.harness import Allocate, FreshPeer, Kit
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import settle
from crossmem.driver import TracingDriver

NBYTES = 5000


# C21: ordered -----------------------------------------------------------------------------


@pytest.mark.crossmem_core
def test_c21_work_issued_before_the_export_is_seen(
    fresh_peer: FreshPeer, peer: Peer, capabilities: crossmem.Capabilities
) -> None:
    if blocks.are_used() and capabilities.host_visible:
        pytest.skip("an export of a block of host memory does not wait for a device")
    owner = fresh_peer()
    owner.call(actions.allocate, "a", NBYTES)
    owner.call(actions.write, "a", b"early")
    owner.call(probes.issue_work, "a", b"late!")
    peer.call(actions.attach, "m", owner.call(actions.export, "a"))

    assert peer.call(actions.read, "m", 5) == b"late!"

    peer.call(actions.unmap, "m")


def test_c21_unless_told_otherwise(fresh_peer: FreshPeer, peer: Peer) -> None:
    owner = fresh_peer()
    owner.call(actions.allocate, "a", NBYTES)
    owner.call(actions.write, "a", b"early")
    owner.call(probes.issue_work, "a", b"late!")
    owner.call(probes.start_journal)
    peer.call(actions.attach, "m", owner.call(actions.export, "a", synchronize=False))

    assert "synchronize" not in owner.call(probes.journal)
    assert peer.call(actions.read, "m", 5) == b"early"

    peer.call(actions.unmap, "m")


@pytest.mark.crossmem_not_of_blocks("all blocks of a pool are exported with the same rights")
def test_c21_only_the_first_time_that_a_handle_is_given_out(
    allocate: Allocate, tracer: TracingDriver
) -> None:
    allocation = allocate(NBYTES)
    before = tracer.calls["synchronize"]
    for _ in range(5):
        allocation.export()

    assert tracer.calls["synchronize"] == before + 1

    # An export with another ``allow`` has a new handle, so this export synchronises again.
    allocation.export(allow=crossmem.Allow(pids=[os.getpid()]))

    assert tracer.calls["synchronize"] == before + 2


def test_c21_synchronize_waits_for_the_device(
    device: crossmem.Device, tracer: TracingDriver
) -> None:
    before = tracer.calls["synchronize"]
    device.synchronize()

    assert tracer.calls["synchronize"] == before + 1


# C22: lawful ------------------------------------------------------------------------------


@pytest.mark.crossmem_not_of_blocks("a block has only one export")
@pytest.mark.crossmem_core
def test_c22_everything_in_the_vendors_order(
    capabilities: crossmem.Capabilities, fresh_peer: FreshPeer
) -> None:
    owner, importer, other = fresh_peer(), fresh_peer(), fresh_peer()
    owner.call(probes.start_journal)
    blobs = [owner.call(actions.offer, name, NBYTES, b"lawful") for name in "abc"]
    if capabilities.readonly_exports:
        blobs.append(owner.call(actions.export, "a", access="ro"))
    for one in (importer, other):
        one.call(actions.attach_many, [f"m{n}" for n in range(len(blobs))], blobs)
        one.call(actions.import_, "i", blobs[0])
        one.call(actions.map_, "n", "i")
        one.call(actions.unmap, "n")
        one.call(actions.map_, "n", "i")
    owner.call(actions.free, "a")
    owner.call(actions.drop, "b")
    importer.call(actions.drop, "m0")
    importer.call(actions.unmap, "n", "m1")
    importer.call(actions.reset)
    other.kill()

    def left() -> list[str]:
        owner.call(actions.collect)
        return [f"{count} {kind}" for kind, count in owner.call(actions.live).items() if count > 1]

    owner.call(actions.free, "c")

    assert settle(left) == []
    for one in (owner, importer):
        one.call(actions.reset)

        assert not any(one.call(actions.live).values())
        assert one.call(actions.violations) == []

    ends = [name for name in owner.call(probes.journal) if name in {"release_export", "free"}]

    assert ends.count("free") == 3
    assert ends.count("release_export") == len(blobs)
    assert ends[-1] == "free"


@pytest.mark.crossmem_core
def test_c22_exit_is_lawful_too(fresh_peer: FreshPeer) -> None:
    owner, importer = fresh_peer(CROSSMEM_EXIT_WAIT="30"), fresh_peer()
    owner.call(report_at_exit)
    importer.call(report_at_exit)
    blob = owner.call(actions.offer, "a", NBYTES)
    importer.call(actions.attach, "m", blob)
    owner.request_exit()
    for one in (importer, owner):
        assert "violations: []" in one.exit()


@pytest.mark.crossmem_core
def test_c22_the_vendors_rules_are_kept(kit: Kit) -> None:
    violations = actions.vendor_violations()
    if violations is None:
        pytest.skip("only a strict emulation records breaches of the vendor's rules")

    # This test checks the whole run so far, in every process.
    assert violations[kit.violations_before :] == []


def report_at_exit() -> None:
    """Register an exit handler that prints forbidden driver calls and the driver's open objects."""
    import atexit  # noqa: PLC0415

    from crossmem.sharing.base.process import current  # noqa: PLC0415

    driver = actions.tracer()

    def report() -> None:
        print(f"violations: {driver.violations}, left: {driver.live}")  # noqa: T201

    # atexit runs the newest handler first, and crossmem's handler must run before this report.
    atexit.unregister(current().shut_down)
    atexit.register(report)
    atexit.register(current().shut_down)
