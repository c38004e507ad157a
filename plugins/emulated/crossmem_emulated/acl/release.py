# SPDX-License-Identifier: Apache-2.0
"""The release of a process's objects on a device when the process resets the device.

The vendor's documents say that a reset first finishes the work of the default context. They do not
say which objects remain. In the emulation, the process loses its memory, imports, mappings, keys,
contexts, streams and TDT queues on the device. The unfinished work of contexts other than the
default context is never done. Reserved addresses, events, notifies and TDT's buffers stay. Calls
refuse the handles and addresses of lost objects as unknown.
"""

import sqlite3

from crossmem_emulated.acl.addresses import Origin
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.tdt.pools import close_device
from crossmem_emulated.addresses import Piece

__all__ = ["drop_keys", "end_key", "release_device"]


def release_device(process: AclProcess, device: int) -> None:
    """Release this process's objects on a device, except the objects that survive a reset.

    ``device`` is the device's number in this process.
    """
    index = process.visible[device]
    close_device(process, index)
    for stream in [one for one in process.streams.values() if one.device == device]:
        process.queues.drop(stream)
        del process.streams[stream.handle]
    process.queues.changed.notify_all()
    for context in [one for one in process.contexts.values() if one.device == device]:
        del process.contexts[context.handle]
    del process.devices[device]
    physical = [one for one in process.physical.values() if one.device == index]
    for one in physical:
        # The shareable handle ends first, so that no process imports memory that is being released.
        one.forget_share(process)
        del process.physical[one.handle]
    pieces = [one for one in process.space.pieces.values() if _is_on(one, index, physical)]
    for piece in pieces:
        drop_keys(process, "rt.reset_device", piece)
        process.space.detach(piece)
        process.accesses.pop(piece.start, None)
        if piece.origin is Origin.MALLOC and not piece.is_part:
            process.store.release(piece.pages)
    for region in {one.region for one in pieces if not one.region.is_reservation}:
        process.space.release(region)
    for slab in [one for one in process.slabs if one.pages.device == index]:
        process.slabs.remove(slab)
        process.store.release(slab.pages)
    for key in [one for one in process.opened_keys.values() if one.device == index]:
        del process.opened_keys[key.text]
        process.store.release(key.pages)
        with process.machine.transaction() as tables:
            tables.execute(
                "DELETE FROM acl_key_opener WHERE key = ? AND process = ?",
                (key.number, process.machine.me(tables)),
            )
    for one in physical:
        process.store.release(one.pages)


def _is_on(piece: Piece, index: int, physical: list[object]) -> bool:
    if piece.origin is Origin.BUFFER:
        # The memory of a buffer belongs to a memory group, so it survives the reset.
        return False
    if piece.origin in {Origin.PHYSICAL, Origin.IMPORTED}:
        return piece.source in physical
    if piece.origin is Origin.KEY:
        return bool(piece.source.device == index)
    return piece.pages.device == index


def drop_keys(process: AclProcess, call: str, piece: Piece) -> None:
    """End the keys of memory that is being released. Record a violation if there is a key."""
    if not piece.keys:
        return
    process.violate(
        call, "ACL-E26", f"the memory at {piece.start:#x} is released before its key is closed"
    )
    with process.machine.transaction() as tables:
        for text in piece.keys:
            end_key(tables, text)
    piece.keys.clear()


def end_key(tables: sqlite3.Connection, text: str) -> int:
    """End a key, and return how many processes hold an import of the key's memory.

    If there are such processes, the key's record stays and is marked as closed. An importer that
    finds no record would conclude that the exporter is dead.
    """
    query = (
        "SELECT count(*) FROM acl_key_opener JOIN acl_key ON acl_key.number = key WHERE text = ?"
    )
    openers: int = tables.execute(query, (text,)).fetchone()[0]
    change = "UPDATE acl_key SET is_closed = 1" if openers else "DELETE FROM acl_key"
    tables.execute(f"{change} WHERE text = ?", (text,))
    return openers
