# SPDX-License-Identifier: Apache-2.0
"""Prepares a run of programs on an emulated library: the environment, and the final report."""

import difflib
import os
import re
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from crossmem.errors import ConfigurationError
from crossmem.guards import shorten
from crossmem.plugin import Breach, Emulation, EmulationReport, EmulationRequest
from crossmem_emulated.abi.builder import build
from crossmem_emulated.abi.calls import VARIABLE as CALLS_VARIABLE
from crossmem_emulated.abi.calls import read_calls
from crossmem_emulated.abi.held import HeldFolder, remove_abandoned
from crossmem_emulated.abi.library import Library, library_named
from crossmem_emulated.abi.maths import build_stand_ins, installed_users
from crossmem_emulated.journal import Faults, Journal
from crossmem_emulated.machine import HostLostError, Machine
from crossmem_emulated.options import VARIABLES, Options

__all__ = ["prepare"]

_Answer = TypeVar("_Answer")

_FAULT: Final = re.compile(r"(?P<call>\w+)=(?P<code>-?\d+)(?::(?P<skip>\d+)(?::(?P<count>\d+))?)?")
_STATE: Final = "CROSSMEM_EMULATED_STATE"
_OWN: Final = "crossmem-emulate-"
_SEGFAULT_NOTE: Final = (
    "an access of the CPU to a device address ends like this, and is not listed as misuse; with "
    "--lax, such accesses work"
)
_ROOT_VARIABLES: Final = ("ROCM_PATH", "ROCM_HOME")
"""Some programs search for libraries in the folders that these variables name, before they search
in the loader's folders."""


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


def _add_fault(faults: Faults, library: Library, text: str) -> int:
    match = _FAULT.fullmatch(text)
    if match is None:
        msg = f"a fault is CALL=CODE, CALL=CODE:SKIP or CALL=CODE:SKIP:COUNT, not {shorten(text)}"
        raise ConfigurationError(msg, hint=library.fault_hint)
    entry = library.entry_of(match["call"])
    if entry is None:
        raise _no_fault_in(library, match["call"])
    skip, count = int(match["skip"] or 0), int(match["count"] or 1)
    return faults.add(entry, int(match["code"]), skip=skip, count=count)


def _no_fault_in(library: Library, call: str) -> ConfigurationError:
    """Return the error for a function into which no fault can be injected."""
    exported = library.exports()
    if call in exported:
        return ConfigurationError(
            f"calls of {call} cannot be made to fail: the function is not emulated"
        )
    close = difflib.get_close_matches(call, filter(library.entry_of, exported))
    return ConfigurationError(
        f"{library.sonames[0]} has no function {shorten(call)}",
        hint=f"did you mean {' or '.join(close)}?" if close else None,
    )


def prepare(
    api: str, request: EmulationRequest, environ: Mapping[str, str] = os.environ
) -> Emulation:
    """Build an emulated library, and return the environment in which programs use it.

    Parameters
    ----------
    api
        Name of the emulation: ``"ascend"`` or ``"hip"``.
    request
        The settings of the emulation.
    environ
        The environment variables of the programs. The result contains only the variables that the
        programs need in addition.

    Raises
    ------
    BackendNotFoundError
        No emulated library has that name.
    ConfigurationError
        The request is invalid, the build fails, or a folder cannot be used.
    OutOfMemoryError
        The file system of the emulated host's folder is full.
    """
    library = library_named(api)
    variables = _variables(library, request)
    options = Options.from_environ({**environ, **variables})
    library.check_profile(getattr(options, library.profile_field))
    if request.is_lasting and request.faults:
        msg = "faults are not possible with a printed environment: a fault ends with this command"
        hint = f"run the program with `crossmem emulate {api} --fault ... -- COMMAND`"
        raise ConfigurationError(msg, hint=hint)
    folders = [build(library, environ)]
    if api == "hip":
        # CuPy is also linked with libraries of ROCm that are not emulated. This machine may lack
        # some of these libraries. The stand-ins replace the missing libraries.
        stand_ins = build_stand_ins(installed_users(), environ)
        folders += [stand_ins] if stand_ins else []
        variables.update({name: str(folders[0]) for name in _ROOT_VARIABLES if environ.get(name)})
    with ExitStack() as stack:
        state, calls = options.state, None
        own = _own_folder(stack, is_wanted=not request.is_lasting)
        if own is not None:
            if request.state is None and not environ.get(_STATE):
                state = own / "host"
                variables[_STATE] = str(state)
            calls = own / "calls"
            try:
                calls.mkdir()
            except OSError as error:
                raise _no_folder(own.parent, error) from None
            variables[CALLS_VARIABLE] = str(calls)
        machine = Machine(state, "")
        stack.callback(machine.close)
        faults = Faults(machine)
        for text in request.faults:
            # The emulated host may outlive this run. So the fault is removed at the end of the run.
            number = _ask(machine, partial(_add_fault, faults, library, text))
            stack.callback(_remove_fault, faults, number)
        journal = Journal(machine)
        start = _ask(machine, journal.last)
        close = stack.pop_all().close

    def report() -> EmulationReport:
        found = _ask(machine, partial(journal.read, start))
        return EmulationReport(
            violations=tuple(Breach(*one) for one in found),
            calls=read_calls(calls) if calls else {},
        )

    return Emulation(
        library_path=tuple(folders),
        variables=variables,
        report=report,
        segfault_note=_SEGFAULT_NOTE if options.strict else None,
        close=close,
    )


def _own_folder(stack: ExitStack, *, is_wanted: bool) -> Path | None:
    """Make and return a folder that ``stack`` removes, or return None if no folder is needed.

    In both cases, also remove the folders of dead processes.
    """
    parent = Options().state.parent
    remove_abandoned(parent, _OWN)
    if not is_wanted:
        return None
    try:
        folder = HeldFolder(parent, _OWN)
    except OSError as error:
        raise _no_folder(parent, error) from None
    stack.callback(folder.remove)
    return folder.path


def _no_folder(parent: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"no folder can be made in {shorten(str(parent))}: {error.strerror}",
        hint="free some space there, or make the folder writable; --shm-size sets the size of a "
        "container's /dev/shm",
    )


def _ask(machine: Machine, question: Callable[[], _Answer]) -> _Answer:
    """Return the result of ``question``, which uses the tables of an emulated host.

    Raises
    ------
    OutOfMemoryError
        The file system of the host's folder is full.
    ConfigurationError
        The host's folder cannot be used, for example because it is read-only.
    """
    try:
        return question()
    except sqlite3.OperationalError as error:
        fault = machine.fault_of(error)
        raise fault or error from None


def _remove_fault(faults: Faults, number: int) -> None:
    # If the emulated host's folder was removed, the fault is gone already.
    with suppress(HostLostError, sqlite3.OperationalError):
        faults.remove(number)
