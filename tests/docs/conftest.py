# SPDX-License-Identifier: Apache-2.0
"""Pages of the documentation, as these tests look at them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TOP_LEVEL = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")

_FENCE = re.compile(r"^(`{3,})(.*?)\n(.*?)^\1\s*?$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """One Markdown file."""

    path: Path
    text: str

    @property
    def prose(self) -> str:
        """The text without fenced blocks."""
        return _FENCE.sub("", self.text)

    @property
    def headings(self) -> dict[int, list[str]]:
        """Headings by level, without their markup."""
        found: dict[int, list[str]] = {level: [] for level in range(1, 7)}
        for marks, title in re.findall(r"^(#{1,6}) (.+)$", self.prose, re.MULTILINE):
            found[len(marks)].append(title.strip().replace("`", ""))
        return found

    def blocks(self, language: str) -> list[str]:
        """Fenced blocks of a language."""
        return [body for _, info, body in _FENCE.findall(self.text) if info.strip() == language]

    def section(self, title: str) -> str:
        """The text under a heading, up to the next heading of any level."""
        pattern = rf"^#{{1,6}} `?{re.escape(title)}`?$\n(.*?)(?=^#{{1,6}} |\Z)"
        match = re.search(pattern, self.text, re.DOTALL | re.MULTILINE)
        assert match is not None, f"{self.path} has no heading {title!r}"
        return match[1]


def all_paths() -> list[Path]:
    pages = (path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
    return [*sorted(pages), *(ROOT / name for name in TOP_LEVEL)]


def read(path: Path) -> Page:
    return Page(path, path.read_text("utf-8"))


@pytest.fixture
def page() -> Callable[[str], Page]:
    """Return a function that reads a page, named as below ``docs``."""
    return lambda name: read(DOCS / name)


@pytest.fixture
def pages() -> list[Page]:
    """Return every page of the documentation, and those at the top of the project."""
    return [read(path) for path in all_paths()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that asks for ``any_page``, or for one with examples, each of them."""
    found = [read(path) for path in all_paths()]
    chosen = {
        "any_page": found,
        "page_with_examples": [one for one in found if one.blocks("python")],
    }
    for fixture in chosen.keys() & set(metafunc.fixturenames):
        names = [str(one.path.relative_to(ROOT)) for one in chosen[fixture]]
        metafunc.parametrize(fixture, chosen[fixture], ids=names)
