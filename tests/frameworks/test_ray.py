# SPDX-License-Identifier: Apache-2.0
"""crossmem.ray with Ray itself: a driver and actors on two nodes, both on this machine."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from crossmem.conformance.peers import Peer

if find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from tests.frameworks import ray_actions
else:
    import ray_actions

ROOT = Path(__file__).parents[2]
START_S = 60
CALL_S = 90


@pytest.fixture(scope="module")
def driver() -> Iterator[Peer]:
    """Return a driver whose cluster has two nodes, so small that they start fast."""
    # Ray's sockets lie in there, and their paths must be short.
    with tempfile.TemporaryDirectory(prefix="crossmem-", dir="/tmp") as folder:
        environment = {
            "CROSSMEM_RUN_DIR": f"{folder}/run",
            "CROSSMEM_EMULATED_STATE": f"{folder}/host",
            "CROSSMEM_PLUGINS": "ray_observer",
            "RAY_DISABLE_IMPORT_WARNING": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        with Peer("emulated:0", environment=environment, tracing=False) as peer:
            peer.call(ray_actions.start, folder, within=START_S)
            yield peer
            peer.call(ray_actions.stop, within=START_S)


def test_the_example_of_the_guide(tmp_path: Path) -> None:
    guide = (ROOT / "docs/how-to/ray.md").read_text("utf-8")
    ((example,),) = [re.findall(r"^```py\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)]
    script = tmp_path / "example.py"
    script.write_text(example)
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=CALL_S,
        check=False,
        env={**os.environ, "CROSSMEM_EMULATED_STATE": str(tmp_path / "host")},
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str([2.0 * 1024 * 1024] * 2)


def test_on_one_node_arrays_are_handles(driver: Peer) -> None:
    answer = driver.call(ray_actions.send, "here", "here", within=CALL_S)

    assert answer["values"] == (2.0, 3.0, 4.0)
    assert answer["events"] == [ray_actions.HANDLE] * 3
    assert answer["written"] == -3


@pytest.mark.parametrize("as_bytes", [False, True])
def test_on_one_node_the_handle_of_a_queue_opens_it(driver: Peer, *, as_bytes: bool) -> None:
    answer = driver.call(ray_actions.send_queues, as_bytes=as_bytes, within=CALL_S)

    assert answer == ("number 1", b"SOME BYTES")


def test_between_nodes_arrays_are_copied(driver: Peer) -> None:
    answer = driver.call(ray_actions.send, "here", "there", within=CALL_S)

    assert answer["values"] == (2.0, 3.0, 4.0)
    assert answer["events"] == [ray_actions.COPY] * 3
    assert answer["written"] == 3


def test_each_message_is_judged_by_its_own_node(driver: Peer) -> None:
    answer = driver.call(ray_actions.send, "there", "here", within=CALL_S)

    assert answer["values"] == (2.0, 3.0, 4.0)
    assert answer["events"] == [ray_actions.COPY, ray_actions.HANDLE, ray_actions.COPY]


def test_an_object_is_received_again_and_again(driver: Peer) -> None:
    answer = driver.call(ray_actions.send_twice, within=CALL_S)

    assert answer == {"held": ([0], 1), "values": [5.0] * 4, "is given back": True}


def test_calls_and_results_that_wait_hold_what_their_senders_forgot(driver: Peer) -> None:
    answer = driver.call(ray_actions.send_and_forget, within=CALL_S)

    assert answer == {
        "held": ([0], 1),
        "values": [8.0, 6.0, 7.0],
        "is given back": True,
        "mine": True,
    }


def test_what_was_received_is_sent_on_as_what_it_was(driver: Peer) -> None:
    answer = driver.call(ray_actions.forward, within=CALL_S)

    assert answer == {
        "is the first one's": True,
        "middle": ([], 0),
        "left": ([1], 1),
        "is given back": True,
    }


def test_trees_keep_their_form_and_versions_on_one_node(driver: Peer) -> None:
    answer = driver.call(ray_actions.send_trees, "here", within=CALL_S)

    assert answer == {
        "name": "tree",
        "overlaps": True,
        "version": 0,
        "events": [("received", ray_actions.NBYTES * 3 // 2)],
        "is given back": True,
    }


def test_trees_keep_their_form_between_nodes(driver: Peer) -> None:
    answer = driver.call(ray_actions.send_trees, "there", within=CALL_S)

    assert answer.pop("version").endswith("has no version")
    assert answer == {
        "name": "tree",
        "overlaps": True,
        "events": [("received-copy", ray_actions.NBYTES * 3 // 2)],
        "is given back": True,
    }


def test_everything_else_goes_as_ray_has_it(driver: Peer) -> None:
    answer = driver.call(ray_actions.send_others, within=CALL_S)

    assert answer == {
        "is equal": True,
        "is Ray's own": True,
        "empty": (0,),
        "at home": 12.0,
        "events": [],
    }


def test_what_is_kept_from_being_written_stays_so_where_it_is_sent(driver: Peer) -> None:
    answer = driver.call(ray_actions.send_read_only, within=CALL_S)

    assert answer == {"ro False": False, "rw True": False, "rw advisory": True, "rw False": True}


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_tensors(driver: Peer) -> None:
    near = driver.call(ray_actions.send_tensors, "here", within=CALL_S)
    far = driver.call(ray_actions.send_tensors, "there", within=CALL_S)

    both = {"first": 14.0, "shared": 15.0, "learns": True, "other": [1.0] * 3}
    assert near == {**both, "events": [ray_actions.HANDLE], "written": -14.0}
    assert far == {**both, "events": [ray_actions.COPY], "written": 14.0}


def test_every_way_to_wait_does_on_one_node(driver: Peer) -> None:
    answer = driver.call(ray_actions.wait_in_ways, "here", within=CALL_S)

    ways = ("argument", "await", "in a thread", "future")
    assert answer == {"threads": [16.0] * 2, **dict.fromkeys(ways, 16.0)}


def test_a_copy_is_not_waited_for_where_that_would_last_for_ever(driver: Peer) -> None:
    answer = driver.call(ray_actions.wait_in_ways, "there", within=CALL_S)

    for way in ("await", "future"):
        assert "await asyncio.to_thread(ray.get, ref)" in answer.pop(way)
    assert answer == {"threads": [16.0] * 2, "argument": 16.0, "in a thread": 16.0}


@pytest.mark.parametrize("receiver", ["here", "there"])
def test_what_was_freed_is_stale(driver: Peer, receiver: str) -> None:
    answer = driver.call(ray_actions.free_early, receiver, within=CALL_S)

    assert "StaleHandleError" in answer


@pytest.mark.parametrize("receiver", ["here", "there"])
def test_a_sender_that_is_dead_is_named(driver: Peer, receiver: str) -> None:
    answer = driver.call(ray_actions.kill_sender, receiver, within=CALL_S)

    assert "OwnerGoneError" in answer


def test_receivers_that_are_killed_leak_nothing(driver: Peer) -> None:
    answer = driver.call(ray_actions.kill_receivers, within=CALL_S)

    assert answer == {"before": ([2], 1), "is given back": True}


def test_a_receiver_that_is_killed_while_it_copies_leaks_nothing(driver: Peer) -> None:
    answer = driver.call(ray_actions.kill_while_copying, "receiver", within=CALL_S)

    assert answer == {"got": "died", "is given back": True}


def test_a_copy_is_made_again_where_the_task_that_reads_is_killed(driver: Peer) -> None:
    answer = driver.call(ray_actions.kill_while_copying, "reader", within=CALL_S)

    assert answer == {"got": 20.0, "is given back": True}
