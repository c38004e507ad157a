# SPDX-License-Identifier: Apache-2.0
"""Scripts in processes of their own, which are forked from a warm one.

The start of an interpreter, and the imports, take longer than most of these scripts.
"""

import faulthandler
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType
from typing import Final

from crossmem.conformance.peers import Peer, PeerDiedError
from crossmem.conformance.speed import SLOWNESS

DEADLINE_S: Final = 60.0 * SLOWNESS


def _write_to(path: str, descriptor: int) -> None:
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(opened, descriptor)
    os.close(opened)


def _run(script: str, arguments: Sequence[str], outputs: tuple[str, str]) -> None:
    """Be an interpreter that was given a script; runs in the peer, which ends."""
    faulthandler.cancel_dump_traceback_later()
    _write_to(outputs[0], 1)
    _write_to(outputs[1], 2)
    main = sys.modules["__main__"] = ModuleType("__main__")
    sys.argv[:] = ["-c", *arguments]
    try:
        exec(compile(script, "<string>", "exec"), main.__dict__)  # noqa: S102 - a test's script
    except Exception:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        sys.exit(1)
    sys.exit(0)


def run_script(
    script: str, *arguments: object, environment: Mapping[str, str | None] | None = None
) -> CompletedProcess[str]:
    """Run a script as ``python -c`` does, and return how it ended and what it wrote.

    `environment` has variables to set, or with None to remove. Variables of crossmem cost nothing;
    for others, a warm process of their own is started.
    """
    words = [str(one) for one in arguments]
    with (
        tempfile.TemporaryDirectory(prefix="script-") as folder,
        Peer("emulated:0", environment=environment, tracing=False) as peer,
    ):
        outputs = (f"{folder}/out", f"{folder}/err")
        try:
            peer.call(_run, script, words, outputs, within=DEADLINE_S)
        except PeerDiedError as ended:
            # It died in the script, or before that: then there is nothing that it wrote.
            written = [Path(one).read_text("utf-8") for one in outputs]
            return CompletedProcess(words, ended.exitcode, *written)
    raise AssertionError("a script ends its process")
