# SPDX-License-Identifier: Apache-2.0
"""The command as a whole: help, version, devices, the README, and life without its extra."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from programs import command as run
from programs import script

import crossmem
from crossmem.cli.render import nbytes_text, seconds_text
from crossmem.cli.reports import ConformanceMatrixReport, DevicesReport, ErrorReport
from crossmem.conformance.speed import SLOWNESS

_ROOT = Path(__file__).parents[2]
_DEADLINE_S = 110 * SLOWNESS


def interpreter(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an interpreter: for tests of what belongs to its start."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )


def test_version() -> None:
    done = interpreter("-m", "crossmem", "--version")

    assert (done.returncode, done.stdout) == (0, f"crossmem {crossmem.__version__}\n")


# What each option does if it is not given; brackets that are not escaped are markup, and vanish.
_DEFAULTS = {
    "": (),
    "demo": ("generated weights", "256MiB", "host", "60.0"),
    "devices": (),
    "conformance": ("host", "the backend's own", "the device's first"),
    "bench": ("crossmem, mp and floor; with --full or --check, all", "host"),
    "emulate": ("documented", "2", "half of this machine's memory", "strict", "fast", "a new one"),
}


@pytest.mark.parametrize("command", _DEFAULTS)
def test_help_teaches(command: str) -> None:
    done = run(*command.split(), "--help")

    assert done.returncode == 0
    words = " ".join(done.stdout.replace("│", " ").split())
    for default in _DEFAULTS[command]:
        assert f"[default: {default}]" in words
    assert done.stderr == ""
    assert "Examples" in done.stdout
    # Examples that name options can be copied only if these options exist.
    options = set(re.findall(r"(?<!\S)--[a-z-]+", done.stdout.partition("Examples")[0]))
    for option in re.findall(r"(?<!\S)--[a-z-]+", done.stdout.partition("Examples")[2]):
        assert option in options


@pytest.mark.parametrize("command", ["demo", "devices", "conformance", "bench"])
def test_the_reference_names_the_options_that_exist(command: str) -> None:
    text = (_ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    section = re.split(r"^## ", text, flags=re.MULTILINE)
    (described,) = [one for one in section if one.startswith(f"`crossmem {command}")]
    shown = run(command, "--help").stdout.partition("Examples")[0]
    option = r"(?<![\w-])--?[a-z][a-z-]*"
    exist = set(re.findall(option, shown)) - {"-h", "--help", "--json"}
    named = set(re.findall(option, "\n".join(re.findall(r"^\| .*", described, re.MULTILINE))))

    assert named == exist


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_one_line_says_how_to_install_it(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None\nfrom crossmem.cli import main\nmain()"
    done = interpreter("-c", code, "devices")

    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert missing in line
    assert "pip install 'crossmem[cli]'" in line


def test_the_library_never_imports_what_the_extra_brings() -> None:
    code = (
        "import sys, crossmem\n"
        "with crossmem.device('emulated:0').allocate(1) as one:\n"
        "    one.export()\n"
        "assert not {'typer', 'rich', 'numpy'} & set(sys.modules)\n"
        "assert not [name for name in sys.modules if name.startswith('crossmem.cli')]\n"
    )
    done = interpreter("-c", code)

    assert done.returncode == 0, done.stderr


def test_consumers_do_not_import_what_only_the_terminal_needs() -> None:
    code = (
        "import sys, crossmem.cli.secondary, crossmem.cli.children\n"
        "assert not {'typer', 'rich'} & set(sys.modules)\n"
    )
    done = interpreter("-c", code)

    assert done.returncode == 0, done.stderr


def test_devices_as_json() -> None:
    done = run("devices", "--json", CROSSMEM_EMULATED_DEVICES="3", CROSSMEM_DEVICE="emulated:1")

    assert done.returncode == 0, done.stderr
    report = DevicesReport.model_validate_json(done.stdout)
    emulated = [one for one in report.devices if one.backend == "emulated"]
    assert [one.device for one in emulated] == ["emulated:0", "emulated:1", "emulated:2"]
    assert [one.is_default for one in emulated] == [False, True, False]
    assert emulated[0].capabilities.host_visible
    assert report.default == "emulated:1"


def test_devices_fit_a_screen() -> None:
    done = run("devices", CROSSMEM_EMULATED_DEVICES="8")

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 100
    assert "…" not in done.stdout
    # Equal devices have one line.
    (emulated,) = (line for line in lines if line.startswith("emulated"))
    assert emulated.startswith("emulated:0 to 7 ")
    assert any(line.startswith("host:0 ") for line in lines)
    # So has a backend that cannot be used, whose reason stands nowhere else.
    report = DevicesReport.model_validate_json(run("devices", "--json").stdout)
    for one in report.unusable:
        (line,) = (line for line in lines if one.reason in line)
        assert line.split()[0] == one.backend
    assert "Default device" in done.stdout


def test_devices_in_detail() -> None:
    report = DevicesReport.model_validate_json(run("devices", "--json").stdout)
    done = run("devices", "--verbose")

    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "mechanisms memfd" in words
    assert "timelines word, host" in words
    assert "Memory barrier of leases" in words
    for one in report.unusable:
        assert one.hint is not None
        assert f"to do: {one.hint}" in words
        for line in one.details.splitlines():
            assert f"tried: {line}" in words


def test_failed_and_disabled_plugins_are_listed_with_reasons() -> None:
    environment: dict[str, Any] = {
        "CROSSMEM_PLUGINS": "no_such_plugin",
        "CROSSMEM_DISABLE_PLUGINS": "emulated",
    }
    done = run("devices", "--json", **environment)

    assert done.returncode == 0, done.stderr
    report = DevicesReport.model_validate_json(done.stdout)
    assert [one.plugin for one in report.failed_plugins] == ["no_such_plugin"]
    assert "No module named" in report.failed_plugins[0].error
    assert [one.plugin for one in report.disabled_plugins] == ["emulated"]
    shown = run("devices", **environment)
    assert shown.returncode == 0
    assert "Plugins that failed" in shown.stdout
    assert "No device can be used" in shown.stdout


_BACKENDS = """
from crossmem import BackendUnavailableError
from crossmem.plugin import Availability, Backend, hookimpl

