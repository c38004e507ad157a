# SPDX-License-Identifier: Apache-2.0
"""What the vendors' documents leave open about sharing, asked of a real device through CuPy.

``python tests/hardware/questions.py`` prints a table of questions, the device's answers and those
of the emulation's profile, for docs/hardware.md. ``--profile NAME`` asks that emulation alone.

Numbers are the codes that calls end with; 0 is success.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

_EMULATED: Final = Path(__file__).parents[1] / "plugins/emulated"
_FOLDERS: Final = [str(_EMULATED / "hip"), str(_EMULATED)]
sys.path[:0] = _FOLDERS

if TYPE_CHECKING:
    from tests.plugins.emulated.hip.hip_actor import Actor

__all__ = ["QUESTIONS"]

_BLOCK: Final = 2 << 20
_SMALL: Final = 4096
_DEADLINE_S: Final = 300
_READ: Final = 1
_NO_VIRTUAL: Final = "CuPy lacks these functions"
_environment: dict[str, str] = {}
"""The environment of the processes of the question that is asked."""
_ANOTHER_NAMESPACE: Final = ("unshare", "--pid", "--fork")

Start = Callable[[], "Actor"]
QUESTIONS: Final[dict[str, tuple[str, Callable[[Start], str]]]] = {}
"""By name: the question, and what finds the answer with processes of its own."""

_Ask = Callable[[Start], str]


def _question(text: str) -> Callable[[_Ask], _Ask]:
    def register(function: _Ask) -> _Ask:
        QUESTIONS[function.__name__.replace("_", "-")] = (text, function)
        return function

    return register


def _code(function: Callable[..., Any], *arguments: Any) -> str:
    try:
        function(*arguments)
    except EOFError:
        return "the process dies"
    except RuntimeError as error:
        # CuPy raises plain ones for what its build does not have.
        return str(getattr(error, "status", error))
    return "0"


@_question("Which address does opening give where one inside of an allocation was exported?")
def interior_address(start: Start) -> str:
    exporter, importer = start(), start()
    pointer, _ = exporter.export(b"base".ljust(_SMALL) + b"inside")
    opened = importer.open(exporter.rt.ipcGetMemHandle(pointer + _SMALL))
    return "the base" if importer.read(opened, 4) == b"base" else "the one that was exported"


@_question("What do the flags 0, 2 and 123 answer?")
def other_flags(start: Start) -> str:
    exporter = start()
    found = []
    for flags in (0, 2, 123):
        _, handle = exporter.export()
        found.append(_code(start().rt.ipcOpenMemHandle, handle, flags))
    return ", ".join(found)


@_question("What do zeros, ones and a handle with one changed bit answer?")
def bad_handles(start: Start) -> str:
    _, handle = start().export()
    changed = bytes((handle[0] ^ 1, *handle[1:]))
    bad = (bytes(64), b"\xff" * 64, changed)
    return ", ".join(_code(start().open, one) for one in bad)


@_question("Does a second open give the same address, and how often is it closed?")
def second_open(start: Start) -> str:
    _, handle = start().export()
    importer = start()
    first, second = importer.open(handle), importer.open(handle)
    closes = [_code(importer.rt.ipcCloseMemHandle, first) for _ in range(3)]
    return f"{'the same' if first == second else 'another'}; closing: {', '.join(closes)}"


@_question("What does opening one's own export answer?")
def own_export(start: Start) -> str:
    exporter = start()
    return _code(exporter.open, exporter.export()[1])


@_question("What does closing one's own allocation answer?")
def closing_what_is_owned(start: Start) -> str:
    exporter = start()
    return _code(exporter.rt.ipcCloseMemHandle, exporter.export()[0])


@_question("What does freeing an import answer?")
def freeing_an_import(start: Start) -> str:
    _, handle = start().export()
    importer = start()
    return _code(importer.rt.free, importer.open(handle))


@_question("What does opening answer after the exporter freed, where it was open and elsewhere?")
def opening_what_was_freed(start: Start) -> str:
    exporter, importer, other = start(), start(), start()
    pointer, handle = exporter.export()
    importer.open(handle)
    exporter.rt.free(pointer)
    return f"{_code(importer.open, handle)}; {_code(other.open, handle)}"


@_question("Does an importer keep the data when the exporter frees?")
def reading_what_was_freed(start: Start) -> str:
    exporter, importer = start(), start()
    pointer, handle = exporter.export(b"data")
    opened = importer.open(handle)
    exporter.rt.free(pointer)
    return _reading(importer, opened)


@_question("Does an importer keep the data when the exporter is killed?")
def reading_what_died(start: Start) -> str:
    exporter, importer = start(), start()
    _, handle = exporter.export(b"data")
    opened = importer.open(handle)
    exporter.kill()
    return _reading(importer, opened)


@_question("What does opening answer after the exporter was killed, and does it take a second?")
def opening_what_died(start: Start) -> str:
    exporter, importer = start(), start()
    _, handle = exporter.export()
    importer.rt.deviceSynchronize()
    exporter.kill()
    begin = time.monotonic()
    code = _code(importer.open, handle)
    return f"{code}; {'yes' if time.monotonic() - begin >= 1 else 'no'}"


@_question("Is the handle another one where memory is allocated at the same address again?")
def same_address_again(start: Start) -> str:
    exporter = start()
    first, old = exporter.export()
    exporter.rt.free(first)
    second, new = exporter.export()
    if first != second:
        return "the address was another one"
    return "no" if old == new else "yes"


@_question("Is the handle the same where the same memory is exported again?")
def same_memory_again(start: Start) -> str:
    exporter = start()
    pointer, first = exporter.export()
    return "yes" if exporter.rt.ipcGetMemHandle(pointer) == first else "no"


@_question("Do two small allocations share a block that an importer reaches as a whole?")
def neighbours(start: Start) -> str:
    exporter, importer = start(), start()
    first, second = exporter.rt.malloc(_SMALL), exporter.rt.malloc(_SMALL)
    if abs(second - first) >= _BLOCK:
        return "they are not in one block"
    exporter.write(first, b"mine")
    exporter.write(second, b"not yours")
    opened = importer.open(exporter.rt.ipcGetMemHandle(first))
    # Where the block is opened, its beginning is what was opened.
    for place in (opened + second - first, opened + second % _BLOCK):
        try:
            if importer.call("read_by_kernel", place, 9) == b"not yours":
                return "yes"
        except (RuntimeError, EOFError):
            continue
    return "no"


@_question("Are whole blocks of 2 MiB shared with others' small allocations?")
def whole_blocks(start: Start) -> str:
    exporter = start()
    small = [exporter.rt.malloc(_SMALL) for _ in range(4)]
    pointer = exporter.rt.malloc(_BLOCK)
    small += [exporter.rt.malloc(_SMALL) for _ in range(4)]
    if pointer % _BLOCK:
        return f"they do not begin at a multiple: {pointer % _BLOCK} bytes after one"
    return "yes" if any(pointer <= one < pointer + _BLOCK for one in small) else "no"


@_question("What do attributes say of an import: type, and its device?")
def attributes_of_an_import(start: Start) -> str:
    _, handle = start().export()
    importer = start()
    kind, device, *_ = importer.call("attributes", importer.open(handle))
    return f"{kind}, {device}"


@_question("What does exporting managed memory answer?")
def managed_memory(start: Start) -> str:
    exporter = start()
    return _code(exporter.rt.ipcGetMemHandle, exporter.rt.mallocManaged(_BLOCK))


@_question("What does exporting memory of a pool answer?")
def pooled_memory(start: Start) -> str:
    exporter = start()
    try:
        pointer = exporter.rt.mallocAsync(_BLOCK, 0)
    except RuntimeError as error:
        return str(error)
    return _code(exporter.rt.ipcGetMemHandle, pointer)


@_question("What do counting devices, allocating and opening answer in a forked child?")
def forked_child(start: Start) -> str:
    _, handle = start().export()
    importer = start()
    importer.open(handle)
    calls = (("rt.getDeviceCount",), ("rt.malloc", _BLOCK), ("open", handle))
    return ", ".join(map(str, importer.call("in_fork", *calls)))


@_question("Does opening give access to another device's memory by itself?")
def another_device(start: Start) -> str:
    exporter, importer = start(), start()
    if exporter.rt.getDeviceCount() == 1:
        return "there is one device"
    _, handle = exporter.export(b"data")
    importer.rt.setDevice(1)
    return _reading(importer, importer.open(handle))


@_question("What does a capture in one thread answer to a synchronise in another?")
def capture_elsewhere(start: Start) -> str:
    actor = start()
    stream = actor.rt.streamCreateWithFlags(1)
    if code := _code(actor.rt.streamBeginCapture, stream, 0).strip("0"):
        return code
    codes = actor.call("in_thread_codes", ("rt.deviceSynchronize",), ("rt.malloc", _BLOCK))
    return f"{', '.join(map(str, codes))}; ending it: {_code(actor.rt.streamEndCapture, stream)}"


@_question("What does opening answer in another pid namespace?")
def another_namespace(start: Start) -> str:
    _, handle = start().export()
    script = [sys.executable, __file__, "--open", handle.hex()]
    done = subprocess.run(
        [*_ANOTHER_NAMESPACE, *script],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
        env=_environment,
    )
    return done.stdout.strip() or f"not asked: {done.stderr.strip().splitlines()[-1]}"


@_question("What do mapping more than the memory, and importing another descriptor, answer?")
def virtual_memory(start: Start) -> str:
    actor = start()
    try:
        handle = actor.call("create")
    except AttributeError:
        return _NO_VIRTUAL
    pointer = actor.rt.memAddressReserve(2 * _BLOCK, 0, 0, 0)
    other = actor.call("open_file", os.devnull)
    mapping = _code(actor.rt.memMap, pointer, 2 * _BLOCK, 0, handle, 0)
    return f"{mapping}; {_code(actor.rt.memImportFromShareableHandle, other, 1)}"


@_question("Does imported virtual memory survive its handle, and its exporter?")
def virtual_survival(start: Start) -> str:
    exporter, importer = start(), start()
    try:
        _, descriptor = exporter.export_virtual(b"data")
    except AttributeError:
        return _NO_VIRTUAL
    handle = importer.import_virtual(exporter, descriptor)
    pointer = importer.call("map", handle)
    importer.rt.memRelease(handle)
    mapped = _reading(importer, pointer)
    exporter.kill()
    return f"{mapped}; {_reading(importer, pointer)}"


@_question("What does writing answer where access is set for reading only?")
def virtual_access(start: Start) -> str:
    actor = start()
    try:
        handle = actor.call("create")
    except AttributeError:
        return _NO_VIRTUAL
    pointer = actor.call("map", handle, _BLOCK, _READ)
    return _code(actor.write, pointer, b"data")


def _reading(actor: "Actor", pointer: int) -> str:
    """Return whether a process reads what was written before, or what happens instead."""
    try:
        return "yes" if actor.read(pointer, 4) == b"data" else "no, it is other data"
    except EOFError:
        return "no, the process dies"
    except RuntimeError as error:
        return f"no: {getattr(error, 'status', error)}"


def _actors() -> Any:
    """Return the module of the tests' processes, which looks at the environment when imported."""
    return import_module("hip_actor")


