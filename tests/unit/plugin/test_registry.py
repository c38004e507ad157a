# SPDX-License-Identifier: Apache-2.0
"""Backends answer whether they work here, and drivers are loaded once."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from crossmem.driver import Driver, TracingDriver
from crossmem.errors import (
    BackendNotFoundError,
    BackendUnavailableError,
    BusyError,
    ConfigurationError,
    DriverError,
)
from crossmem.plugin import Backend, Registry, hookimpl


def offering(world: Any, *backends: Backend) -> Registry:
    world.install("tools", tools=world.plugin(*backends))
    registry: Registry = world.registry()
    return registry


def test_names_and_backends(world: Any) -> None:
    acme, zeta = world.backend("acme"), world.backend("zeta")
    registry = offering(world, zeta, acme)

    assert registry.names() == ("acme", "zeta")
    assert registry.backends() == (acme, zeta)
    assert registry.backend("zeta") is zeta
    assert [str(info) for info in registry.offered_by("zeta")] == ["tools:tools 1.0"]
    assert registry.offered_by("other") == ()
    assert world.probes == world.loads == []


def test_unknown_name_lists_what_there_is(world: Any) -> None:
    world.install("rusty", "0.1", rust="no_such_module_of_rusty")
    world.install("quiet", quiet="never_imported")
    world.install("tools", tools=world.plugin(world.backend("acme"), world.backend("zeta")))
    registry = world.registry(CROSSMEM_DISABLE_PLUGINS="quiet")

    with pytest.raises(BackendNotFoundError) as caught:
        registry.driver("acne")

    assert caught.value.backend == "acne"
    assert str(caught.value) == (
        "no plugin offers the backend 'acne'; there are: acme, zeta\nHint: did you mean 'acme'?"
    )
    assert caught.value.details.splitlines() == [
        "failed: rusty:rust 0.1: ModuleNotFoundError: No module named 'no_such_module_of_rusty'",
        "disabled by CROSSMEM_DISABLE_PLUGINS: quiet:quiet 1.0",
    ]
    with pytest.raises(BackendNotFoundError) as caught:
        registry.driver("nothing_like_it")
    assert caught.value.hint == "`crossmem devices` lists failed and disabled plugins"


def test_unknown_name_where_there_is_nothing(world: Any) -> None:
    with pytest.raises(BackendNotFoundError) as caught:
        world.registry().availability("acme")

    assert str(caught.value) == "no plugin offers the backend 'acme'; there are: none"


def test_probe_is_asked_once(world: Any) -> None:
    registry = offering(world, world.backend(state="unusable", reason="no board in any slot"))

    assert registry.availability("acme").state == "unusable"
    assert registry.availability("acme").reason == "no board in any slot"
    assert world.probes == ["acme"]


@pytest.mark.parametrize("fault", [RuntimeError("bus error"), SystemExit("bus error")])
def test_probe_that_raises(world: Any, fault: BaseException) -> None:
    def probe() -> Any:
        raise fault

    registry = offering(world, world.backend(probe=probe), world.backend("fine"))

    assert registry.availability("fine").available
    availability = registry.availability("acme")
    assert availability.state == "unusable"
    assert availability.reason == f"its probe raised {type(fault).__name__}: bus error"


def test_a_long_reason_is_cut_and_kept_whole_in_the_details(world: Any) -> None:
    reason = "no libacme.so can be loaded:\n" + ", ".join(f"/opt/acme-{n}/lib" for n in range(99))
    registry = offering(world, world.backend(state="unusable", reason=reason))

    availability = registry.availability("acme")
    with pytest.raises(BackendUnavailableError) as caught:
        registry.driver("acme")

    assert availability.reason.startswith("no libacme.so can be loaded: /opt/acme-0/lib, ")
    assert availability.details == caught.value.details == reason
    assert len(caught.value.message) <= 200
    assert "\n" not in caught.value.message


def test_a_long_fault_of_a_loader_is_cut_and_kept_whole_in_the_details(world: Any) -> None:
    def load(runtime: str | None) -> Driver:
        raise OSError("x" * 500)

    with pytest.raises(BackendUnavailableError) as caught:
        offering(world, world.backend(load=load)).driver("acme")

    assert len(caught.value.message) <= 200
    assert caught.value.details == "OSError: " + "x" * 500


def test_probe_that_gives_no_answer(world: Any) -> None:
    registry = offering(world, world.backend(probe=lambda: True))

    assert (
        registry.availability("acme").reason
        == "its probe returned True, which is not an Availability"
    )


@pytest.mark.parametrize(
    ("state", "words"), [("not_installed", "is not installed"), ("unusable", "cannot be used here")]
)
def test_unavailable_says_why_and_what_to_do(world: Any, state: str, words: str) -> None:
    backend = world.backend(state=state, reason="no libacme.so.1", install_hint="Install acme-dkms")
    registry = offering(world, backend)

    with pytest.raises(BackendUnavailableError) as caught:
        registry.driver("acme")

    assert str(caught.value) == (
        f"backend 'acme' {words}: no libacme.so.1\nHint: Install acme-dkms"
    )
    assert world.loads == []


def test_driver_is_loaded_once_for_each_runtime(world: Any) -> None:
    registry = offering(world, world.backend(runtimes=("native", "slow")))
    default = registry.driver("acme")
    slow = registry.driver("acme", runtime="slow")

    assert registry.driver("acme") is default
    assert registry.driver("acme", runtime="slow") is slow
    assert default is not slow
    assert world.loads == [("acme", None), ("acme", "slow")]
    assert world.probes == ["acme"]


def test_runtime_that_is_named_is_not_probed_for(world: Any) -> None:
    backend = world.backend(state="not_installed", reason="no library", runtimes=("emulated",))
    registry = offering(world, backend)

    assert registry.driver("acme", runtime="emulated").backend == "acme"
    assert registry.require("acme", runtime="emulated") is backend
    assert world.probes == []
    with pytest.raises(BackendUnavailableError):
        registry.driver("acme")


def test_unknown_runtime_lists_the_known(world: Any) -> None:
    backends = world.backend(runtimes=("native", "slow")), world.backend("plain")
    registry = offering(world, *backends)

    text = "'acme' has no runtime 'fast'; it has only 'native', 'slow'"
    with pytest.raises(ConfigurationError, match=text):
        registry.driver("acme", runtime="fast")
    with pytest.raises(ConfigurationError, match="no runtime 'fast'; it has no choice of runtimes"):
        registry.driver("plain", runtime="fast")
    assert world.loads == []


def test_threads_share_one_load(world: Any) -> None:
    arrived = threading.Barrier(8)
    loads = []

    def load(runtime: str | None) -> Driver:
        loads.append(runtime)
        time.sleep(0.1)  # Long enough for the other threads to find that there is no driver yet.
        driver: Driver = world.driver("acme")
        return driver

    def use(_: int) -> Driver:
        arrived.wait(10)
        return registry.driver("acme")

    registry = offering(world, world.backend(load=load))
    with ThreadPoolExecutor(8) as pool:
        drivers = set(pool.map(use, range(8)))

    assert len(drivers) == 1
    assert loads == [None]


def test_a_load_may_be_interrupted_by_a_call_that_wants_the_same(world: Any) -> None:
    inner: list[Driver] = []

    def load(runtime: str | None) -> Driver:
        if not inner:
            inner.append(world.driver("acme"))
            # As a signal handler does.
            inner[0] = registry.driver("acme")
        driver: Driver = world.driver("acme")
        return driver

    registry = offering(world, world.backend(load=load))
    outer: list[Driver] = []
    loading = threading.Thread(target=lambda: outer.append(registry.driver("acme")), daemon=True)
    loading.start()
    loading.join(5)

    assert outer == inner == [registry.driver("acme")]


def test_loading_one_backend_does_not_block_another(world: Any) -> None:
    entered, leave = threading.Event(), threading.Event()

    def load(runtime: str | None) -> Driver:
        entered.set()
        assert leave.wait(10)
        driver: Driver = world.driver("acme")
        return driver

    registry = offering(world, world.backend(load=load), world.backend("other"))
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(registry.driver, "acme")
        assert entered.wait(10)
        other = registry.driver("other")
        leave.set()

        assert slow.result(10).backend == "acme"
        assert other.backend == "other"


def test_load_is_tried_again_after_it_failed(world: Any) -> None:
    faults = [OSError("device is busy")]

    def load(runtime: str | None) -> Driver:
        if faults:
            raise faults.pop()
        driver: Driver = world.driver("acme")
        return driver

    registry = offering(world, world.backend(load=load, install_hint="Try later", runtimes=("x",)))

    with pytest.raises(BackendUnavailableError) as caught:
        registry.driver("acme", runtime="x")
    assert str(caught.value) == (
        "backend 'acme' with runtime 'x' cannot be loaded: OSError: device is busy\nHint: Try later"
    )
    assert isinstance(caught.value.__cause__, OSError)
    assert registry.driver("acme", runtime="x").backend == "acme"


def test_errors_of_ours_pass_unchanged(world: Any) -> None:
    error = DriverError("cannot start", call="acmeInit", code=3, name="ACME_OLD_FIRMWARE")

    def load(runtime: str | None) -> Driver:
        raise error

    registry = offering(world, world.backend(load=load))

    with pytest.raises(DriverError) as caught:
        registry.driver("acme")
    assert caught.value is error


def test_what_is_loaded_must_be_a_driver_of_this_version(world: Any) -> None:
    old = world.driver("old")
    type(old).api_version = 0
    registry = offering(
        world,
        world.backend("none", load=lambda _: None),
        world.backend("old", load=lambda _: old),
        world.backend("liar", load=lambda _: world.driver("other")),
    )

    with pytest.raises(BackendUnavailableError, match=r"None is not a crossmem\.driver\.Driver"):
        registry.driver("none")
    with pytest.raises(
        BackendUnavailableError, match=r"tools:tools 1\.0 cannot be used: its driver"
    ):
        registry.driver("old")
    with pytest.raises(BackendUnavailableError, match="its driver is for the backend 'other'"):
        registry.driver("liar")


def test_adapted_drivers(world: Any) -> None:
    registry = offering(world, world.backend(runtimes=("slow",)))
    seen = []

    def note(driver: Driver) -> Driver:
        seen.append(driver)
        return driver

    registry.adapt(TracingDriver)
    registry.adapt(note)
    driver = registry.driver("acme")
    slow = registry.driver("acme", runtime="slow")

    assert isinstance(driver, TracingDriver)
    assert registry.driver("acme") is driver
    assert seen == [driver, slow]
    with pytest.raises(BusyError, match="in use already: acme"):
        registry.adapt(TracingDriver)


def test_runtimes_come_from_any_plugin(world: Any) -> None:
    binding = object()

    def answer(api: str, name: str) -> object:
        return binding if (api, name) == ("acme", "emulated") else None

    class Acme:
        @hookimpl
        def crossmem_backends(self, find_runtime: Any) -> list[Backend]:
            def load(runtime: str | None) -> Driver:
                driver: Any = world.driver("acme")
                driver.runtime = find_runtime("acme", runtime)
                found: Driver = driver
                return found

            return [world.backend(load=load, runtimes=("emulated", "native"))]

    world.install("acme", acme=Acme())
    world.install("emulators", other=world.plugin(runtime=answer))
    registry = world.registry()

    assert registry.driver("acme", runtime="emulated").runtime is binding
    with pytest.raises(BackendUnavailableError, match=r"provides runtime 'native' of 'acme'$"):
        registry.driver("acme", runtime="native")


def test_first_runtime_wins(world: Any) -> None:
    module = world.module(world.plugin(runtime=lambda *_: "named"))
    world.install("a", a=world.plugin(runtime=lambda *_: "a"))
    world.install("b", b=world.plugin(runtime=lambda *_: "b"))

    assert world.registry().runtime("hip", "x") == "b"
    assert world.registry(CROSSMEM_PLUGINS=module).runtime("hip", "x") == "named"


def test_runtime_hook_may_take_fewer_parameters(world: Any) -> None:
    class Half:
        @hookimpl
        def crossmem_runtime(self, name: str) -> object:
            return f"binding {name}"

    world.install("acme", acme=Half())

    assert world.registry().runtime("hip", "x") == "binding x"


def test_runtime_that_raises_stops_no_other(world: Any) -> None:
    def broken(api: str, name: str) -> object:
        raise RuntimeError(name)

    world.install("a", a=world.plugin(runtime=lambda *_: "a"))
    world.install("b", b=world.plugin(runtime=broken))

    assert world.registry().runtime("hip", "x") == "a"


def test_nobody_gives_the_runtime(world: Any) -> None:
    error = BackendUnavailableError("CuPy is too old", hint="Update it")
    registry = world.registry()

    def knows(api: str, name: str) -> object:
        if name == "cupy":
            raise error
        return None

    def broken(api: str, name: str) -> object:
        msg = f"unexpected {name}"
        raise RuntimeError(msg)

    registry.register(world.plugin(runtime=knows), name="knows")
    registry.register(world.plugin(runtime=broken), name="broken")

    with pytest.raises(BackendUnavailableError) as caught:
        registry.runtime("hip", "cupy")
    assert caught.value is error
    with pytest.raises(BackendUnavailableError) as caught:
        registry.runtime("hip", "abacus")
    assert caught.value.message == (
        "no plugin provides runtime 'abacus' of 'hip': RuntimeError: unexpected abacus"
    )
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_forked_child_is_not_stuck_on_the_parents_locks(world: Any) -> None:
    entered, leave = threading.Event(), threading.Event()

    def load(runtime: str | None) -> Driver:
        if not entered.is_set():
            entered.set()
            # Longer than what is waited for below, or a child that is stuck would get loose.
            assert leave.wait(60)
        driver: Driver = world.driver("acme")
        return driver

    registry = offering(world, world.backend(load=load), world.backend("early"))
    early = registry.driver("early")
    with ThreadPoolExecutor(2) as pool:
        pool.submit(registry.driver, "acme")
        assert entered.wait(10)
        # What fork leaves in a child: the lock is held by a thread that is not there.
        inherited = registry.after_fork_in_child()
        try:
            driver = pool.submit(registry.driver, "acme").result(30)
        finally:
            leave.set()

    assert driver.backend == "acme"
    assert inherited == [early]
    assert registry.driver("early") is not early
    assert registry.names() == ("acme", "early")
    assert world.probes == ["early", "acme"]


def test_fork_before_anything_was_discovered(world: Any) -> None:
    registry = offering(world, world.backend())

    assert registry.after_fork_in_child() == []
    assert registry.names() == ("acme",)
