# SPDX-License-Identifier: Apache-2.0
"""The wheel has the packages and entry points that users and plugins rely on, and no more."""

import configparser
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from crossmem.conformance.speed import SLOWNESS

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "crossmem",
    "crossmem_ascend",
    "crossmem_emulated",
    "crossmem_hip",
    "crossmem_pytest",
}
BUILD_TIMEOUT_S = 110 * SLOWNESS

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    # With what is installed: an index may not answer while the tests run.
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "-w", folder, ROOT],
        check=True,
        timeout=BUILD_TIMEOUT_S,
    )
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        yield wheel


def read_metadata(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = (path for path in wheel.namelist() if path.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode()


def test_only_our_packages_are_installed(wheel: zipfile.ZipFile) -> None:
    folders = {path.split("/")[0] for path in wheel.namelist()}

    assert {folder for folder in folders if not folder.endswith(".dist-info")} == PACKAGES


def test_every_package_is_typed(wheel: zipfile.ZipFile) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(wheel.namelist())


def test_every_module_of_the_tree_is_shipped(wheel: zipfile.ZipFile) -> None:
    tree = {
        str(path.relative_to(parent))
        for parent in (ROOT / "core", *(ROOT / "plugins").iterdir())
        for path in parent.rglob("*.py")
    }

    assert {path for path in wheel.namelist() if path.endswith(".py")} == tree


def test_entry_points(wheel: zipfile.ZipFile) -> None:
    parser = configparser.ConfigParser()
    parser.read_string(read_metadata(wheel, "entry_points.txt"))

    assert {section: dict(parser[section]) for section in parser.sections()} == {
        "console_scripts": {"crossmem": "crossmem.cli:main"},
        "crossmem": {
            "ascend": "crossmem_ascend.hooks",
            "emulated": "crossmem_emulated.hooks",
            "hip": "crossmem_hip.hooks",
        },
        "pytest11": {"crossmem": "crossmem_pytest"},
    }


def test_licence_is_shipped(wheel: zipfile.ZipFile) -> None:
    assert "Apache License" in read_metadata(wheel, "licenses/LICENSE")
