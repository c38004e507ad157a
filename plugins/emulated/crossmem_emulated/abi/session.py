# SPDX-License-Identifier: Apache-2.0
"""Running programs on an emulated library: what they have to be started with, and what they did."""

import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from crossmem.errors import ConfigurationError
from crossmem.plugin import Breach, Emulation, EmulationReport, EmulationRequest
from crossmem_emulated.abi.builder import build
from crossmem_emulated.abi.calls import VARIABLE as CALLS_VARIABLE
from crossmem_emulated.abi.library import Library, library_named
from crossmem_emulated.abi.maths import build_stand_ins, installed_users
from crossmem_emulated.journal import Faults, Journal
from crossmem_emulated.machine import Machine
from crossmem_emulated.options import VARIABLES, Options

__all__ = ["prepare"]

_FAULT: Final = re.compile(r"(?P<call>\w+)=(?P<code>-?\d+)(?::(?P<skip>\d+)(?::(?P<count>\d+))?)?")
_STATE: Final = "CROSSMEM_EMULATED_STATE"
_ROOT_VARIABLES: Final = ("ROCM_PATH", "ROCM_HOME")
"""Where some programs look for the library before the loader does."""


def _variables(library: Library, request: EmulationRequest) -> dict[str, str]:
    variable = next(name for name, field in VARIABLES.items() if field == library.profile_field)
    given = {
        variable: request.profile,
        "CROSSMEM_EMULATED_DEVICES": request.devices,
        "CROSSMEM_EMULATED_CAPACITY": request.capacity,
        "CROSSMEM_EMULATED_STRICT": None if request.strict is None else int(request.strict),
        "CROSSMEM_EMULATED_SLOW_STREAMS": None
        if request.slow_streams is None
        else int(request.slow_streams),
        _STATE: request.state,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def _add_fault(faults: Faults, library: Library, text: str) -> None:
    match = _FAULT.fullmatch(text)
    entry = library.entry_of(match["call"]) if match else None
    if match is None or entry is None:
        msg = f"{text!r} is no fault; it must be CALL=CODE, CALL=CODE:SKIP or CALL=CODE:SKIP:COUNT"
        hint = "CALL is a function of the library: hipMalloc=2:3 lets its fourth call fail with 2"
        raise ConfigurationError(msg, hint=hint)
    skip, count = int(match["skip"] or 0), int(match["count"] or 1)
    faults.add(entry, int(match["code"]), skip=skip, count=count)


def _calls(folders: list[Path]) -> Mapping[str, int]:
    counts: Counter[str] = Counter()
    for folder in folders:
        for path in folder.glob("*.json"):
            counts.update(json.loads(path.read_text("utf-8")))
    return dict(sorted(counts.items()))


def prepare(
    api: str, request: EmulationRequest, environ: Mapping[str, str] = os.environ
) -> Emulation:
    """Build what is needed and return how to run programs.

    Parameters
    ----------
    api
        Name of the emulation, one of ``LIBRARIES``.
    request
        What it is to be like.
    environ
        The variables that programs will have beside those of the emulation.

    Raises
    ------
    ConfigurationError
        Where the request has no meaning, or something is missing that building needs.
    """
    library = library_named(api)
    variables = _variables(library, request)
    options = Options.from_environ({**environ, **variables})
    library.check_profile(getattr(options, library.profile_field))
    folders = [build(library, environ)]
    if api == "hip":
        # Only then may there be a package that was built for ROCm.
        stand_ins = build_stand_ins(installed_users(), environ)
        folders += [stand_ins] if stand_ins else []
        variables.update({name: str(folders[0]) for name in _ROOT_VARIABLES if environ.get(name)})
    state, own = options.state, []
    if not request.is_lasting:
        if request.state is None and not environ.get(_STATE):
            state = Path(tempfile.mkdtemp(prefix="crossmem-emulate-", dir=state.parent))
            variables[_STATE] = str(state)
            own.append(state)
        calls = Path(tempfile.mkdtemp(prefix="crossmem-calls-"))
        variables[CALLS_VARIABLE] = str(calls)
        own.append(calls)
    machine = Machine(state, "")
    close = _closer(machine, own)
    try:
        faults = Faults(machine)
        for text in request.faults:
            _add_fault(faults, library, text)
        start = len(Journal(machine).read())
    except BaseException:
        close()
        raise

    def report() -> EmulationReport:
        found = Journal(machine).read()[start:]
        return EmulationReport(
            violations=tuple(Breach(*one) for one in found), calls=_calls(own[-1:])
        )

    return Emulation(library_path=tuple(folders), variables=variables, report=report, close=close)


def _closer(machine: Machine, folders: list[Path]) -> Callable[[], None]:
    def close() -> None:
        machine.close()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)

    return close
