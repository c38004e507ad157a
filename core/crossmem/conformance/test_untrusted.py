# SPDX-License-Identifier: Apache-2.0
"""Laws C14 and C15: forged bytes, and handles of memory that is out of reach."""

import os
import pickle
import random
import struct
import time
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings

import crossmem
from crossmem.conformance import actions, blocks, strategies
from crossmem.conformance.harness import Allocate
from crossmem.conformance.patterns import checksum_of
from crossmem.conformance.peers import Peer
from crossmem.conformance.pool import SOON_S
from crossmem.driver import TracingDriver
from crossmem.models import BlockHandle, PoolCore, ProcessIdentity

_NBYTES: Final = 4096
_CHECKSUM_AT: Final = 12
_REACHING: Final = ("import_", "map", "map_readonly", "grant", "copy")
"""Driver calls that a refused handle must not cause."""

generated = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def _reached(tracer: TracingDriver) -> list[int]:
    return [tracer.calls[name] for name in _REACHING]


def _refused(bad: Any, error: type[crossmem.CrossmemError] = crossmem.InvalidHandleError) -> str:
    """Check that every import function refuses a value.

    No import function may make a driver call that ``_REACHING`` names.

    Return the message of the error that :func:`crossmem.attach` raised.
    """
    tracer = actions.tracer()
    before = _reached(tracer)
    with pytest.raises(error):
        crossmem.import_handle(bad)
    with pytest.raises(error):
        crossmem.attach_many([bad])
    with pytest.raises(error) as caught:
        crossmem.attach(bad)
    assert _reached(tracer) == before
    return str(caught.value)


def _sealed(blob: bytes) -> bytes:
    """Return ``blob`` with the checksum that fits its other bytes."""
    return blob[:_CHECKSUM_AT] + struct.pack("<I", checksum_of(blob)) + blob[_CHECKSUM_AT + 4 :]


def _forged(blob: bytes, **changes: Any) -> bytes:
    """Return the bytes of a handle with changed fields and the checksum that fits them."""
    handle = crossmem.ShareableHandle.from_bytes(blob)
    names = (
        *("backend", "mechanism", "device", "allocation", "export", "secret", "owner"),
        *("nbytes", "capacity", "access", "raw"),
    )
    # A block's handle contains the handle of the pool's arena. The fields come from that handle.
    whole = handle.pool.arena if isinstance(handle, BlockHandle) else handle
    fields = {name: getattr(whole, name) for name in names}
    forged = crossmem.ShareableHandle(**{**fields, **changes})
    if not isinstance(handle, BlockHandle):
        return forged.to_bytes()
    pool = PoolCore.of(forged, handle.pool.slot, handle.pool.stride)
    part = handle.offset, handle.length, handle.index, handle.generation, handle.nbytes
    return BlockHandle(pool, part).to_bytes()


def _moved(blob: bytes, **changes: Any) -> bytes:
    """Return the bytes of a handle with changed fields of the owner."""
    owner = crossmem.ShareableHandle.from_bytes(blob).owner
    return _forged(blob, owner=owner._replace(**changes))


# C14 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"XMEM",
        b"\0" * 200,
        b"XMEM" + b"\xff" * 200,
        os.urandom(180),
        b"XMEM" * 1_000_000,
        bytearray(64),
        memoryview(b"x" * 2048),
        "a string",
        17,
        None,
        ["XMEM"],
    ],
    ids=lambda bad: f"{type(bad).__name__}-{len(bad) if hasattr(bad, '__len__') else bad}",
)
def test_c14_what_is_no_handle_is_refused(device: crossmem.Device, bad: Any) -> None:
    _refused(bad)


def test_c14_every_truncation_and_extension_is_refused(peer: Peer) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES)

    for length in range(len(blob)):
        with pytest.raises(crossmem.InvalidHandleError):
            crossmem.ShareableHandle.from_bytes(blob[:length])
        with pytest.raises(crossmem.InvalidHandleError):
            crossmem.ShareableHandle.from_bytes(_sealed(blob[: max(16, length)]))
    for more in (b"\0", b"x" * 100, blob):
        _refused(blob + more)
        _refused(_sealed(blob + more))


