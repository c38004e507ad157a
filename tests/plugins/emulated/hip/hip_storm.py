# SPDX-License-Identifier: Apache-2.0
"""What a process of test_killed.py does until it is killed."""

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.plugins.emulated.host_processes import die_after
else:
    from host_processes import die_after

UNIT = 2 << 20
MOST = 6
LAZY = 1
# Others free and die while this process uses what is theirs.
STALE = 17


class Storm:
    """Random activity. Others find what is shared in the folder ``board``."""

    def __init__(self, rt: Any, board: Path, seed: int) -> None:
        self.rt = rt
        self.board = board
        self.random = random.Random(seed)
        self.owned: list[int] = []
        self.imported: list[int] = []

    def run(self) -> None:
        actions = [self.share, self.import_, self.free, self.close, self.copy]
        while True:
            self.random.choice(actions)()

    def share(self) -> None:
        if len(self.owned) < MOST:
            self.owned.append(self.rt.malloc(UNIT))
            handle = self.rt.ipcGetMemHandle(self.owned[-1])
            (self.board / handle.hex()).touch()

    def import_(self) -> None:
        found = [path.name for path in self.board.iterdir()]
        if found and len(self.imported) < MOST:
            handle = bytes.fromhex(self.random.choice(found))
            try:
                self.imported.append(self.rt.ipcOpenMemHandle(handle, LAZY))
            except self.rt.CUDARuntimeError as error:
                own = 201
                assert error.status in {STALE, own}, error  # noqa: PT017 - its code is the point

    def free(self) -> None:
        if self.owned:
            self.rt.free(self.owned.pop(self.random.randrange(len(self.owned))))

    def close(self) -> None:
        if self.imported:
            place = self.random.randrange(len(self.imported))
            self.rt.ipcCloseMemHandle(self.imported.pop(place))

    def copy(self) -> None:
        for pointer in self.owned + self.imported:
            self.rt.memset(pointer, 7, 64)


def churn(rt: Any, board: str, seed: int, lines: int) -> None:
    """Allocate, share and import at random until something kills this process."""
    if lines:
        die_after(lines)
    Storm(rt, Path(board), seed).run()
