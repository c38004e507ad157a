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
# Others die while this process uses what is theirs.
LOST = {0, 107017, 507899, 507053}


class Storm:
    """Random, lawful activity. Others find what is shared in the folder ``board``."""

    def __init__(self, acl: Any, board: Path, seed: int) -> None:
        self.rt = acl.rt
        self.board = board
        self.random = random.Random(seed)
        self.owned: list[tuple[int, int]] = []
        self.imported: list[tuple[int, int]] = []
        self.keys: list[str] = []

    def run(self) -> None:
        actions = [self.share, self.share_by_key, self.import_, self.free, self.close, self.copy]
        while True:
            self.random.choice(actions)()

    def publish(self, kind: str, value: object) -> None:
        (self.board / f"{kind}-{value}").touch()

    def find(self, kind: str) -> str | None:
        found = [path.name for path in self.board.glob(f"{kind}-*")]
        return self.random.choice(found).partition("-")[2] if found else None

    def mapped(self, handle: int) -> int:
        pointer, code = self.rt.reserve_mem_address(UNIT, 0, 0, 0)
        assert code == 0, code
        code = self.rt.map_mem(pointer, UNIT, 0, handle, 0)
        assert code == 0, code
        return int(pointer)

    def share(self) -> None:
        if len(self.owned) < MOST:
            prop = {"memAttr": 4, "location": {"id": 0, "type": 1}}
            handle, code = self.rt.malloc_physical(UNIT, prop, 0)
            assert code == 0, code
            self.owned.append((handle, self.mapped(handle)))
            share, code = self.rt.mem_export_to_shareable_handle(handle, 0, 1)
            assert code == 0, code
            self.publish("share", share)

    def share_by_key(self) -> None:
        if len(self.keys) < MOST:
            pointer, code = self.rt.malloc(UNIT, 0)
            assert code == 0, code
            key, code = self.rt.ipc_mem_get_export_key(pointer, UNIT, 65, 1)
            assert code == 0, code
            self.keys.append(key)
            self.publish("key", key)

    def import_(self) -> None:
        share, key = self.find("share"), self.find("key")
        if share is not None and len(self.imported) < MOST:
            handle, code = self.rt.mem_import_from_shareable_handle(int(share), 0)
            assert code in LOST, code
            if code == 0:
                self.imported.append((handle, self.mapped(handle)))
        if key is not None:
            code = self.rt.ipc_mem_import_by_key(key, 0)[1]
            assert code in LOST, code
            if code == 0:
                code = self.rt.ipc_mem_close(key)
                assert code == 0, code

    def free(self) -> None:
        self.release(self.owned)

    def close(self) -> None:
        self.release(self.imported)

    def release(self, held: list[tuple[int, int]]) -> None:
        if held:
            handle, pointer = held.pop(self.random.randrange(len(held)))
            codes = [
                self.rt.unmap_mem(pointer),
                self.rt.free_physical(handle),
                self.rt.release_mem_address(pointer),
            ]
            assert codes == [0, 0, 0], codes

    def copy(self) -> None:
        for _, pointer in self.owned + self.imported:
            code = self.rt.memset(pointer, UNIT, 7, 64)
            assert code == 0, code


def churn(acl: Any, board: str, seed: int, lines: int) -> None:
    """Allocate, share and import at random until something kills this process."""
    if lines:
        die_after(lines)
    Storm(acl, Path(board), seed).run()