@contextmanager
def _processes(profile: str | None) -> Iterator[Start]:
    """Start processes that call the runtime; none survives, and no emulated host does."""
    started: list[Actor] = []
    folder = tempfile.mkdtemp(prefix="crossmem-questions-")
    environment = dict(os.environ)
    _environment.clear()
    if profile is not None:
        environment["CROSSMEM_EMULATED_STATE"] = folder
        environment["CROSSMEM_EMULATED_HIP_PROFILE"] = profile

    _environment.update(environment)

    def start() -> "Actor":
        started.append(_actors().Actor(environment))
        return started[-1]

    try:
        yield start
    finally:
        for one in started:
            one.destroy()
        shutil.rmtree(folder)


def ask_all(profile: str | None) -> dict[str, str]:
    """Return the answers by the names of the questions; of CuPy's device where profile is None."""
    answers = {}
    for name, (text, ask) in QUESTIONS.items():
        print(text, file=sys.stderr)
        with _processes(profile) as start:
            answers[name] = ask(start)
    return answers


def _answers_of(profile: str) -> dict[str, str]:
    """Ask an emulation, in a process that has nothing to do with the device."""
    done = subprocess.run(
        [sys.executable, __file__, "--profile", profile, "--json"],
        stdout=subprocess.PIPE,
        check=True,
        timeout=_DEADLINE_S,
        env={name: one for name, one in os.environ.items() if name != "CROSSMEM_TEST_CUPY"},
    )
    answers: dict[str, str] = json.loads(done.stdout)
    return answers


