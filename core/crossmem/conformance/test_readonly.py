# SPDX-License-Identifier: Apache-2.0
"""Law C23: a read-only importer cannot write."""

import signal
from typing import Any

import pytest

import crossmem
from crossmem.conformance import actions, blocks
from crossmem.conformance.harness import Allocate, FreshPeer
from crossmem.conformance.patterns import reforged
from crossmem.conformance.peers import Peer, PeerDiedError
from crossmem.driver import TracingDriver

NBYTES = 5000


def copy_onto_itself(name: str) -> None:
    """In a peer, copy the memory of an object to the same memory. ``name`` is the object's name."""
    actions.objects[name].copy_from(actions.objects[name])


def refuses_to_write(peer: Peer, name: str) -> None:
    """Check that a mapping's own methods refuse to write."""
    assert peer.call(actions.attribute, name, "readonly") is True

    with pytest.raises(crossmem.AccessDeniedError):
        peer.call(actions.write, name, b"x")
    with pytest.raises(crossmem.AccessDeniedError):
        peer.call(actions.write, name, b"x", offset=NBYTES - 1)
    with pytest.raises(crossmem.AccessDeniedError):
        peer.call(copy_onto_itself, name)
    if peer.call(host_visible):
        peer.call(actions.call, name, "view", keep="view")

        assert peer.call(actions.attribute, "view", "readonly")

        with pytest.raises(TypeError):
            peer.call(actions.call, "view", "__setitem__", 0, 1)
        peer.call(actions.call, "view", "release")


def host_visible() -> bool:
    """Return, in a peer, whether the CPU can address the device's memory."""
    return actions.device().capabilities.host_visible


def dies_of_writing(peer: Peer, name: str, offset: int) -> None:
    """Check that a peer dies if it writes to a mapping by address instead of by a method."""
    pointer = peer.call(actions.attribute, name, "ptr")
    exitcode = None
    try:
        peer.call(actions.poke, pointer + offset, 7)
    except PeerDiedError as error:
        exitcode = error.exitcode

    assert exitcode is not None, f"a write at offset {offset} of the read-only memory succeeded"
    assert exitcode == -signal.SIGSEGV


