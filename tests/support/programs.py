# SPDX-License-Identifier: Apache-2.0
"""Programs, scripts and ``crossmem`` commands, each in a process that is forked from a warm one.

An interpreter takes longer to start than most of them take to run. Tests of what belongs to the
start itself, such as ``python -m`` or what is imported, start an interpreter of their own.
"""

import os
import runpy
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType
from typing import Any

from crossmem.conformance.peers import Peer, PeerDiedError
from crossmem.conformance.servers import preload
from crossmem.conformance.speed import SLOWNESS

DEADLINE_S = 60 * SLOWNESS

# Each program would import these anew. None of them opens, starts or reads anything at import.
preload(
    "crossmem.cli.app",
    "crossmem.cli.inventory",
    "crossmem.cli.views",
    "crossmem.plugin.discovery",
    "crossmem_ascend.driver",
    "crossmem_ascend.hooks",
    "crossmem_emulated.acl",
    "crossmem_emulated.driver",
    "crossmem_emulated.host",
    "crossmem_emulated.hip",
    "crossmem_emulated.hooks",
    "crossmem_hip.driver",
    "crossmem_hip.hooks",
    "numpy",
    "programs",
    "rich.console",
    "rich.table",
)


Done = CompletedProcess[str]
"""How a program ended, and what it wrote."""


def command(*arguments: object, path: Sequence[Path] = (), **environment: str) -> Done:
    """Run a ``crossmem`` command.

    Parameters
    ----------
    path
        Folders that come before others where modules are looked for.
    environment
        Variables of crossmem, which the process reads when it first uses them.
    """
    return _run(_command, arguments, path, environment)


def script(file: Path, *arguments: object, path: Sequence[Path] = (), **environment: str) -> Done:
    """Run a file as ``python -W error`` does; `path` and variables as for :func:`command`."""
    return _run(_script, (file, *arguments), path, environment)


def run_script(
    text: str, *arguments: object, environment: Mapping[str, str | None] | None = None
) -> Done:
    """Run a text as ``python -c`` does.

    `environment` has variables to set, or with None to remove. Variables of crossmem cost nothing;
    for others, a warm process of their own is started.
    """
    return _run(_text, (text, *arguments), (), environment or {})


def _run(
    function: Callable[..., int],
    arguments: Sequence[object],
    path: Sequence[Path],
    environment: Mapping[str, str | None],
) -> Done:
    with (
        tempfile.TemporaryDirectory(prefix="crossmem-program-") as name,
        Peer("emulated:0", environment=environment, tracing=False) as peer,
    ):
        folder = Path(name)
        folders = [str(one) for one in path]
        words = list(map(str, arguments))
        try:
            code = peer.call(function, words, name, folders, within=DEADLINE_S)
            # What is written and what fails while the interpreter ends counts, too.
            peer.request_exit()
            end = peer.wait_exit(within=DEADLINE_S)
            code = code or end
        except PeerDiedError as ended:
            code = ended.exitcode
        written = ((folder / one).read_text("utf-8") for one in ("stdout", "stderr"))
        return Done(words, code, *written)


# In the process ---------------------------------------------------------------------------


_kept: list[Any] = []


def _begin(folder: str, path: list[str]) -> None:
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        opened = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.path[:0] = path
    os.environ["COLUMNS"] = "100"


def _exit_code(function: Callable[[], object]) -> int:
    """Return what the interpreter would exit with."""
    try:
        function()
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
            return 1
        return error.code or 0
    except BaseException:  # noqa: BLE001 - as an interpreter does with what nobody caught
        traceback.print_exc()
        return 1
    return 0


def _command(arguments: list[str], folder: str, path: list[str]) -> int:
    from crossmem.cli import main

    _begin(folder, path)
    sys.argv[:] = ["crossmem", *arguments]
    return _exit_code(main)


def _script(arguments: list[str], folder: str, path: list[str]) -> int:
    _begin(folder, path)
    sys.argv[:] = arguments
    # Also for the interpreters that it starts.
    sys.warnoptions.append("error")
    warnings.simplefilter("error")
    # Its names live until the interpreter ends.
    return _exit_code(lambda: _kept.append(runpy.run_path(arguments[0], run_name="__main__")))


def _text(arguments: list[str], folder: str, path: list[str]) -> int:
    _begin(folder, path)
    main = sys.modules["__main__"] = ModuleType("__main__")
    sys.argv[:] = ["-c", *arguments[1:]]
    code = compile(arguments[0], "<string>", "exec")
    return _exit_code(lambda: exec(code, main.__dict__))  # noqa: S102 - a test's script
