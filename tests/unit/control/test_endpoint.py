# SPDX-License-Identifier: Apache-2.0
"""The addresses of lease servers."""

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