def refuse(runtime):
    raise BackendUnavailableError("its library is too old", hint="install version 7")

@hookimpl
def crossmem_backends():
    absent = Availability("not_installed", "libabsent.so was not found")
    return [
        Backend(name="absent", summary="", api_version=1, probe=lambda: absent, load=refuse,
                install_hint="pip install absent", priority=5),
        Backend(name="liar", summary="", api_version=1, load=refuse,
                probe=lambda: Availability("available")),
    ]
"""


def test_unusable_backends_are_listed_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "two_backends.py").write_text(_BACKENDS)
    done = run("devices", "--json", path=[tmp_path], CROSSMEM_PLUGINS="two_backends")

    assert done.returncode == 0, done.stderr
    report = DevicesReport.model_validate_json(done.stdout)
    # What the machine lacks for the vendors' backends is listed too.
    absent, liar = (one for one in report.unusable if one.backend in {"absent", "liar"})
    assert (absent.backend, absent.state) == ("absent", "not_installed")
    assert (absent.reason, absent.hint) == ("libabsent.so was not found", "pip install absent")
    assert (liar.backend, liar.state) == ("liar", "unusable")
    assert (liar.reason, liar.hint) == ("its library is too old", "install version 7")
    assert report.default is None
    shown = run("devices", path=[tmp_path], CROSSMEM_PLUGINS="two_backends")
    assert "libabsent.so was not found" in shown.stdout
    assert "pip install absent" not in shown.stdout
    shown = run("devices", "-v", path=[tmp_path], CROSSMEM_PLUGINS="two_backends")
    assert "to do: pip install absent" in shown.stdout


def test_the_devices_of_a_machine_fit_a_screen() -> None:
    done = run("devices", COLUMNS="100")

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 100


_RUDE = """
from crossmem.plugin import Availability, Backend, hookimpl
from crossmem_emulated.driver import EmulatedDriver
from crossmem_emulated.options import Options

