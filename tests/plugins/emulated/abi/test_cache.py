# SPDX-License-Identifier: Apache-2.0
"""What is kept is whole and this user's own, whoever builds it and whatever ends a builder."""

import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crossmem.conformance.speed import SLOWNESS
from crossmem.errors import ConfigurationError
from crossmem_emulated.abi.cache import cache_folder, kept, stamp_of
from crossmem_emulated.abi.held import HeldFolder, remove_abandoned

DEADLINE_S = 30 * SLOWNESS
NAMES = {"libtoy.so.1", "libtoy.so", "contents.json"}

# A builder that waits, in the middle and at the end of its work, to be told to go on.
BUILDER = """
import os, sys
from crossmem_emulated.abi.cache import kept
def make(work, folder):
    (work / "libtoy.so.1").write_bytes(b"library")
    print("making", flush=True)
    sys.stdin.readline()
    (work / "libtoy.so").symlink_to("libtoy.so.1")
print(kept("toy", ["1"], make, stamp="s", environ=os.environ), flush=True)
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def start(environ: dict[str, str]) -> Iterator[Callable[[], "subprocess.Popen[str]"]]:
    """Return a function that starts a builder, and returns when it is in the middle of its work."""
    started: list[subprocess.Popen[str]] = []

    def do() -> "subprocess.Popen[str]":
        one = subprocess.Popen(
            [sys.executable, "-c", BUILDER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environ},
        )
        started.append(one)
        assert one.stdout is not None
        assert one.stdout.readline() == "making\n"
        return one

    yield do
    for one in started:
        one.kill()
        one.communicate(timeout=DEADLINE_S)


def make(work: Path, _folder: Path) -> None:
    (work / "libtoy.so.1").write_bytes(b"library")
    (work / "libtoy.so").symlink_to("libtoy.so.1")


def get(environ: dict[str, str], made: Callable[[Path, Path], None] = make) -> Path:
    return kept("toy", ["1"], made, stamp="s", environ=environ)


def never(_work: Path, _folder: Path) -> None:
    raise AssertionError("there is nothing to build")


def works(environ: dict[str, str]) -> list[str]:
    return sorted(path.name for path in cache_folder(environ).glob("build-*"))


def test_where_libraries_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    assert cache_folder({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/crossmem/abi")
    # What is not absolute does not count, says the standard that names the variable.
    assert cache_folder({"XDG_CACHE_HOME": "caches"}) == tmp_path / ".cache" / "crossmem" / "abi"


def test_what_was_built_is_used(environ: dict[str, str]) -> None:
    # Of a group that everybody of this user's is in, as some systems have it.
    before = os.umask(0o002)
    try:
        folder = get(environ)
    finally:
        os.umask(before)

    assert {path.name for path in folder.iterdir()} == NAMES
    assert get(environ, never) == folder
    assert stamp_of(folder) == "s"
    assert stamp_of(folder / "nowhere") == ""
    assert works(environ) == []
    for one in (folder, *folder.parents[:2], folder / "libtoy.so.1"):
        assert one.stat().st_mode & 0o022 == 0


@pytest.mark.parametrize("what", ["machine", "libc_ver"])
def test_another_machine_has_its_own(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    folder = get(environ)
    monkeypatch.setattr(platform, what, lambda: "other" if what == "machine" else ("c", "9"))

    assert get(environ) != folder
    monkeypatch.undo()
    assert get(environ, never) == folder


# Damage ------------------------------------------------------------------------------------------


def _remove(folder: Path) -> None:
    (folder / "libtoy.so.1").unlink()


def _truncate(folder: Path) -> None:
    (folder / "libtoy.so.1").write_bytes(b"lib")


def _change(folder: Path) -> None:
    (folder / "libtoy.so.1").write_bytes(b"LIBRARY")


def _remove_link(folder: Path) -> None:
    (folder / "libtoy.so").unlink()


def _add(folder: Path) -> None:
    (folder / "libc.so.6").write_bytes(b"something else")


def _remove_list(folder: Path) -> None:
    (folder / "contents.json").unlink()


def _tear_list(folder: Path) -> None:
    path = folder / "contents.json"
    path.write_bytes(path.read_bytes()[:-20])


def _empty_list(folder: Path) -> None:
    (folder / "contents.json").write_text("[]")


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


DAMAGE = [
    *[_remove, _truncate, _change, _remove_link, _add],
    *[_remove_list, _tear_list, _empty_list, _empty],
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_built_again(
    environ: dict[str, str], damage: Callable[[Path], None]
) -> None:
    folder = get(environ)
    damage(folder)

    assert get(environ) == folder
    assert {path.name for path in folder.iterdir()} == NAMES
    assert (folder / "libtoy.so").read_bytes() == b"library"
    assert get(environ, never) == folder
    assert works(environ) == []


def test_builders_that_replace_what_is_damaged_at_once(
    environ: dict[str, str], start: Callable[[], "subprocess.Popen[str]"]
) -> None:
    folder = get(environ)
    _truncate(folder)
    builders = [start() for _ in range(3)]
    for one in builders:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    outputs = [one.communicate(timeout=DEADLINE_S)[0].strip() for one in builders]

    assert outputs == [str(folder)] * 3
    assert get(environ, never) == folder
    assert works(environ) == []


def test_what_a_killed_builder_left(
    environ: dict[str, str], start: Callable[[], "subprocess.Popen[str]"]
) -> None:
    dead, living = start(), start()
    dead.kill()
    dead.wait(DEADLINE_S)
    assert len(works(environ)) == 2

    folder = get(environ)

    # That of the builder who still works is left to him.
    assert len(works(environ)) == 1
    assert living.communicate("go\n", timeout=DEADLINE_S)[0].strip() == str(folder)
    assert works(environ) == []
    assert get(environ, never) == folder


def test_a_builder_that_fails_leaves_nothing(environ: dict[str, str]) -> None:
    def fail(work: Path, _folder: Path) -> None:
        make(work, _folder)
        raise ConfigurationError("no")

    with pytest.raises(ConfigurationError, match="no"):
        get(environ, fail)

    assert list(cache_folder(environ).iterdir()) == []


# Who else could have written it ------------------------------------------------------------------


@pytest.mark.parametrize("place", ["root", "parent", "folder", "file", "list"])
def test_what_others_can_write_is_refused(environ: dict[str, str], place: str) -> None:
    folder = get(environ)
    path = {
        "root": folder.parent,
        "parent": folder.parent.parent,
        "folder": folder,
        "file": folder / "libtoy.so.1",
        "list": folder / "contents.json",
    }[place]
    path.chmod(path.stat().st_mode | 0o020)

    with pytest.raises(ConfigurationError, match="is not safe to load: it must be") as caught:
        get(environ)
    assert str(path) in caught.value.details
    assert "XDG_CACHE_HOME" in str(caught.value.hint)


@pytest.mark.parametrize("place", ["root", "parent", "folder", "file", "link"])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_another_user_is_refused(environ: dict[str, str], place: str) -> None:
    folder = get(environ)
    path = {
        "root": folder.parent,
        "parent": folder.parent.parent,
        "folder": folder,
        "file": folder / "libtoy.so.1",
        "link": folder / "libtoy.so",
    }[place]
    os.chown(path, 12345, -1, follow_symlinks=False)

    with pytest.raises(ConfigurationError, match="of user 12345 with mode"):
        get(environ)


@pytest.mark.parametrize("place", ["root", "folder", "file"])
def test_a_link_in_place_of_what_was_built_is_refused(environ: dict[str, str], place: str) -> None:
    folder = get(environ)
    path = {"root": folder.parent, "folder": folder, "file": folder / "libtoy.so.1"}[place]
    elsewhere = path.rename(folder.parent.parent / "elsewhere")
    path.symlink_to(elsewhere)

    with pytest.raises(ConfigurationError, match=r"it is a link of user"):
        get(environ)


def test_a_cache_that_everybody_can_replace(environ: dict[str, str], tmp_path: Path) -> None:
    get(environ)
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(ConfigurationError, match="every user can replace"):
        get(environ)

    # As /tmp is: who has nothing there can replace nothing.
    (tmp_path / "cache").chmod(0o1777)
    get(environ, never)


# Folders that are held ---------------------------------------------------------------------------


def test_a_held_folder(tmp_path: Path) -> None:
    held = HeldFolder(tmp_path, "held-")
    remove_abandoned(tmp_path, "held-")
    assert held.path.is_dir()

    with warnings.catch_warnings():
        # Other tests have left threads, and newer Pythons warn of that.
        warnings.simplefilter("ignore")
        child = os.fork()
    if not child:
        held.remove()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert held.path.is_dir()
    for _ in range(2):
        held.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_does_not_keep_a_folder(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from crossmem_emulated.abi.held import HeldFolder
held = HeldFolder(Path(sys.argv[1]), "held-")
reader, writer = os.pipe()
if os.fork():
    # Until the child has run, it has not given anything up.
    os.read(reader, 1)
    os.kill(os.getpid(), signal.SIGKILL)
os.write(writer, b"1")
sys.stdin.readline()
"""
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE) as one:
        assert one.wait(DEADLINE_S) == -9
        (left,) = tmp_path.iterdir()
        remove_abandoned(tmp_path, "held-")
        assert not left.exists()
        assert list(tmp_path.iterdir()) == []


def test_a_folder_is_not_taken_away_while_it_is_made(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from crossmem_emulated.abi.held import remove_abandoned
print("ready", flush=True)
while True:
    remove_abandoned(Path(sys.argv[1]), "held-")
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as sweeper:
        try:
            assert sweeper.stdout is not None
            sweeper.stdout.readline()
            for _ in range(500):
                held = HeldFolder(tmp_path, "held-")
                (held.path / "file").touch()
                held.remove()
        finally:
            sweeper.kill()
    remove_abandoned(tmp_path, "held-")

    assert list(tmp_path.iterdir()) == []


def test_what_is_no_held_folder_stays(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "held-link").symlink_to(target)
    (tmp_path / "held-file").touch()

    remove_abandoned(tmp_path, "held-")

    assert {path.name for path in tmp_path.iterdir()} == {"target", "held-link", "held-file"}
