# SPDX-License-Identifier: Apache-2.0
"""The addresses of lease servers."""

import os
from pathlib import Path

import pytest

import crossmem
from crossmem.control import endpoint
from crossmem.control.endpoint import _listen_at_path


def test_a_path_at_which_nobody_could_connect_is_refused(tmp_path: Path) -> None:
    # The temporary name, which ends in another suffix, would still fit.
    name = "s" * (endpoint._MOST_PATH_NBYTES + 1 - len(str(tmp_path)) - len("/.sock"))
    path = tmp_path / f"{name}.sock"

    with pytest.raises(crossmem.ConfigurationError, match="at most 107 bytes"):
        _listen_at_path(path)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mask", [0o177, 0o777])
def test_a_new_run_directory_has_its_mode_under_each_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        endpoint._prepare(tmp_path / "run")
    finally:
        os.umask(before)

    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


def test_a_new_run_directory_is_never_open_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chmod, modes = Path.chmod, []

    def noting(self: Path, mode: int) -> None:
        modes.append(self.stat().st_mode & 0o777)
        chmod(self, mode)

    monkeypatch.setattr(Path, "chmod", noting)
    before = os.umask(0)
    try:
        endpoint._prepare(tmp_path / "run")
    finally:
        os.umask(before)

    assert modes == [0o700]
