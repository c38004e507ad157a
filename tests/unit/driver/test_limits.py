# SPDX-License-Identifier: Apache-2.0
"""Hints about limits tell users what helps where they are."""

import resource

import pytest

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