def load(error):
    class Rude(EmulatedDriver):
        backend = error.__name__.lower()

        def devices(self):
            raise error("the device file cannot be read")

    return Rude(Options())

@hookimpl
def crossmem_backends():
    return [
        Backend(name=error.__name__.lower(), summary="", api_version=1,
                probe=lambda: Availability("available"),
                load=lambda runtime, error=error: load(error))
        for error in (OSError, SystemExit)
    ]
"""


def test_what_drivers_raise_themselves_is_a_reason_too(tmp_path: Path) -> None:
    (tmp_path / "rude.py").write_text(_RUDE)
    words = "the driver of backend '{}' cannot list its devices: {}: the device file cannot be read"
    expected = {
        (kind.lower(), words.format(kind.lower(), kind), None) for kind in ("OSError", "SystemExit")
    }

    done = run("devices", "--json", path=[tmp_path], CROSSMEM_PLUGINS="rude")

    assert done.returncode == 0, done.stderr
    devices = DevicesReport.model_validate_json(done.stdout)
    assert expected <= {(one.backend, one.reason, one.hint) for one in devices.unusable}
    assert any(one.backend == "emulated" for one in devices.devices)

    done = run(
        *("conformance", "--all", "--json"),
        path=[tmp_path],
        CROSSMEM_PLUGINS="rude",
        CROSSMEM_DISABLE_PLUGINS="ascend,emulated,hip",
    )

    assert done.returncode == 5, done.stderr
    matrix = ConformanceMatrixReport.model_validate_json(done.stdout)
    assert expected == {(one.backend, one.reason, one.hint) for one in matrix.left_out}


_UNSEEN = """
from dataclasses import replace
from crossmem.plugin import Availability, Backend, hookimpl
from crossmem_emulated.driver import EmulatedDriver
from crossmem_emulated.options import Options

class Unseen(EmulatedDriver):
    backend = "unseen"

    def capabilities(self, device, mechanism):
        return replace(super().capabilities(device, mechanism), host_visible=False)

@hookimpl
def crossmem_backends():
    return [
        Backend(name="unseen", summary="", api_version=1,
                probe=lambda: Availability("available"),
                load=lambda runtime: Unseen(Options())),
    ]
"""

_UNMEASURED = """
from dataclasses import replace
from crossmem.plugin import Availability, Backend, hookimpl
from crossmem_emulated.driver import EmulatedDriver
from crossmem_emulated.options import Options

class Unmeasured(EmulatedDriver):
    backend = "unmeasured"

    def devices(self):
        return tuple(replace(one, total_nbytes=None) for one in super().devices())

@hookimpl
def crossmem_backends():
    return [
        Backend(name="unmeasured", summary="", api_version=1,
                probe=lambda: Availability("available"),
                load=lambda runtime: Unmeasured(Options())),
    ]
