# SPDX-License-Identifier: Apache-2.0
"""Hints about limits tell users what helps where they are."""

import os
import resource

import pytest

import crossmem
from crossmem.control.limits import no_descriptors


@pytest.mark.parametrize(
    ("limits", "words", "silent"),
    [
        ((1024, 4096), "1024 open files: raise it with `ulimit -n 4096`", "root"),
        # Raising the soft limit cannot help.
        ((4096, 4096), "4096 open files, and only root can raise it", "ulimit -n"),
    ],
)
def test_hints_about_descriptors_fit_the_hard_limit(
    limits: tuple[int, int], words: str, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    error = no_descriptors("memfd_create")

    assert error.name == "EMFILE"
    assert words in str(error.hint)
    assert silent not in str(error.hint)
    assert len(str(error.hint)) <= 200


def test_memory_larger_than_the_limit_on_files_is_refused() -> None:
    # The limit stays in the process that has lowered it, so a child does this.
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        refused = 0
        device = crossmem.device("host")
        for make in (
            device.timeline,
            lambda: device.queue(2, 64),
            lambda: device.allocate(1 << 20),
        ):
            try:
                make()
            except crossmem.OutOfMemoryError as error:
                refused += "ulimit -f" in str(error.hint)
        os._exit(refused)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
