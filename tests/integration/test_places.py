# SPDX-License-Identifier: Apache-2.0
"""Where crossmem runs: read-only and full file systems, a missing /proc, names that are taken."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem.conformance import actions, forks, resources
from crossmem.conformance.peers import Peer
from crossmem.conformance.speed import SLOWNESS
from crossmem.control.endpoint import new_socket, socket_path

if TYPE_CHECKING:
    from tests.integration import lease_actions, namespace_actions, place_actions
    from tests.integration.conftest import StartPeer
else:
    import lease_actions
    import namespace_actions
    import place_actions

NBYTES = 4096
NOBODY, STRANGER = 65534, 1234567
MAX_TEXT = 200

_NO_MOUNTS = namespace_actions.why_not("mount")
_NO_CONTAINERS = namespace_actions.why_not("net", "pid", "mount")

needs_mounts = pytest.mark.skipif(
    _NO_MOUNTS is not None, reason=f"no mount namespaces here: {_NO_MOUNTS}"
)
needs_containers = pytest.mark.skipif(
    _NO_CONTAINERS is not None, reason=f"no network and pid namespaces here: {_NO_CONTAINERS}"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def refused(
    kind: type[crossmem.CrossmemError], call: Callable[[], object]
) -> crossmem.CrossmemError:
    """Return the error of a peer, which has one line and a hint."""
    with pytest.raises(kind) as caught:
        call()
    assert "\n" not in caught.value.message
    assert caught.value.hint is not None
    assert len(caught.value.hint) <= MAX_TEXT
    return caught.value


def refusal(kind: type[crossmem.CrossmemError], call: Callable[[], object]) -> str:
    """Return the one line that an error of a peer says, and its hint."""
    return str(refused(kind, call))


def attaches(importer: Peer, blob: bytes) -> None:
    importer.call(actions.attach, "mapped", blob, timeout=5 * SLOWNESS)
    assert importer.call(actions.read, "mapped", 4) == b"data"
    importer.call(actions.unmap, "mapped")


# The run directory ------------------------------------------------------------------------------


def open_things(peer: Peer) -> tuple[list[str], list[str]]:
    return peer.call(resources.descriptors), peer.call(resources.threads)


def leave_a_dead_socket(run_dir: Path) -> Path:
    path = run_dir / "0123456789abcdef01234567.sock"
    with new_socket() as dead:
        dead.bind(str(path))
    return path


@needs_mounts
@pytest.mark.parametrize("has_leftover", [False, True])
def test_a_read_only_run_directory_is_named(
    start_peer: "StartPeer", run_dir: Path, *, has_leftover: bool
) -> None:
    left = leave_a_dead_socket(run_dir) if has_leftover else None
    exporter, importer = start_peer(tracing=False), start_peer()
    exporter.call(namespace_actions.make_readonly, str(run_dir))
    exporter.call(actions.allocate, "memory", NBYTES)
    exporter.call(actions.write, "memory", b"data")
    before = open_things(exporter)

    for _ in range(2):
        text = refusal(crossmem.ConfigurationError, lambda: exporter.call(actions.export, "memory"))
        assert str(run_dir) in text
        assert "Read-only file system" in text
        assert "CROSSMEM_RUN_DIR" in text
        assert open_things(exporter) == before

    exporter.call(namespace_actions.unmount, str(run_dir))
    attaches(importer, exporter.call(actions.export, "memory"))
    assert left is None or not left.exists()


@needs_mounts
def test_a_run_directory_that_cannot_be_made_is_named(
    start_peer: "StartPeer", run_dir: Path
) -> None:
    exporter = start_peer(tracing=False, CROSSMEM_RUN_DIR=str(run_dir / "mine"))
    exporter.call(namespace_actions.make_readonly, str(run_dir))

    text = refusal(
        crossmem.ConfigurationError, lambda: exporter.call(actions.offer, "memory", NBYTES)
    )

    assert str(run_dir / "mine") in text
    assert "Read-only file system" in text
    assert "CROSSMEM_RUN_DIR" in text


@needs_mounts
def test_a_run_directory_that_becomes_read_only_does_not_disturb_the_exit(
    start_peer: "StartPeer", run_dir: Path
) -> None:
    exporter = start_peer(tracing=False)
    exporter.call(namespace_actions.own_mounts)
    exporter.call(actions.offer, "memory", NBYTES, b"data")
    exporter.call(namespace_actions.make_readonly_here, str(run_dir))

    exporter.request_exit()

    assert exporter.wait_exit(within=30 * SLOWNESS) == 0
    assert "Traceback" not in exporter.output()


@needs_root
@pytest.mark.parametrize("has_leftover", [False, True])
def test_a_run_directory_without_permission_to_write_is_named(
    start_peer: "StartPeer", run_dir: Path, *, has_leftover: bool
) -> None:
    if has_leftover:
        os.chown(leave_a_dead_socket(run_dir), NOBODY, NOBODY)
    os.chown(run_dir, NOBODY, NOBODY)
    run_dir.chmod(0o500)
    exporter = start_peer()
    exporter.call(actions.allocate, "warm", 1)

    text = refusal(
        crossmem.ConfigurationError,
        lambda: exporter.call(forks.in_child, place_actions.offer_fresh, uid=NOBODY),
    )

    assert str(run_dir) in text
    assert "it has owner 65534 and mode 0500" in text
    assert "CROSSMEM_RUN_DIR" in text

    run_dir.chmod(0o700)
    exporter.call(forks.in_child, place_actions.offer_fresh, uid=NOBODY)


@pytest.mark.parametrize("suffix", [".sock", ".new"])
def test_a_directory_with_the_name_of_the_servers_socket_is_named(
    start_peer: "StartPeer", run_dir: Path, suffix: str
) -> None:
    exporter, importer = start_peer(), start_peer()
    path = socket_path(run_dir, exporter.call(lease_actions.identity)).with_suffix(suffix)
    path.mkdir()
    exporter.call(actions.allocate, "memory", NBYTES)
    exporter.call(actions.write, "memory", b"data")
    before = open_things(exporter)

    text = refusal(crossmem.ConfigurationError, lambda: exporter.call(actions.export, "memory"))

    assert path.name in text
    assert "Is a directory" in text
    assert "remove" in text
    assert open_things(exporter) == before
    assert list(run_dir.iterdir()) == [path]

    path.rmdir()
    attaches(importer, exporter.call(actions.export, "memory"))


@pytest.mark.parametrize("suffix", [".sock", ".new"])
@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_file_with_the_name_of_the_servers_socket_is_replaced(
    start_peer: "StartPeer", run_dir: Path, suffix: str, kind: str
) -> None:
    exporter, importer = start_peer(), start_peer()
    path = socket_path(run_dir, exporter.call(lease_actions.identity)).with_suffix(suffix)
    if kind == "file":
        path.touch()
    else:
        path.symlink_to(run_dir / "nothing")

    attaches(importer, exporter.call(actions.offer, "memory", NBYTES, b"data"))

    assert list(run_dir.iterdir()) == [path.with_suffix(".sock")]
    exporter.exit()
    assert list(run_dir.iterdir()) == []


def test_what_only_looks_like_a_leftover_stays(start_peer: "StartPeer", run_dir: Path) -> None:
    others = [run_dir / f"{name}{suffix}" for name in "abc" for suffix in (".sock", ".new")]
    for path in others[:2]:
        path.mkdir()
    for path in others[2:4]:
        path.write_bytes(b"mine")
    for path in others[4:]:
        path.symlink_to(run_dir / "nothing")
    dead = leave_a_dead_socket(run_dir)
    exporter, importer = start_peer(), start_peer()

    attaches(importer, exporter.call(actions.offer, "memory", NBYTES, b"data"))

    exporter.exit()
    assert not dead.exists()
    assert sorted(run_dir.iterdir()) == sorted(others)
    assert others[2].read_bytes() == b"mine"


@pytest.mark.parametrize("kind", ["directory", "file", "link", "loop"])
def test_importers_pass_by_what_is_no_socket(
    start_peer: "StartPeer", tmp_path: Path, kind: str
) -> None:
    exporter, importer = start_peer(), start_peer(CROSSMEM_RUN_DIR=str(tmp_path))
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    place_other(kind, socket_path(tmp_path, exporter.call(lease_actions.identity)))

    attaches(importer, blob)


@needs_containers
@pytest.mark.parametrize("kind", ["directory", "file", "link", "loop"])
def test_what_is_no_socket_does_not_tell_that_an_exporter_is_gone(
    start_peer: "StartPeer", tmp_path: Path, kind: str
) -> None:
    exporter = start_peer(tracing=False)
    importer = start_peer(CROSSMEM_RUN_DIR=str(tmp_path))
    exporter.call(namespace_actions.leave_namespaces, "net")
    blob = exporter.call(actions.offer, "memory", NBYTES, b"data")
    path = socket_path(tmp_path, exporter.call(lease_actions.identity))
    place_other(kind, path)

    error = refused(crossmem.WrongHostError, lambda: importer.call(actions.attach, "never", blob))

    assert str(path) in error.details


def place_other(kind: str, path: Path) -> None:
    if kind == "directory":
        path.mkdir()
    elif kind == "file":
        path.touch()
    else:
        path.symlink_to("nothing" if kind == "link" else path.name)


# Many servers -----------------------------------------------------------------------------------


def test_starting_a_server_does_not_disturb_the_others(
    start_peer: "StartPeer", run_dir: Path
) -> None:
    dead = [run_dir / f"{number:024x}.sock" for number in range(100, 132)]
    for path in dead:
        with new_socket() as left:
            left.bind(str(path))
    live: list[socket.socket] = []
    try:
        for number in range(32):
            listener = new_socket()
            live.append(listener)
            listener.bind(str(run_dir / f"{number:024x}{'.new' if number % 4 == 0 else '.sock'}"))
            # One of four is about to listen: its path is taken already.
            if number % 4:
                listener.listen(100)
        paths = {Path(one.getsockname()) for one in live}
        exporter, importer = start_peer(), start_peer()

        attaches(importer, exporter.call(actions.offer, "memory", NBYTES, b"data"))

        own = socket_path(run_dir, exporter.call(lease_actions.identity))
        assert set(run_dir.iterdir()) == {*paths, own}
        assert [connections_to(one) for one in live] == [0] * 32
    finally:
        for one in live:
            one.close()


def connections_to(listener: socket.socket) -> int:
    """Return how many connections a socket was sent."""
    found = 0
    while True:
        try:
            listener.accept()[0].close()
        except OSError:
            return found
        found += 1


@needs_containers
def test_a_server_in_other_namespaces_is_not_taken_for_a_dead_one(
    start_peer: "StartPeer", run_dir: Path
) -> None:
    exporter, newcomer = start_peer(tracing=False), start_peer()
    blobs, _pid = exporter.call(
        namespace_actions.in_pid_namespace,
        namespace_actions.offer_in_namespace,
        proc=True,
        also=("net",),
    )
    (path,) = run_dir.iterdir()

    newcomer.call(actions.offer, "memory", NBYTES)

    assert path in run_dir.iterdir()
    attaches(start_peer(), blobs[0])


# /proc ------------------------------------------------------------------------------------------


@needs_mounts
def test_without_proc_the_error_says_what_to_mount(start_peer: "StartPeer") -> None:
    blob = start_peer().call(actions.offer, "memory", NBYTES, b"data")
    peer = start_peer(tracing=False)
    peer.call(namespace_actions.mount_over, "/proc", "tmpfs")

    for call in (
        lambda: peer.call(actions.allocate, "memory", NBYTES),
        lambda: peer.call(actions.attach, "mapped", blob),
        lambda: peer.call(place_actions.share_and_receive),
    ):
        text = refusal(crossmem.ConfigurationError, call)
        assert "/proc/" in text
        assert "mount -t proc proc /proc" in text

    # The remedy works, without a new process.
    peer.call(namespace_actions.unmount, "/proc")
    attaches(peer, blob)


@needs_mounts
def test_a_proc_of_another_pid_namespace_is_told(start_peer: "StartPeer") -> None:
    """Another pid namespace in /proc has no entry for a process that is not in it."""
    peer = start_peer(tracing=False)

    text = refusal(
        crossmem.ConfigurationError, lambda: peer.call(place_actions.see_only_inner_processes)
    )

    assert "/proc/" in text
    assert "mount -t proc proc /proc" in text


@needs_mounts
@needs_root
@pytest.mark.parametrize("is_old", [False, True], ids=["pidfds", "before-6.5"])
def test_a_proc_that_hides_other_users_does_not_make_them_dead(
    start_peer: "StartPeer", run_dir: Path, *, is_old: bool
) -> None:
    exporter, importer = start_peer(tracing=False), start_peer(tracing=False)
    # The run directory is the exporter's alone; the importer uses the abstract address.
    os.chown(run_dir, NOBODY, NOBODY)
    for peer in (exporter, importer):
        peer.call(namespace_actions.mount_over, "/proc", "proc", "hidepid=2")
        if is_old:
            peer.call(place_actions.be_old)
        peer.call(actions.allocate, "warm", 1)
    blob = exporter.call(
        forks.in_child, place_actions.offer_fresh, STRANGER, uid=NOBODY, stays=True
    )

    found = importer.call(forks.in_child, place_actions.attach_and_read, blob, uid=STRANGER)

    assert found == b"data"
