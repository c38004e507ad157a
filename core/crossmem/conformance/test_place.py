# SPDX-License-Identifier: Apache-2.0
"""Laws C24 and C25: a handle means one device; a named device or mechanism is never replaced."""

import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import pytest

import crossmem
from crossmem.conformance import actions
from crossmem.conformance.harness import Allocate, FreshPeer
from crossmem.conformance.old_drivers import raw_handles_or_skip
from crossmem.conformance.peers import Peer
from crossmem.driver import TracingDriver

NBYTES = 5000

MASKS: Final = {
    "emulated": "CROSSMEM_EMULATED_VISIBLE_DEVICES",
    "ascend": "ASCEND_RT_VISIBLE_DEVICES",
    "cuda": "CUDA_VISIBLE_DEVICES",
    "hip": "HIP_VISIBLE_DEVICES",
}
"""The variable that selects and orders the visible devices, for each backend."""


def other_device(device: crossmem.Device) -> crossmem.Device:
    """Return a second device of the backend, or skip the test."""
    for info in device.driver.devices():
        if info.ordinal != device.ordinal:
            return actions.device(f"{device.backend}:{info.ordinal}")
    pytest.skip("the backend has one device only")


# C24: same device -------------------------------------------------------------------------


def test_c24_a_handle_names_its_device_by_identity(
    device: crossmem.Device, allocate: Allocate, peer: Peer
) -> None:
    handle = allocate(NBYTES).export()

    assert handle.device == device.identity

    peer.call(actions.attach, "m", handle.to_bytes())
    found = peer.call(actions.attribute, "m", "device")

    assert (found.identity, found.backend) == (device.identity, device.backend)


def test_c24_identities_are_the_same_in_every_process(device: crossmem.Device, peer: Peer) -> None:
    mine = [info.identity for info in device.driver.devices()]

    assert len(set(mine)) == len(mine)
    assert peer.call(driver_identities) == mine


def driver_identities() -> list[str]:
    """Return the identities of the devices that this process sees."""
    return [info.identity for info in actions.tracer().devices()]


def test_c24_a_pickled_device_is_the_same_device(device: crossmem.Device) -> None:
    assert pickle.loads(pickle.dumps(device)) is device  # noqa: S301 - just made


@pytest.fixture
def masked(
    device: crossmem.Device, fresh_peer: FreshPeer, pytestconfig: pytest.Config
) -> Callable[..., Peer]:
    """Return a function that starts a peer with only some visible devices.

    The arguments of the function are the ordinals, in this process, of the devices that stay
    visible to the peer. The peer numbers these devices in the order of the arguments. If the kit
    knows no environment variable that masks the backend's devices, the fixture skips the test.
    """
    variable = pytestconfig.getoption("crossmem_mask") or MASKS.get(device.backend)
    if variable is None:
        pytest.skip(f"no known variable masks devices of {device.backend}: use --crossmem-mask")

    def start(*ordinals: int) -> Peer:
        environment: dict[str, Any] = {variable: ",".join(map(str, ordinals))}
        return fresh_peer(**environment)

    return start


@pytest.mark.crossmem_core
def test_c24_a_mask_never_selects_another_device(
    device: crossmem.Device, allocate: Allocate, masked: Callable[..., Peer]
) -> None:
    other = other_device(device)
    importer = masked(other.ordinal, device.ordinal)

    assert importer.call(driver_identities) == [other.identity, device.identity]

    importer.call(actions.attach, "m", allocate(NBYTES, b"meant").export().to_bytes())
    found = importer.call(place, "m")

    assert found == (device.identity, 1)
    assert importer.call(actions.read, "m", 5) == b"meant"


def test_c24_a_masked_exporter_names_the_device_that_it_used(
    device: crossmem.Device, masked: Callable[..., Peer]
) -> None:
    other = other_device(device)
    exporter = masked(other.ordinal)
    exporter.call(actions.use_device, f"{device.backend}:0")
    blob = exporter.call(actions.offer, "a", NBYTES, b"there")
    with crossmem.attach(blob) as mapping:
        assert mapping.device is other
        assert mapping.handle.device == other.identity
        assert mapping.read(5) == b"there"


def place(name: str) -> tuple[str, int]:
    """Return the identity and the ordinal of a mapping's device."""
    where = actions.objects[name].device
    return where.identity, where.ordinal


