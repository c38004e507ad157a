# SPDX-License-Identifier: Apache-2.0
"""Laws C22, C24 and C25: the driver's methods, devices and capabilities."""

import inspect
from collections.abc import Callable

import pytest

import crossmem
from crossmem.driver import DRIVER_API_VERSION, Driver, TracingDriver, check_groups

pytestmark = pytest.mark.crossmem_with_vendor_queues

ABSTRACT = sorted(Driver.__abstractmethods__)
OPTIONAL = ["after_fork_in_child", "grant", "peer_identity", "refusal", "release_export"]


def parameters(function: Callable[..., object]) -> list[tuple[str, inspect._ParameterKind]]:
    """Return the name and the kind of each parameter of a method."""
    return [(one.name, one.kind) for one in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("method", ABSTRACT + OPTIONAL)
def test_c22_the_driver_has_the_contracts_methods(tracer: TracingDriver, method: str) -> None:
    driver = tracer.inner

    assert isinstance(driver, Driver)
    assert driver.api_version == DRIVER_API_VERSION
    assert parameters(getattr(type(driver), method)) == parameters(getattr(Driver, method))


def test_c22_groups_of_methods_are_whole(tracer: TracingDriver) -> None:
    assert check_groups(tracer.inner) == []


def test_c22_a_broken_group_is_noticed(tracer: TracingDriver) -> None:
    class Half(TracingDriver):
        """A driver that has some methods of the group ``AddressRanges``, but not all."""

        reserve = len
        release = None

    assert any("AddressRanges" in line for line in check_groups(Half(tracer.inner)))


def test_c24_devices_are_numbered_and_named(device: crossmem.Device, tracer: TracingDriver) -> None:
    infos = tracer.inner.devices()

    assert [info.ordinal for info in infos] == list(range(len(infos)))
    assert infos == tracer.inner.devices()
    assert infos[device.ordinal] == device.info
    assert device.name == f"{device.backend}:{device.ordinal}"
    assert device.backend == tracer.inner.backend


def test_c25_capabilities_are_constant_and_consistent(
    tracer: TracingDriver, capabilities: crossmem.Capabilities
) -> None:
    for info in tracer.inner.devices():
        preferred = tracer.inner.capabilities(info.ordinal, None)

        assert preferred == tracer.inner.capabilities(info.ordinal, preferred.mechanisms[0])
        assert len(set(preferred.mechanisms)) == len(preferred.mechanisms)

        for mechanism in preferred.mechanisms:
            said = tracer.inner.capabilities(info.ordinal, mechanism)

            assert said == tracer.inner.capabilities(info.ordinal, mechanism)
            assert said.mechanisms == preferred.mechanisms
            # A fork affects the whole backend, so ``fork_safe`` does not depend on the mechanism.
            assert said.fork_safe == preferred.fork_safe
            assert said.max_allocation_nbytes >= said.granularity_nbytes

    with pytest.raises(AttributeError, match="cannot assign"):
        capabilities.peer_access = not capabilities.peer_access  # type: ignore[misc]
