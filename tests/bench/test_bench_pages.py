# SPDX-License-Identifier: Apache-2.0
"""A report becomes Markdown tables and charts; nothing is measured here."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from crossmem.bench import Report, Target, write_page
from crossmem.bench.charts import LOADS, make_charts
from crossmem.bench.tables import Table, markdown, number

PEERS = {"floor": 100.0, "crossmem": 200.0, "pool": 2.0, "iceoryx2": None}
STEPS = ("create", "export", "attach", "detach", "free")
SVG = "{http://www.w3.org/2000/svg}"


def _report() -> Report:
    machine = {"versions": {}, "cpu": "", "cores": 2, "virtual": False}
    machine |= {"memory_nbytes": 1 << 34, "kernel": "6", "python": "CPython"}
    report = Report("full", "2026-01-01", machine, {"plan": {"batch": 1000}, "cpus": ""})
    for name, life_us in PEERS.items():
        state = "measured" if life_us else "not installed"
        report.peers[name] = {"title": f"{name} & co", "state": state, "version": ""}
        if life_us is None:
            continue
        for metric in STEPS:
            report.add("life", name, metric, [life_us / 5], "us", nbytes=4096)
            report.add("held", name, metric, [life_us / 10], "us")
        report.add("life", name, "life", [life_us], "us", nbytes=4096)
        report.add("life", name, "total", [2 * life_us], "us", nbytes=4096)
        report.add("held", name, "life", [life_us / 2], "us")
        for load in LOADS:
            if load != "stopped" or name == "pool":
                report.add("busy", name, load, [life_us / 4], "us")
                report.add("busy", name, f"{load}, p99", [life_us], "us")
    report.targets.append(Target("a | b", 1.0, 2.0))
    return report


def _columns(line: str) -> int:
    return line.replace("\\|", "").count("|") - 1


def test_every_row_has_the_columns_of_its_head(tmp_path: Path) -> None:
    write_page(_report(), tmp_path)
    text = (tmp_path / "tables.md").read_text("utf-8")

    tables = [one.splitlines()[2:] for one in text.split("## ")[1:]]
    assert len(tables) == 5
    for lines in tables:
        rows = [line for line in lines if line]
        assert len(rows) > 2
        assert {_columns(line) for line in rows} == {_columns(rows[0])}


def test_the_blocks_that_live_at_once_have_their_numbers(tmp_path: Path) -> None:
    write_page(_report(), tmp_path)
    text = (tmp_path / "tables.md").read_text("utf-8")

    (table,) = (one for one in text.split("## ") if one.startswith("1000 blocks of 4 KiB at once"))
    assert "| pool & co | 0.2 | 0.2 | 0.2 | 0.2 | 0.2 | 1 |" in table.splitlines()
    assert "| iceoryx2 & co | not installed |  |  |  |  |  |" in table.splitlines()


def test_a_table_refuses_a_row_of_another_length() -> None:
    with pytest.raises(ValueError, match="2 columns, but 1 cells in"):
        Table("odd", ("size", "peer"), (("floor",),))

    assert markdown(Table("a", ("b\nc",), (("d",),))) == "## a\n\n| b c |\n|---|\n| d |\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (3.0, "3"),
        (0.0123, "0.0123"),
        (999.4, "999"),
        (999.7, "1000"),
        (1234.5, "1234"),
    ],
)
def test_numbers_have_three_digits_and_no_exponent(value: float | None, text: str) -> None:
    assert number(value) == text


def _circles(text: str) -> list[tuple[float, float, str]]:
    found = ET.fromstring(text).iter(f"{SVG}circle")  # noqa: S314 - made above
    return [(float(one.attrib["cx"]), float(one.attrib["cy"]), one.attrib["fill"]) for one in found]


def test_the_whole_life_is_on_a_logarithmic_axis() -> None:
    floor, ours, pool = _circles(make_charts(_report())["life.svg"])

    # A factor of 100 is two decades, and a factor of 2 is a fraction of one.
    decade = (ours[0] - pool[0]) / 2
    assert floor[0] - pool[0] == pytest.approx(1.69897 * decade, abs=0.2)
    assert floor[1] < ours[1] < pool[1]


def test_each_load_has_a_dot_and_what_was_not_measured_has_none() -> None:
    dots = _circles(make_charts(_report())["busy.svg"])
    legend, shown = dots[: len(LOADS)], dots[len(LOADS) :]

    assert len({colour for _, _, colour in legend}) == len(LOADS)
    # The exporters of the first two must answer, so they have no time under SIGSTOP.
    assert len(shown) == 5 + 5 + 6
    assert len({y for _, y, _ in shown}) == len(shown)


def test_charts_without_values_are_left_out() -> None:
    report = _report()
    report.rows[:] = [row for row in report.rows if row.section == "life"]

    assert list(make_charts(report)) == ["life.svg"]


def test_json_is_read_back() -> None:
    report = _report()

    assert Report.from_json(report.to_json()) == report


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 2}', '{"schema": 1, "rows": [1]}'])
def test_other_documents_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a report|Expecting value"):
        Report.from_json(text)


def _bench(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "crossmem", "bench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_makes_a_page_of_an_earlier_run(tmp_path: Path) -> None:
    document, page = tmp_path / "bench.json", tmp_path / "page"
    document.write_text(_report().to_json(), "utf-8")

    done = _bench("--read", document, "--page", page)

    assert done.returncode == 0, done.stderr
    assert "One allocation of 4 KiB at a time" in done.stdout
    assert {one.name for one in page.iterdir()} == {"tables.md", "life.svg", "busy.svg"}


def test_the_command_names_a_file_that_is_no_report(tmp_path: Path) -> None:
    document = tmp_path / "bench.json"
    document.write_text("{}")

    done = _bench("--read", document)

    assert done.returncode != 0
    assert "cannot read" in done.stderr
    assert "Traceback" not in done.stderr