def test_c24_the_error_names_a_masked_device(
    device: crossmem.Device, allocate: Allocate, masked: Callable[..., Peer]
) -> None:
    other = other_device(device)
    importer = masked(other.ordinal)
    importer.call(actions.use_device, f"{device.backend}:0")
    with pytest.raises(crossmem.DeviceNotFoundError) as caught:
        importer.call(actions.attach, "m", allocate(NBYTES).export().to_bytes())

    assert device.identity in str(caught.value)
    assert other.identity in str(caught.value)


@pytest.mark.crossmem_requires("peer_access")
@pytest.mark.crossmem_core
def test_c24_mapped_for_another_device_the_memory_stays(
    device: crossmem.Device, allocate: Allocate, peer: Peer
) -> None:
    other = other_device(device)
    allocation = allocate(NBYTES, b"stays")
    blob = allocation.export().to_bytes()
    before = peer.call(actions.calls).get("import_", 0)
    peer.call(actions.attach, "there", blob, device=other.name)
    peer.call(actions.import_, "i", blob, device=other.name)
    peer.call(actions.attach, "here", blob)

    assert peer.call(place, "there") == (other.identity, other.ordinal)
    assert peer.call(place, "here") == (device.identity, device.ordinal)
    assert peer.call(actions.attribute, "there", "handle").device == device.identity
    # The driver opens the memory once for each device.
    assert peer.call(actions.calls)["import_"] - before == 2

    peer.call(actions.write, "there", b"moved")

    assert allocation.read(5) == b"moved"
    assert peer.call(actions.read, "here", 5) == b"moved"

    with crossmem.attach(allocation.export(), device=other) as mapping:
        assert mapping.device is other
        assert mapping.read(5) == b"moved"


@pytest.mark.crossmem_core
def test_c24_without_peer_access_another_device_is_refused(
    device: crossmem.Device, allocate: Allocate, peer: Peer
) -> None:
    other = other_device(device)
    blob = allocate(NBYTES).export().to_bytes()
    if device.capabilities.peer_access:
        peer.call(actions.attach, "m", blob, device=other.name)
        return
    before = peer.call(actions.calls)
    with pytest.raises(crossmem.UnsupportedError, match="peer_access"):
        peer.call(actions.attach, "m", blob, device=other.name)

    assert peer.call(actions.calls) == before


def test_c24_copies_from_another_device_as_the_capability_says(
    device: crossmem.Device, allocate: Allocate, tracer: TracingDriver
) -> None:
    target = allocate(NBYTES, b"first")
    with other_device(device).allocate(NBYTES) as source:
        source.write(b"other")
        if device.capabilities.peer_access:
            target.copy_from(source, nbytes=5)

            assert target.read(5) == b"other"

            return
        before = dict(tracer.calls)
        with pytest.raises(crossmem.UnsupportedError, match="peer_access"):
            target.copy_from(source, nbytes=5)

        assert tracer.calls == before


def test_c24_the_device_of_the_memory_may_be_named(
    device: crossmem.Device, allocate: Allocate, peer: Peer
) -> None:
    allocation = allocate(NBYTES, b"home")
    handle = allocation.export()
    peer.call(actions.attach, "m", handle.to_bytes(), device=device.name)

    assert peer.call(actions.read, "m", 4) == b"home"

    with crossmem.attach(handle, device=device) as mapping:
        assert mapping.device is device
    if device.runtime is None:
        with crossmem.attach(handle, device=device.name) as mapping:
            assert mapping.device is device
    with pytest.raises(crossmem.DeviceNotFoundError):
        crossmem.attach(handle, device=f"{device.backend}:65535")


def test_c24_memory_of_one_backend_is_not_mapped_for_another(
    device: crossmem.Device, allocate: Allocate, tracer: TracingDriver
) -> None:
    handle = allocate(NBYTES).export()
    foreign = [one for one in crossmem.devices() if one.backend != device.backend]
    if not foreign:
        pytest.skip("no other backend is usable here")
    before = dict(tracer.calls)
    with pytest.raises(crossmem.UnsupportedError, match=device.backend):
        crossmem.attach(handle, device=foreign[0])

    assert tracer.calls == before


# C25: no surprise -------------------------------------------------------------------------