"""


def test_memory_that_only_an_opened_device_tells_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "unmeasured.py").write_text(_UNMEASURED)
    done = run("devices", "--json", path=[tmp_path], CROSSMEM_PLUGINS="unmeasured")

    assert done.returncode == 0, done.stderr
    devices = DevicesReport.model_validate_json(done.stdout).devices
    assert [one.total_nbytes for one in devices if one.backend == "unmeasured"] == [None, None]
    shown = run("devices", path=[tmp_path], CROSSMEM_PLUGINS="unmeasured")
    assert "unknown" in shown.stdout


def test_settings_without_meaning_are_usage_errors() -> None:
    done = run("devices", "--json", CROSSMEM_TIMEOUT="soon")

    assert done.returncode == 2
    assert ErrorReport.model_validate_json(done.stdout).error == "ConfigurationError"
    assert "Traceback" not in done.stderr


def test_an_unknown_command_is_a_usage_error() -> None:
    done = run("share")

    assert done.returncode == 2
    assert "share" in done.stderr


def test_the_readme_has_the_two_lines_and_its_example_runs(tmp_path: Path) -> None:
    text = (_ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)
    shell = [block.strip() for kind, block in blocks if kind == "sh"]
    assert shell == [
        "python3 -m venv .venv && .venv/bin/pip install -q '.[cli]' && .venv/bin/crossmem demo",
        (
            "python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && "
            ".venv/bin/python -m pytest"
        ),
    ]
    (example,) = [block for kind, block in blocks if kind == "python"]
    (tmp_path / "example.py").write_text(example + "print(received['layer'].sum())\n")
    done = script(tmp_path / "example.py")

    assert (done.returncode, done.stdout) == (0, "2000000.0\n"), done.stderr
    assert len(text.splitlines()) <= 120


def test_the_guide_to_blocks_runs(tmp_path: Path) -> None:
    text = (_ROOT / "docs/how-to/blocks.md").read_text(encoding="utf-8")
    pieces = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "share.py").write_text("\n\n".join(pieces))
    done = script(tmp_path / "share.py")

    assert done.returncode == 0, done.stderr
    assert "1048576 bytes at 0x" in done.stdout
    assert "b'weights'" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (3 * 2**29, "1.5 GiB"),
        (2**60, "1048576.0 TiB"),
    ],
)
def test_sizes_for_people(nbytes: int, text: str) -> None:
    assert nbytes_text(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 µs"),
        (999.4e-6, "999 µs"),
        (1e-3, "1.00 ms"),
        (0.0123, "12.3 ms"),
        (0.9996, "1000 ms"),
        (1.0, "1.00 s"),
        (123.4, "123 s"),
    ],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.ci
def test_bench_as_json(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    done = run("bench", "--smoke", "--peer", "floor", "--json", "-o", str(path))

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"]
    assert json.loads(path.read_text()) == json.loads(done.stdout)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--peer", "pigeons"), "--peer 'pigeons' is unknown"),
        (("--device", "pigeon:0"), "no plugin offers the backend 'pigeon'"),
        (("--device", "emulated:99"), "backend 'emulated' has no device 99"),
        (("--device", "unseen"), "unseen cannot be compared: its memory is not visible"),
    ],
)
def test_bench_refuses_what_it_cannot_measure(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    (tmp_path / "unseen.py").write_text(_UNSEEN)
    done = run("bench", *arguments, "--json", path=[tmp_path], CROSSMEM_PLUGINS="unseen")

    assert done.returncode == 2
    assert words in ErrorReport.model_validate_json(done.stdout).message


@pytest.mark.long
def test_bench_takes_less_than_a_minute_and_fits_a_screen() -> None:
    start = time.monotonic()
    done = run("bench")

    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < 60 * SLOWNESS
    assert len(done.stdout.splitlines()) <= 25
    assert len(done.stderr.splitlines()) == 1


BENCHES = """
import sys
from dataclasses import replace
import crossmem.bench as bench
from crossmem.bench.plan import PLANS
from crossmem.bench.report import Target
from crossmem.cli import main

# A plan of seconds; some target is missed with it, whatever the machine.
bench.PLANS = dict.fromkeys(PLANS, PLANS["smoke"])
compute = bench.Suite.run
reports = []

def run(self, parts):
    if not reports:
        reports.append(compute(self, parts))
        reports[0].targets.append(Target("a miss", 2.0, 1.0))
    return replace(reports[0], mode=self.report.mode)

bench.Suite.run = run
for options in (["--check"], ["--full"], ["--full", "--check"]):
    sys.argv[1:] = ["bench", *options, "--peer", "crossmem"]
    try:
        main()
    except SystemExit as end:
        print("exit code", end.code)
"""


@pytest.mark.long
@pytest.mark.usefixtures("unmeasured")
def test_only_check_turns_missed_targets_into_an_exit_code() -> None:
    done = interpreter("-c", BENCHES)

    brief, full, checked, rest = re.split(r"^exit code ", done.stdout, flags=re.MULTILINE)
    codes = [one.splitlines()[0] for one in (full, checked, rest)]
    assert codes == ["1", "0", "1"], done.stderr
    for shown, is_full in ((brief, False), (full, True), (checked, True)):
        words = " ".join(shown.split())
        assert "Targets" in words
        assert "a miss" in words
        assert ("Bandwidth" in words) == ("Bandwidth through NumPy" in words) == is_full