def test_c14_every_flipped_bit_is_refused(peer: Peer) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES)

    for bit in range(8 * len(blob)):
        flipped = bytearray(blob)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(crossmem.InvalidHandleError):
            crossmem.ShareableHandle.from_bytes(bytes(flipped))


def test_c14_flipped_bits_with_a_fitting_checksum_reach_no_driver(
    peer: Peer, tracer: TracingDriver
) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES)
    whole = crossmem.ShareableHandle.from_bytes(blob)
    chosen = random.Random(14).sample(range(8 * len(blob)), 150)
    live = tracer.live

    for bit in chosen:
        before = _reached(tracer)
        flipped = bytearray(blob)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            with crossmem.attach(_sealed(bytes(flipped)), timeout=5) as mapping:
                # A changed offset or length may give a valid handle of another part of the memory.
                assert mapping.handle.core == whole.core
                assert mapping.handle.offset + mapping.nbytes <= _NBYTES
        except crossmem.CrossmemError:
            # If the flip changes a field of the block and no field of the pool, crossmem may open
            # the pool before it refuses the block.
            assert blocks.are_used() or _reached(tracer) == before, f"bit {bit}"
    blocks.close_idle()
    assert tracer.live == live


@pytest.mark.parametrize(
    "changes",
    [
        {"secret": bytes(16)},
        {"nbytes": 1},
        {"nbytes": 1 << 40, "capacity": 1 << 41},
        {"capacity": 1 << 62},
        {"export": 1},
        {"export": 2**32 - 1},
        {"allocation": 2**63},
        {"allocation": 2**64 - 1},
    ],
    ids=str,
)
@pytest.mark.crossmem_core
def test_c14_no_field_can_be_changed(peer: Peer, changes: dict[str, Any]) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES)

    _refused(_forged(blob, **changes))

    # The changed handle is also refused if this process has the memory open.
    with crossmem.attach(blob):
        _refused(_forged(blob, **changes))


@pytest.mark.crossmem_requires("readonly_exports")
def test_c14_a_read_only_handle_cannot_be_made_writable(peer: Peer) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES, access="ro")

    _refused(_forged(blob, access="rw"))


@pytest.mark.crossmem_not_of_blocks("blocks have no raw handles")
def test_c14_a_leased_handle_cannot_be_made_a_raw_one(
    peer: Peer, capabilities: crossmem.Capabilities
) -> None:
    if capabilities.raw_handles:
        pytest.skip("the device's capability raw_handles is true")
    blob = peer.call(actions.offer, "memory", _NBYTES)

    for raw in (b"", b"vendor's bytes"):
        _refused(_forged(blob, raw=raw), crossmem.UnsupportedError)


def test_c14_the_exporter_itself_is_not_fooled(allocate: Allocate) -> None:
    blob = allocate(_NBYTES).export().to_bytes()

    _refused(_forged(blob, secret=bytes(16)))
    _refused(_forged(blob, nbytes=1))
    _refused(_forged(blob, capacity=1 << 40))
    _refused(_forged(blob, export=77))


@pytest.mark.crossmem_core
def test_c14_the_secret_of_one_allocation_opens_no_other(peer: Peer) -> None:
    # All blocks of a pool share a secret, and blocks of different sizes come from different pools.
    # So the test offers memory of two sizes.
    one, two = (peer.call(actions.offer, f"m{size}", size) for size in (_NBYTES, 2 * _NBYTES))
    secret = crossmem.ShareableHandle.from_bytes(one).secret

    _refused(_forged(two, secret=secret))


def test_c14_one_bad_handle_among_many_leaves_nothing(peer: Peer, tracer: TracingDriver) -> None:
    before = tracer.live
    good = [peer.call(actions.offer, name, _NBYTES) for name in "abc"]
    bad = _forged(good[1], secret=bytes(16))

    for blobs in ([*good, bad], [bad, *good], [*good, b"rubbish"]):
        with pytest.raises(crossmem.InvalidHandleError):
            crossmem.attach_many(blobs)

    assert tracer.live == before
    for name in "abc":
        peer.call(actions.free, name, busy="wait", timeout=5)