@pytest.mark.crossmem_core
def test_c25_each_mechanism_is_used_as_asked_for(device: crossmem.Device, peer: Peer) -> None:
    preferred = crossmem.device(device.name, runtime=device.runtime)
    mechanisms = preferred.capabilities.mechanisms

    assert preferred.mechanism == mechanisms[0]

    for mechanism in mechanisms:
        chosen = crossmem.device(device.name, runtime=device.runtime, mechanism=mechanism)

        assert chosen.mechanism == mechanism
        assert chosen.capabilities.mechanisms == mechanisms
        assert chosen is preferred.for_mechanism(mechanism)
        # A pickled device keeps its mechanism.
        assert pickle.loads(pickle.dumps(chosen)) is chosen  # noqa: S301 - just made

        with chosen.allocate(NBYTES) as allocation:
            allocation.write(mechanism.encode())
            handle = allocation.export()

            assert handle.mechanism == mechanism

            # The handle decides the mechanism of the import.
            peer.call(actions.attach, "m", handle.to_bytes())

            assert peer.call(actions.read, "m", len(mechanism)) == mechanism.encode()

            peer.call(actions.unmap, "m")


@pytest.mark.crossmem_core
def test_c25_a_mechanism_that_is_not_there_is_not_replaced(
    device: crossmem.Device, capabilities: crossmem.Capabilities, tracer: TracingDriver
) -> None:
    before = dict(tracer.calls)
    with pytest.raises(crossmem.UnsupportedError) as caught:
        crossmem.device(device.name, runtime=device.runtime, mechanism="carrier-pigeon")

    assert "carrier-pigeon" in str(caught.value)
    assert all(name in str(caught.value) for name in capabilities.mechanisms)
    assert tracer.calls == before


@pytest.mark.crossmem_not_of_blocks("blocks have no raw handles")
def test_c25_raw_handles_only_where_the_backend_has_them(
    allocate: Allocate, capabilities: crossmem.Capabilities, tracer: TracingDriver
) -> None:
    if capabilities.raw_handles:
        pytest.skip("the device's capability raw_handles is true")
    allocation = allocate(NBYTES)
    before = dict(tracer.calls)
    with pytest.raises(crossmem.UnsupportedError, match="raw_handles"):
        allocation.export(lease=False)

    assert tracer.calls == before


@pytest.mark.crossmem_requires("raw_handles")
@pytest.mark.crossmem_core
def test_c25_a_raw_handle_is_imported_without_a_lease(allocate: Allocate, peer: Peer) -> None:
    allocation = allocate(NBYTES, b"raw")
    with raw_handles_or_skip():
        handle = allocation.export(lease=False)
    assert handle.raw
    assert allocation.export(lease=False) == handle

    peer.call(actions.attach, "m", handle.to_bytes())

    assert peer.call(actions.read, "m", 3) == b"raw"
    assert not any(one.leases for one in crossmem.exports())
    peer.call(actions.write, "m", b"RAW")
    assert allocation.read(3) == b"RAW"
    peer.call(actions.unmap, "m")


@pytest.mark.crossmem_requires("raw_handles")
def test_c25_raw_and_leased_exports_of_one_allocation_work_or_raise(
    allocate: Allocate, peer: Peer
) -> None:
    allocation = allocate(NBYTES, b"leased")
    leased = allocation.export()
    with suppress(crossmem.UnsupportedError):
        assert allocation.export(lease=False).raw
    peer.call(actions.attach, "m", leased.to_bytes())
    assert peer.call(actions.read, "m", 6) == b"leased"
    peer.call(actions.unmap, "m")


def test_c25_a_backend_device_or_runtime_that_is_not_there_is_not_replaced(
    device: crossmem.Device,
) -> None:
    with pytest.raises(crossmem.BackendNotFoundError, match="nosuchbackend"):
        crossmem.device("nosuchbackend:0")
    with pytest.raises(crossmem.DeviceNotFoundError, match="65535"):
        actions.device(f"{device.backend}:65535")
    with pytest.raises(crossmem.CrossmemError, match="nosuchruntime"):
        crossmem.device(device.name, runtime="nosuchruntime")
    for spec in ("", ":0", f"{device.backend}:", f"{device.backend}:-1", f"{device.backend}:x"):
        with pytest.raises(crossmem.ConfigurationError):
            crossmem.device(spec)


def default_backend() -> str:
    """Return the name of the default backend, or the error if there is no default."""
    try:
        return crossmem.device(None).backend
    except crossmem.BackendUnavailableError as error:
        return str(error)


def test_c25_no_emulation_unless_named(fresh_peer: FreshPeer) -> None:
    unnamed = fresh_peer(CROSSMEM_DEVICE=None).call(default_backend)

    assert unnamed not in {"host", "emulated"}

    for spec, backend in (("host", "host"), ("emulated:1", "emulated")):
        assert fresh_peer(CROSSMEM_DEVICE=spec).call(default_backend) == backend
