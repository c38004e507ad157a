# SPDX-License-Identifier: Apache-2.0
"""A device is what the caller names, else the environment, else the best; never an emulation."""

from typing import Any

import pytest

from crossmem.errors import (
    BackendNotFoundError,
    BackendUnavailableError,
    ConfigurationError,
)
from crossmem.plugin import (
    Availability,
    Choice,
    DeviceSpec,
    Registry,
    Source,
    choose,
    explain,
)
from crossmem.settings import Settings


@pytest.fixture
def registry(world: Any) -> Any:
    world.install(
        "tools",
        "2.0",
        tools=world.plugin(
            world.backend("emulated"),
            world.backend("fast", priority=20, runtimes=("emulated",)),
            world.backend(
                "faster", "not_installed", "no libfaster.so", priority=30, install_hint="Get it"
            ),
            world.backend("slow", priority=10),
        ),
    )
    return world.registry()


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("hip:0", DeviceSpec("hip", 0)),
        ("hip:17", DeviceSpec("hip", 17)),
        ("hip", DeviceSpec("hip", 0)),
        ("my_npu-2:65535", DeviceSpec("my_npu-2", 65535)),
    ],
)
def test_device_specs(text: str, spec: DeviceSpec) -> None:
    assert DeviceSpec.parse(text) == spec
    assert DeviceSpec.parse(str(spec)) == spec


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        ":0",
        "hip:",
        "hip:-1",
        "hip:+1",
        "hip:01",
        "hip: 1",
        " hip:1",
        "hip:1\n",
        "hip:1:2",
        "hip:٣",
        "hip:65536",
        "hip:99999999999999999999",
        "HIP:0",
        "7",
        0,
        b"hip:0",
    ],
)
def test_no_device_specs(text: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        DeviceSpec.parse(text, origin="CROSSMEM_DEVICE")

    wanted = f"expected a device name such as 'cuda:0', got CROSSMEM_DEVICE={text!r}"
    assert caught.value.message == wanted
    assert "BACKEND:N" in str(caught.value.hint)


def test_the_caller_decides_first(registry: Any) -> None:
    settings = Settings(device="fast:1")

    assert choose("slow:3", settings, registry) == Choice(DeviceSpec("slow", 3), Source.ARGUMENT)
    assert choose(DeviceSpec("slow"), settings, registry).spec == DeviceSpec("slow", 0)


def test_the_environment_decides_next(registry: Any) -> None:
    choice = choose(None, Settings(device="slow:1"), registry)

    assert choice == Choice(DeviceSpec("slow", 1), Source.ENVIRONMENT)


def test_priority_decides_last(registry: Any, world: Any) -> None:
    choice = choose(None, Settings(), registry)

    assert choice == Choice(DeviceSpec("fast", 0), Source.PRIORITY)
    assert world.probes == ["faster", "fast"]
    assert world.loads == []


def test_equal_priorities_go_by_name(world: Any) -> None:
    backends = (world.backend(name, priority=5) for name in ("c", "a", "b"))
    world.install("tools", tools=world.plugin(*backends))

    assert choose(None, Settings(), world.registry()).spec.backend == "a"


def test_an_emulation_is_used_where_it_is_named(registry: Any) -> None:
    assert choose("emulated:1", Settings(), registry).spec == DeviceSpec("emulated", 1)
    assert choose(None, Settings(device="emulated"), registry).spec == DeviceSpec("emulated", 0)


def test_an_emulation_is_never_a_fallback(world: Any) -> None:
    fast = world.backend("fast", "unusable", "no device", priority=20)
    world.install("tools", tools=world.plugin(world.backend("emulated"), fast))
    world.install("rusty", rust="no_such_module_of_rusty")

    with pytest.raises(BackendUnavailableError) as caught:
        choose(None, Settings(), world.registry())

    assert caught.value.message == "no GPU or NPU found"
    assert caught.value.details.splitlines() == [
        "fast: unusable: no device",
        "plugin rusty:rust 1.0: ModuleNotFoundError: No module named 'no_such_module_of_rusty'",
    ]
    assert world.probes == ["fast"]


def test_nothing_is_installed(world: Any) -> None:
    with pytest.raises(BackendUnavailableError) as caught:
        choose(None, Settings(), world.registry())

    assert caught.value.details == ""
    assert "crossmem devices -v" in str(caught.value.hint)


def test_host_memory_is_named_where_it_can_be_had(world: Any) -> None:
    world.install("tools", tools=world.plugin(world.backend("host")))
    with pytest.raises(BackendUnavailableError) as caught:
        choose(None, Settings(), world.registry())

    assert caught.value.hint == (
        "for host memory use crossmem.device('host'); "
        "`crossmem devices -v` says why each backend is missing"
    )


def test_what_each_probe_tried_stands_in_the_details(world: Any) -> None:
    absent = Availability("not_installed", "no libfast.so can be loaded", "/a: no such file\n/b: ?")
    fast = world.backend("fast", priority=20, probe=lambda: absent)
    world.install("tools", tools=world.plugin(fast))
    with pytest.raises(BackendUnavailableError) as caught:
        choose(None, Settings(), world.registry())

    assert caught.value.details.splitlines() == [
        "fast: not installed: no libfast.so can be loaded",
        "  /a: no such file",
        "  /b: ?",
    ]
    assert "libfast" not in str(caught.value)


def test_the_installed_backends_say_in_one_line_what_they_miss() -> None:
    registry = Registry()
    for backend in registry.backends():
        availability = registry.availability(backend.name)
        # `crossmem devices` shows it beside the name, on a line of 100 characters.
        assert len(availability.reason) <= 88, availability.reason
        assert len(backend.install_hint or "") <= 200


def test_what_is_named_is_not_replaced(registry: Any) -> None:
    with pytest.raises(BackendUnavailableError, match=r"not installed: no libfaster\.so") as caught:
        choose("faster:0", Settings(device="fast:0"), registry)
    assert caught.value.hint == "Get it"
    with pytest.raises(BackendNotFoundError, match="'foster'"):
        choose("foster:0", Settings(), registry)


@pytest.mark.parametrize(
    ("device", "error"),
    [
        ("foster:0", BackendNotFoundError),
        ("faster:0", BackendUnavailableError),
        ("fast:x", ConfigurationError),
    ],
)
def test_errors_name_the_variable(registry: Any, device: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="CROSSMEM_DEVICE") as caught:
        choose(None, Settings(device=device), registry)

    assert device in str(caught.value)


def test_runtime(registry: Any, world: Any) -> None:
    assert choose("fast", Settings(), registry, runtime="emulated").spec.backend == "fast"
    choose(None, Settings(device="fast"), registry, runtime="emulated")
    assert world.probes == []
    with pytest.raises(ConfigurationError, match="no runtime 'fake'; it has only 'emulated'"):
        choose("fast", Settings(), registry, runtime="fake")
    with pytest.raises(ConfigurationError, match="'emulated' was named without a backend"):
        choose(None, Settings(), registry, runtime="emulated")


def test_ambiguous_backends_take_no_part(world: Any) -> None:
    world.install("a", a=world.plugin(world.backend("fast", priority=9)))
    world.install("b", b=world.plugin(world.backend("fast", priority=9)))
    world.install("c", c=world.plugin(world.backend("slow", priority=1)))
    registry = world.registry()

    assert choose(None, Settings(), registry).spec.backend == "slow"
    candidates = {one.name: one for one in explain(None, Settings(), registry).candidates}
    assert candidates["fast"].plugins == ("a:a 1.0", "b:b 1.0")
    assert candidates["fast"].reason.startswith("backend 'fast' is offered 2 times")


def reasons(explanation: Any) -> dict[str, str]:
    return {one.name: one.reason for one in explanation.candidates}


def test_explanation_of_priority(registry: Any) -> None:
    explanation = explain(None, Settings(), registry)

    assert explanation.choice == Choice(DeviceSpec("fast", 0), Source.PRIORITY)
    assert explanation.problem == ""
    assert [one.name for one in explanation.candidates if one.chosen] == ["fast"]
    assert reasons(explanation) == {
        "emulated": "used only when named",
        "fast": "highest priority of the available backends",
        "faster": "no libfaster.so",
        "slow": "lower priority",
    }


def test_explanation_of_a_name(registry: Any) -> None:
    by_caller = explain("slow:1", Settings(device="fast"), registry)
    by_environment = explain(None, Settings(device="fast"), registry)

    assert reasons(by_caller)["slow"] == "named by the caller"
    assert reasons(by_caller)["fast"] == "another device is named"
    assert reasons(by_environment)["fast"] == "named by CROSSMEM_DEVICE"
    assert reasons(by_environment)["faster"] == "no libfaster.so"


def test_explanation_of_a_refusal(registry: Any) -> None:
    wrong_runtime = explain("fast", Settings(), registry, runtime="fake")
    no_device = explain("FAST", Settings(), registry)
    no_backend = explain(None, Settings(), registry, runtime="emulated")

    assert wrong_runtime.choice is no_device.choice is no_backend.choice is None
    assert "no runtime 'fake'" in wrong_runtime.problem
    assert reasons(wrong_runtime)["fast"] == "named, but has no such runtime"
    assert reasons(wrong_runtime)["slow"] == "another device is named"
    assert "got 'FAST'" in no_device.problem
    assert reasons(no_backend)["slow"] == "not considered"


def test_explanation_for_people(registry: Any) -> None:
    assert str(explain(None, Settings(), registry)) == (
        "   backend   priority      state          why\n"
        "   emulated  by name only  available      used only when named\n"
        "*  fast      20            available      highest priority of the available backends\n"
        "   faster    30            not installed  no libfaster.so\n"
        "   slow      10            available      lower priority\n"
        "chosen: fast:0, by priority"
    )


def test_explanation_tells_what_failed(world: Any) -> None:
    world.install("rusty", "0.1", rust="no_such_module_of_rusty")
    world.install("quiet", quiet="never_imported")
    registry = world.registry(CROSSMEM_DISABLE_PLUGINS="quiet")

    lines = str(explain("rust:0", Settings(), registry)).splitlines()

    assert lines[1].startswith("nothing chosen: no plugin offers the backend 'rust'")
    assert lines[-2].startswith("failed: rusty:rust 0.1: ModuleNotFoundError")
    assert lines[-1] == "disabled: quiet:quiet 1.0"
