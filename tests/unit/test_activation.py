# SPDX-License-Identifier: Apache-2.0
"""What crossmem.install() sets up, and what it leaves alone."""

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

import crossmem
from crossmem import activation
from crossmem.conformance.speed import SLOWNESS

pytest.importorskip("numpy")

SENDING = """
import pickle, sys
from multiprocessing.reduction import ForkingPickler
import crossmem

def sent():
    array = crossmem.empty(1000, "uint8")
    array[:] = 1
    return array, pickle.loads(ForkingPickler.dumps(array))

# Neither of them is enough.
import crossmem.multiprocessing, crossmem.ray
mine, theirs = sent()
theirs[0] = 7
print("before:", mine[0])
for _ in range(2):
    crossmem.install()
mine, theirs = sent()
theirs[0] = 7
print("after:", mine[0])
"""

RECEIVING = """
import multiprocessing, sys
import crossmem

def answer(pipe, *steps):
    array = pipe.recv()
    # This process has not called install().
    pipe.send(array[:2])
    pipe.recv()

if __name__ == "__main__":
    crossmem.install()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=answer, args=(theirs,))
    process.start()
    array = crossmem.empty(4, "uint8")
    ours.send(array)
    back = ours.recv()
    back[0] = 9
    print(array[0])
    del back
    ours.send(None)
    process.join()
"""

IMPORTING = """
import sys
import crossmem
crossmem.install()
print(sorted({"numpy", "torch", "ray", "cupy", "pydantic"} & sys.modules.keys()))
"""


def run(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *(arguments or ("-c", program))],
        check=False,
        capture_output=True,
        text=True,
        timeout=60 * SLOWNESS,
    )
    assert done.stderr == ""
    return done.stdout


def test_arrays_are_copied_before_it_and_handles_after_it() -> None:
    assert run(SENDING) == "before: 1\nafter: 7\n"


def test_a_process_that_receives_sends_on_without_it(tmp_path: Any) -> None:
    program = tmp_path / "program.py"
    program.write_text(RECEIVING)

    assert run("", str(program)) == "9\n"


def test_it_imports_no_library() -> None:
    assert run(IMPORTING) == "[]\n"


def test_it_registers_with_a_ray_that_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = []
    monkeypatch.setattr(activation, "register_ray", lambda: registered.append("ray"))
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    crossmem.install()
    crossmem.install()
    assert registered == ["ray", "ray"]

    monkeypatch.delitem(sys.modules, "ray")
    crossmem.install()
    assert registered == ["ray", "ray"]


def test_a_ray_that_cannot_be_used_is_told_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def register() -> None:
        raise crossmem.UnsupportedError("Ray 2.0 has no lock", hint="install another Ray")

    monkeypatch.setattr(activation, "register_ray", register)
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    with pytest.warns(RuntimeWarning, match=r"copies arrays: Ray 2\.0 has no lock"):
        crossmem.install()
