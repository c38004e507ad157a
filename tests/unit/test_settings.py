# SPDX-License-Identifier: Apache-2.0
"""Settings come from the environment, and what has no meaning is refused by name."""

import os
from dataclasses import FrozenInstanceError, asdict, fields
from pathlib import Path
from typing import Any

import pytest

from crossmem.errors import ConfigurationError
from crossmem.settings import VARIABLES, Settings

OWN_DIR = Path(f"/tmp/crossmem-{os.geteuid()}")


def test_defaults() -> None:
    settings = Settings.from_environ({})

    assert settings == Settings()
    assert settings.device is None
    assert settings.runtimes == ()
    assert settings.run_dir == OWN_DIR
    assert settings.timeout_s == 30.0
    assert settings.exit_wait_s == 2.0
    assert settings.max_reservations == 4096
    assert settings.barrier == "membarrier"
    assert settings.plugins == ()
    assert settings.disabled_plugins == ()


def test_every_field_has_a_variable() -> None:
    assert set(VARIABLES) == {one.name for one in fields(Settings)}
    assert len(set(VARIABLES.values())) == len(VARIABLES)


def test_every_variable_is_read() -> None:
    settings = Settings.from_environ(
        {
            "CROSSMEM_DEVICE": "emulated:1",
            "CROSSMEM_RUNTIME": "cuda=emulated, ascend = ctypes ,",
            "CROSSMEM_RUN_DIR": "/srv/run",
            "CROSSMEM_TIMEOUT": "1.5",
            "CROSSMEM_EXIT_WAIT": "0",
            "CROSSMEM_MAX_RESERVATIONS": "7",
            "CROSSMEM_BARRIER": "fence",
            "CROSSMEM_PLUGINS": "acme.hooks, other ,",
            "CROSSMEM_DISABLE_PLUGINS": "hip,acme-tools:acme",
        }
    )

    assert asdict(settings) == {
        "device": "emulated:1",
        "runtimes": (("cuda", "emulated"), ("ascend", "ctypes")),
        "run_dir": Path("/srv/run"),
        "timeout_s": 1.5,
        "exit_wait_s": 0.0,
        "max_reservations": 7,
        "barrier": "fence",
        "plugins": ("acme.hooks", "other"),
        "disabled_plugins": ("hip", "acme-tools:acme"),
    }


@pytest.mark.parametrize("variable", VARIABLES.values())
def test_blank_counts_as_not_set(variable: str) -> None:
    assert Settings.from_environ({variable: ""}) == Settings()
    assert Settings.from_environ({variable: "  "}) == Settings()


def test_names_that_core_does_not_know_are_left_alone() -> None:
    environ = {"CROSSMEM_EMULATED_DEVICES": "4", "CROSSMEM_ACME_SPEED": "11", "HOME": "/"}

    assert Settings.from_environ(environ) == Settings()


def test_run_dir_follows_the_session(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}

    assert Settings.from_environ(environ).run_dir == tmp_path / "crossmem"


@pytest.mark.parametrize("runtime_dir", ["run/user/7", "", "/no/such/folder"])
def test_run_dir_of_a_process_without_a_session(runtime_dir: str) -> None:
    assert Settings.from_environ({"XDG_RUNTIME_DIR": runtime_dir}).run_dir == OWN_DIR


def test_run_dir_is_not_in_the_session_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As after "sudo -E".
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    found = Settings.from_environ({"XDG_RUNTIME_DIR": str(tmp_path)}).run_dir

    assert found == Path(f"/tmp/crossmem-{os.geteuid()}")


def test_run_dir_is_no_matter_of_the_session_where_it_is_set() -> None:
    environ = {"XDG_RUNTIME_DIR": "/run/user/7", "CROSSMEM_RUN_DIR": "/srv/run"}

    assert Settings.from_environ(environ).run_dir == Path("/srv/run")


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("CROSSMEM_RUNTIME", "emulated", "BACKEND=RUNTIME"),
        ("CROSSMEM_RUNTIME", "cuda=", "BACKEND=RUNTIME"),
        ("CROSSMEM_RUNTIME", "cuda:0=emulated", "BACKEND=RUNTIME"),
        ("CROSSMEM_RUNTIME", "cuda=emulated=1", "BACKEND=RUNTIME"),
        ("CROSSMEM_RUNTIME", "cuda=cupy,cuda=emulated", "one for each backend"),
        ("CROSSMEM_RUN_DIR", "run/crossmem", "an absolute path"),
        ("CROSSMEM_TIMEOUT", "0", "more than 0 and at most 86400"),
        ("CROSSMEM_TIMEOUT", "-1", "more than 0"),
        ("CROSSMEM_TIMEOUT", "soon", "seconds"),
        ("CROSSMEM_TIMEOUT", "nan", "seconds"),
        ("CROSSMEM_TIMEOUT", "inf", "more than 0 and at most 86400"),
        ("CROSSMEM_TIMEOUT", "1e9", "more than 0 and at most 86400"),
        ("CROSSMEM_EXIT_WAIT", "-0.1", "from 0 to 86400"),
        ("CROSSMEM_MAX_RESERVATIONS", "0", "from 1 to 1000000"),
        ("CROSSMEM_MAX_RESERVATIONS", "many", "a whole number"),
        ("CROSSMEM_BARRIER", "none", "membarrier or fence"),
        ("CROSSMEM_PLUGINS", "acme/hooks.py", "importable modules"),
        ("CROSSMEM_PLUGINS", "good,.bad", "importable modules"),
    ],
)
def test_no_meaning(variable: str, value: str, allowed: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_environ({variable: value})

    assert str(caught.value).startswith(f"{variable} must be ")
    assert str(caught.value).endswith(f", not {value!r}")
    assert allowed in str(caught.value)


def test_all_that_is_wrong_is_named_once() -> None:
    environ = {"CROSSMEM_TIMEOUT": "x", "CROSSMEM_PLUGINS": "-,+", "CROSSMEM_DEVICE": "hip:0"}

    with pytest.raises(ConfigurationError) as caught:
        Settings.from_environ(environ)

    message = str(caught.value)
    assert message.count("CROSSMEM_TIMEOUT") == message.count("CROSSMEM_PLUGINS") == 1
    assert "CROSSMEM_DEVICE" not in message


def test_settings_made_in_code_are_checked_too() -> None:
    assert Settings(plugins=("acme.hooks",), timeout_s=5).plugins == ("acme.hooks",)
    with pytest.raises(ConfigurationError):
        Settings(plugins=("acme hooks",))
    with pytest.raises(ConfigurationError, match="an absolute path"):
        Settings(run_dir=Path("here"))


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("device", 1),
        ("runtimes", {"cuda": "emulated"}),
        ("runtimes", ("cuda",)),
        ("runtimes", (("cuda", "emulated", "1"),)),
        ("run_dir", "/run/crossmem"),
        ("timeout_s", "5"),
        ("timeout_s", float("nan")),
        ("exit_wait_s", True),
        ("max_reservations", 1.5),
        ("barrier", "none"),
        ("plugins", "acme"),
        ("disabled_plugins", (1,)),
    ],
)
def test_a_wrong_field_is_named(field: str, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"^Settings\.{field} is .*; it must be "):
        Settings(**{field: wrong})


def test_settings_do_not_change() -> None:
    settings = Settings()

    with pytest.raises(FrozenInstanceError):
        settings.max_reservations = 1  # type: ignore[misc]
