# SPDX-License-Identifier: Apache-2.0
"""The cost of one call from C into an emulated vendor library."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

from crossmem.errors import CrossmemError
from crossmem.plugin import Emulation, EmulationRequest, Registry

__all__ = ["CallError", "time_calls"]

_API: Final = "hip"
_DEADLINE_S: Final = 120.0
# The emulation is written in Python, so the program's first call of the library starts Python.
# hipGetLastError reads only state of the process. hipGetDevice also reads state of the emulated
# host. hipMalloc and hipFree change the state of the emulated host.
_PROGRAM: Final = """
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}
int main(int count, char **words)
{
    void *library = dlopen("libamdhip64.so", RTLD_NOW), *memory = NULL;
    int (*last)(void), (*device)(int *), (*allocate)(void **, size_t), (*release)(void *);
    int number, many = count > 1 ? atoi(words[1]) : 1;
    double start;
    if (!library)
        return 1;
    *(void **)&last = dlsym(library, "hipGetLastError");
    *(void **)&device = dlsym(library, "hipGetDevice");
    *(void **)&allocate = dlsym(library, "hipMalloc");
    *(void **)&release = dlsym(library, "hipFree");
    start = now();
    if (device(&number))
        return 2;
    printf("%.9f\\n", now() - start);
    start = now();
    for (int i = 0; i < many; i++)
        last();
    printf("%.9f\\n", (now() - start) / many);
    start = now();
    for (int i = 0; i < many; i++)
        device(&number);
    printf("%.9f\\n", (now() - start) / many);
    start = now();
    for (int i = 0; i < many; i++)
        if (allocate(&memory, 64) || release(memory))
            return 3;
    printf("%.9f\\n", (now() - start) / many);
    return 0;
}
"""
_NAMES: Final = ("first call", "hipGetLastError", "hipGetDevice", "hipMalloc and hipFree")


class CallError(Exception):
    """The calls could not be measured; the message says why."""


def time_calls(count: int, *, folder: str, environment: dict[str, str]) -> dict[str, float]:
    """Return the seconds that one call from C takes, for several functions of the library.

    The keys are ``"first call"``, ``"hipGetLastError"``, ``"hipGetDevice"`` and
    ``"hipMalloc and hipFree"``. The last value is the time of both calls together.

    Parameters
    ----------
    count
        Number of calls of each function.
    folder
        The folder in which the program is compiled.
    environment
        Environment variables of the program's process.

    Raises
    ------
    CallError
        There is no compiler or no emulation, or the program fails.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise CallError("there is no C compiler")
    source, program = Path(folder, "calls.c"), Path(folder, "calls")
    source.write_text(_PROGRAM, "ascii")
    try:
        subprocess.run([compiler, "-O1", source, "-o", program, "-ldl"], check=True)
        emulation = Registry().emulation(_API, EmulationRequest(strict=False))
    except (CrossmemError, OSError, subprocess.SubprocessError) as error:
        raise CallError(str(error)) from error
    try:
        return _run([str(program), str(count)], emulation, environment)
    finally:
        emulation.close()


def _run(command: list[str], emulation: Emulation, environment: dict[str, str]) -> dict[str, float]:
    variables = {
        # With CROSSMEM_EMULATED_CALLS, the library would count each call, and the counting would
        # add to the times.
        name: value
        for name, value in emulation.environment(environment).items()
        if name != "CROSSMEM_EMULATED_CALLS"
    }
    try:
        done = subprocess.run(
            command,
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            env=variables,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CallError(str(error)) from error
    return dict(zip(_NAMES, map(float, done.stdout.split()), strict=True))
