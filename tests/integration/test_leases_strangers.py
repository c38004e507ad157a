# SPDX-License-Identifier: Apache-2.0
"""Strangers who send descriptors whose last close takes a minute delay nobody."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import crossmem
from crossmem.conformance import actions, resources
from crossmem.conformance.pool import settle
from crossmem.conformance.speed import SLOWNESS
from crossmem.models import ProcessIdentity

if TYPE_CHECKING:
    from tests.integration import rogue_actions, stranger_actions
    from tests.integration.conftest import StartPeer
else:
    import rogue_actions
    import stranger_actions

NOBODY = 65534
SOON_S = 5 * SLOWNESS

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
any_user = pytest.mark.parametrize(
    "user", [pytest.param(None, id="same-user"), pytest.param(NOBODY, marks=needs_root, id="other")]
)
any_kernel = pytest.mark.parametrize("is_old", [False, True], ids=["", "before-linux-6.16"])


@any_user
@any_kernel
def test_an_exporter_serves_on(start_peer: "StartPeer", user: int | None, *, is_old: bool) -> None:
    exporter, importer, stranger = (start_peer(tracing=False) for _ in range(3))
    if is_old:
        exporter.call(stranger_actions.forget_passrights)
    blobs = [exporter.call(actions.offer, name, 4096, b"data") for name in "ab"]
    importer.call(actions.attach, "one", blobs[0])
    before = exporter.call(resources.descriptors)

    taken = stranger.call(
        stranger_actions.send_lingering_to_an_exporter, blobs[0], 12, user, within=60
    )

    assert bool(taken) == (is_old or not stranger_actions.refuses_descriptors())
    start = time.monotonic()
    importer.call(actions.attach, "two", blobs[1], timeout=SOON_S)
    importer.call(actions.unmap, "one", "two")
    for name in "ab":
        exporter.call(actions.free, name, busy="wait", timeout=SOON_S)
    assert time.monotonic() - start < SOON_S
    stranger.kill()
    assert settle(lambda: exporter.call(resources.descriptors)[len(before) :]) == []
    start = time.monotonic()
    exporter.exit()
    assert time.monotonic() - start < SOON_S


@any_kernel
@pytest.mark.parametrize("has_threads", [True, False], ids=["", "without-threads"])
def test_an_exporter_exits_although_strangers_wait(
    start_peer: "StartPeer", *, has_threads: bool, is_old: bool
) -> None:
    exporter, stranger = start_peer(tracing=False, fresh=True), start_peer(tracing=False)
    if is_old:
        exporter.call(stranger_actions.forget_passrights)
    if not has_threads:
        exporter.call(stranger_actions.close_without_threads)
    blob = exporter.call(actions.offer, "memory", 4096)
    exporter.stop()
    stranger.call(stranger_actions.send_lingering_to_an_exporter, blob, 4, None, within=60)
    start = time.monotonic()

    exporter.cont()
    exporter.exit()

    assert time.monotonic() - start < SOON_S


@any_user
@any_kernel
@pytest.mark.parametrize("is_path", [False, True], ids=["abstract", "path"])
def test_a_squatter_delays_no_importer(
    start_peer: "StartPeer", run_dir: Path, user: int | None, *, is_old: bool, is_path: bool
) -> None:
    exporter, importer, squatter = (start_peer(tracing=False) for _ in range(3))
    if is_old:
        importer.call(stranger_actions.forget_passrights)
    blob = exporter.call(actions.offer, "memory", 4096)
    before = importer.call(resources.descriptors)
    exporter.kill()
    owner: ProcessIdentity = crossmem.ShareableHandle.from_bytes(blob).owner
    squatter.call(stranger_actions.greet_with_lingering, owner, run_dir if is_path else None, user)

    start = time.monotonic()
    with pytest.raises((crossmem.OwnerGoneError, crossmem.AccessDeniedError)):
        importer.call(actions.attach, "never", blob, timeout=2)

    assert time.monotonic() - start < SOON_S
    assert settle(lambda: importer.call(resources.descriptors)[len(before) :]) == []
    start = time.monotonic()
    importer.exit()
    assert time.monotonic() - start < SOON_S


@any_kernel
@pytest.mark.parametrize("kind", rogue_actions.LINGERING)
def test_a_hostile_exporter_delays_no_importer(
    start_peer: "StartPeer", kind: str, *, is_old: bool
) -> None:
    rogue, importer = start_peer(tracing=False), start_peer(tracing=False)
    if is_old:
        importer.call(stranger_actions.forget_passrights)
    importer.call(actions.allocate, "own", 1)
    before = importer.call(resources.descriptors)
    blob = rogue.call(rogue_actions.pretend, kind)

    for _ in range(3):
        start = time.monotonic()
        with pytest.raises(
            (
                crossmem.AccessDeniedError,
                crossmem.InvalidHandleError,
                crossmem.OwnerUnresponsiveError,
            )
        ):
            importer.call(actions.attach, "never", blob, timeout=2)
        assert time.monotonic() - start < 2 + SOON_S

    rogue.kill()

    def more() -> list[str]:
        importer.call(actions.collect)
        found: list[str] = importer.call(resources.descriptors)
        return found[len(before) :]

    assert settle(more) == []
    start = time.monotonic()
    importer.exit()
    assert time.monotonic() - start < SOON_S