def _table(answers: Mapping[str, str], others: Mapping[str, str], title: str) -> str:
    lines = [f"| question | the device | {title} |", "|---|---|---|"]
    for name, (text, _) in QUESTIONS.items():
        same = "the same" if answers[name] == others[name] else others[name]
        lines.append(f"| {name}: {text} | {answers[name]} | {same} |")
    return "\n".join(lines)


def main() -> None:
    """Ask, and print what was answered."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", help="ask this profile of the emulation, and no device")
    parser.add_argument("--json", action="store_true", help="print the answers by name")
    parser.add_argument("--open", metavar="HANDLE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.profile is None and arguments.open is None:
        os.environ["CROSSMEM_TEST_CUPY"] = "1"
    if arguments.open is not None:
        print(_code(_actors().Program().open, bytes.fromhex(arguments.open)))
        return
    # The process that forks the others looks for modules there alone. Where it finds none, it says
    # nothing, and each of the others imports all of them.
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*_FOLDERS, *([inherited] if inherited else [])])
    answers = ask_all(arguments.profile)
    if arguments.json or arguments.profile is not None:
        print(json.dumps(answers, indent=2))
        return
    profile = _actors().REAL
    print(_table(answers, _answers_of(profile), f"the profile `{profile}`"))


if __name__ == "__main__":
    main()