@pytest.mark.crossmem_requires("readonly_imports")
def test_c23_a_read_only_import_reads(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(NBYTES, b"first")
    blob = allocation.export().to_bytes()
    peer.call(actions.attach, "m", blob, readonly=True)
    peer.call(actions.import_, "i", blob, readonly=True)
    peer.call(actions.map_, "n", "i")
    for name in "mn":
        refuses_to_write(peer, name)

        assert peer.call(actions.read, name, 5) == b"first"

    allocation.write(b"later")

    assert peer.call(actions.read, "m", 5) == b"later"

    # A read-only import does not restrict writable imports, even in the same process.
    peer.call(actions.attach, "rw", blob)

    assert peer.call(actions.attribute, "rw", "readonly") is False

    peer.call(actions.write, "rw", b"WRITE")

    assert peer.call(actions.read, "m", 5) == b"WRITE"
    assert allocation.read(5) == b"WRITE"

    refuses_to_write(peer, "m")


@pytest.mark.crossmem_requires("readonly_imports", "host_visible")
@pytest.mark.parametrize("offset", [0, NBYTES - 1])
@pytest.mark.crossmem_core
def test_c23_a_read_only_import_is_enforced(
    allocate: Allocate, fresh_peer: FreshPeer, offset: int
) -> None:
    allocation = allocate(NBYTES, bytes(NBYTES))
    importer = fresh_peer()
    blob = allocation.export().to_bytes()
    # A writable mapping of the same memory must not make the read-only mapping writable.
    importer.call(actions.attach, "rw", blob)
    importer.call(actions.attach, "m", blob, readonly=True)
    dies_of_writing(importer, "m", offset)

    assert allocation.read() == bytes(NBYTES)


@pytest.mark.crossmem_requires("readonly_exports")
def test_c23_a_read_only_export_is_read_only_for_importers(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(NBYTES, b"first", access="ro")
    handle = allocation.export(access="ro")

    assert handle.access == "ro"
    if not blocks.are_used():
        assert handle != allocation.export()

    peer.call(actions.attach, "m", handle.to_bytes())
    refuses_to_write(peer, "m")

    assert peer.call(actions.read, "m", 5) == b"first"

    allocation.write(b"later")

    assert peer.call(actions.read, "m", 5) == b"later"


@pytest.mark.crossmem_requires("readonly_exports", "host_visible")
@pytest.mark.crossmem_core
def test_c23_a_read_only_export_is_enforced(allocate: Allocate, fresh_peer: FreshPeer) -> None:
    allocation = allocate(NBYTES, bytes(NBYTES), access="ro")
    importer = fresh_peer()
    importer.call(actions.attach, "m", allocation.export(access="ro").to_bytes())
    dies_of_writing(importer, "m", 0)

    assert allocation.read() == bytes(NBYTES)


@pytest.mark.crossmem_not_of_blocks("all blocks of a pool are exported with the same access")
@pytest.mark.crossmem_requires("readonly_exports")
def test_c23_nobody_makes_a_read_only_handle_writable(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(NBYTES)
    allocation.export()
    blob = allocation.export(access="ro").to_bytes()
    forged = reforged(blob, clear_flags=1)

    assert crossmem.ShareableHandle.from_bytes(forged).access == "rw"

    before = peer.call(actions.calls)
    with pytest.raises((crossmem.InvalidHandleError, crossmem.AccessDeniedError)):
        peer.call(actions.attach, "m", forged)

    assert peer.call(actions.calls) == before


@pytest.mark.crossmem_requires("readonly_exports")
def test_c23_a_read_only_export_of_ones_own(
    allocate: Allocate, tracer: TracingDriver, capabilities: crossmem.Capabilities
) -> None:
    allocation = allocate(NBYTES, b"mine", access="ro")
    handle = allocation.export(access="ro")
    try:
        mapping = crossmem.attach(handle)
    except crossmem.UnsupportedError:
        assert not hasattr(tracer.inner, "map_readonly")
        return
    with mapping:
        assert mapping.readonly
        assert mapping.read(4) == b"mine"

        with pytest.raises(crossmem.AccessDeniedError):
            mapping.write(b"x")


@pytest.mark.crossmem_core
def test_c23_advisory_is_kept_by_the_api(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(NBYTES, b"first")
    blob = allocation.export().to_bytes()
    peer.call(actions.attach, "m", blob, readonly="advisory")
    peer.call(actions.import_, "i", blob, readonly="advisory")
    peer.call(actions.map_, "n", "i")
    for name in "mn":
        refuses_to_write(peer, name)

    assert peer.call(actions.read, "m", 5) == b"first"

    # Advisory access does not restrict other imports of the same process.
    peer.call(actions.attach, "rw", blob)
    peer.call(actions.write, "rw", b"other")

    assert allocation.read(5) == b"other"


@pytest.mark.crossmem_not_of_blocks("all blocks of a pool are exported with the same access")
@pytest.mark.crossmem_core
def test_c23_what_is_not_enforced_is_refused(
    allocate: Allocate, capabilities: crossmem.Capabilities, peer: Peer, tracer: TracingDriver
) -> None:
    allocation = allocate(NBYTES)
    before = tracer.calls["export"]
    if capabilities.readonly_exports:
        assert allocation.export(access="ro").access == "ro"
    else:
        with pytest.raises(crossmem.UnsupportedError, match="readonly_exports"):
            allocation.export(access="ro")

        assert tracer.calls["export"] == before

    blob = allocation.export().to_bytes()
    calls = peer.call(actions.calls)
    if capabilities.readonly_imports:
        peer.call(actions.attach, "m", blob, readonly=True)
    else:
        with pytest.raises(crossmem.UnsupportedError, match="readonly_imports"):
            peer.call(actions.attach, "m", blob, readonly=True)

        assert peer.call(actions.calls) == calls


@pytest.mark.parametrize("access", ["wo", "RW", "", None, 1])
def test_c23_an_unknown_access_is_refused(allocate: Allocate, access: Any) -> None:
    if access is None and blocks.are_used():
        pytest.skip("None is valid for a block, which has the access of its pool")
    with pytest.raises(crossmem.ConfigurationError):
        allocate(NBYTES).export(access=access)


@pytest.mark.parametrize("readonly", ["yes", "Advisory", 2, None])
def test_c23_an_unknown_kind_of_read_only_is_refused(allocate: Allocate, readonly: Any) -> None:
    handle = allocate(NBYTES).export()
    with pytest.raises(crossmem.ConfigurationError):
        crossmem.attach(handle, readonly=readonly).unmap()
