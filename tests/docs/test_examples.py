# SPDX-License-Identifier: Apache-2.0
"""Examples in the documentation run, and its links lead somewhere."""

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from programs import command, script

import crossmem_pytest

GetPage = Callable[[str], Any]

ROOT = Path(__file__).parents[2]

SHARE = """
import crossmem
with crossmem.device("emulated:0").allocate(4096) as allocation:
    allocation.export()
"""


def test_examples_run(page_with_examples: Any, tmp_path: Path) -> None:
    # The blocks of a page are one program, as a reader would type them.
    example = tmp_path / "example.py"
    example.write_text("\n\n".join(page_with_examples.blocks("python")))
    done = script(example, CROSSMEM_EMULATED_STATE=str(tmp_path / "host"))

    assert (done.returncode, done.stderr) == (0, "")


def test_npus_are_shared_as_the_guide_shows(tmp_path: Path) -> None:
    shown = ROOT / "docs/how-to/ascend/share.py"
    host = str(tmp_path / "host")
    done = script(shown, CROSSMEM_RUNTIME="ascend=emulated", CROSSMEM_EMULATED_STATE=host)

    assert re.fullmatch(r"b'weights' at 0x[0-9a-f]+\n", done.stdout), done.stderr


def test_the_observer_observes(page: GetPage, tmp_path: Path) -> None:
    (module,) = page("reference/hooks.md").blocks("python")
    (tmp_path / "observer.py").write_text(module)
    (tmp_path / "program.py").write_text(SHARE)
    done = script(tmp_path / "program.py", path=[tmp_path], CROSSMEM_PLUGINS="observer")

    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "allocated 4096 bytes on host:0",
        "exported 4096 bytes on host:0",
        "freed 4096 bytes on host:0",
    ]


def test_the_plugin_guide_shows_every_file_of_the_plugin(page: GetPage) -> None:
    guide = page("how-to/write-a-plugin.md")
    shown = re.findall(r"^```\{literalinclude\} (\S+)$", guide.text, re.MULTILINE)
    files = {(guide.path.parent / one).resolve() for one in shown}
    acme = ROOT / "tests/packaging/acme"
    wanted = {acme / "pyproject.toml", *acme.glob("crossmem_acme/*.py")}

    # A docstring alone needs no showing.
    assert files == wanted - {acme / "crossmem_acme/__init__.py"}


def test_a_plugin_is_found_without_installation_as_the_guide_says(page: GetPage) -> None:
    line = "CROSSMEM_PLUGINS=crossmem_acme.hooks PYTHONPATH=crossmem-acme crossmem devices"
    assert [f"{line}\n"] == page("how-to/write-a-plugin.md").blocks("sh")[1:2]
    acme = ROOT / "tests/packaging/acme"
    done = command("devices", "--json", path=[acme], CROSSMEM_PLUGINS="crossmem_acme.hooks")

    assert done.returncode == 0, done.stderr
    assert "acme:0" in [device["device"] for device in json.loads(done.stdout)["devices"]]


def test_every_option_of_the_kit_is_in_its_table(page: GetPage) -> None:
    options = re.findall(r'"(--crossmem-[\w-]+)"', inspect.getsource(crossmem_pytest))
    text = page("how-to/run-conformance.md").text

    assert re.findall(r"^\| `(--crossmem-[\w-]+)", text, re.MULTILINE) == options


def slug(heading: str) -> str:
    """Return the anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_relative_links_lead_somewhere(any_page: Any, pages: list[Any]) -> None:
    anchors = {
        one.path: {slug(title) for titles in one.headings.values() for title in titles}
        for one in pages
    }
    links = re.findall(r"\]\(([^)\s]+)\)", any_page.prose)
    broken = []
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (any_page.path.parent / target).resolve() if target else any_page.path
        if not path.exists() or (anchor and anchor not in anchors.get(path, ())):
            broken.append(link)

    assert broken == []