@generated
@given(handle=strategies.handles())
def test_c14_a_handle_that_nobody_exported_reaches_no_driver(
    tracer: TracingDriver, handle: crossmem.ShareableHandle
) -> None:
    before = _reached(tracer)
    mine = actions.device()
    if mine.capabilities.raw_handles:
        # Only the driver can check a raw handle, so the test makes each handle a leased one.
        handle = crossmem.ShareableHandle.from_bytes(_forged(handle.to_bytes(), raw=None))
    plausible = {
        "backend": mine.backend,
        "device": mine.identity,
        "mechanism": mine.mechanism,
    }
    here = _moved(handle.to_bytes(), boot_id=ProcessIdentity.of_this_process().boot_id)
    for forgery in (handle.to_bytes(), here, _forged(here, **plausible)):
        with pytest.raises(crossmem.CrossmemError):
            crossmem.attach(forgery, timeout=1)
    assert _reached(tracer) == before


def test_c14_nothing_but_a_handles_bytes_is_unpickled(peer: Peer) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES)
    handle = crossmem.ShareableHandle.from_bytes(blob)
    pickled = pickle.dumps(handle)

    assert pickle.loads(pickled) == handle  # noqa: S301 - made here
    damaged = pickled.replace(handle.secret, bytes(16))
    assert damaged != pickled
    with pytest.raises(crossmem.InvalidHandleError):
        pickle.loads(damaged)  # noqa: S301 - made here


def test_c14_refusals_do_not_show_the_secret(peer: Peer) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES)
    handle = crossmem.ShareableHandle.from_bytes(blob)

    message = _refused(_forged(blob, nbytes=1))

    for text in (message, repr(handle), handle.to_json()):
        assert handle.secret.hex() not in text
        assert repr(handle.secret)[2:-1] not in text


# C15 ----------------------------------------------------------------------------------------


def test_c15_another_host_or_boot_is_named(peer: Peer) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES)
    here = ProcessIdentity.of_this_process().boot_id
    other = here[::-1]

    message = _refused(_moved(blob, boot_id=other), crossmem.WrongHostError)

    assert other.hex() in message
    assert here.hex() in message
    assert str(peer.pid) in message


def test_c15_an_absent_backend_is_named(peer: Peer) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES)

    message = _refused(_forged(blob, backend="nonesuch"), crossmem.BackendNotFoundError)

    assert "nonesuch" in message


@pytest.mark.crossmem_core
def test_c15_an_absent_device_is_named_with_those_that_are_there(
    peer: Peer, device: crossmem.Device
) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES)

    message = _refused(_forged(blob, device="gone:77"), crossmem.DeviceNotFoundError)

    assert "gone:77" in message
    assert device.identity in message


def test_c15_another_mechanism_is_named(peer: Peer, device: crossmem.Device) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES)

    message = _refused(_forged(blob, mechanism="telepathy"), crossmem.UnsupportedError)

    assert "telepathy" in message
    assert device.name in message


def test_c15_an_owner_that_cannot_be_seen_is_named(peer: Peer) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES)

    message = _refused(_moved(blob, pid_namespace=1), crossmem.WrongHostError)

    assert "pid namespace" in message
    assert str(peer.pid) in message
    assert "CROSSMEM_RUN_DIR" in message


@pytest.mark.crossmem_core
def test_c15_an_owner_that_never_was_is_gone_and_nothing_hangs(peer: Peer) -> None:
    blob = peer.call(actions.offer, "memory", _NBYTES)
    start = time.monotonic()

    for pid in (0, 2**22 + 1, 2**31 - 1, 2**31, 2**32 - 1):
        _refused(_moved(blob, pid=pid), crossmem.OwnerGoneError)
    _refused(_moved(blob, start_time=1), crossmem.OwnerGoneError)
    _refused(_moved(blob, start_time=2**64 - 1), crossmem.OwnerGoneError)

    assert time.monotonic() - start < SOON_S
