# SPDX-License-Identifier: Apache-2.0
"""The tables of queues, routes and buffers in the emulated host's database."""

from typing import Final

__all__ = ["TDT_SCHEMA"]

TDT_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS acl_pool (
    number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, device INTEGER NOT NULL,
    owner INTEGER REFERENCES process ON DELETE CASCADE
) STRICT;
CREATE TABLE IF NOT EXISTS acl_pool_member (
    pool INTEGER NOT NULL REFERENCES acl_pool ON DELETE CASCADE,
    pid INTEGER NOT NULL, start_time INTEGER NOT NULL, attributes INTEGER NOT NULL,
    PRIMARY KEY (pool, pid, start_time)
) STRICT;
CREATE TABLE IF NOT EXISTS acl_queue (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    pool INTEGER NOT NULL REFERENCES acl_pool ON DELETE CASCADE, id INTEGER NOT NULL,
    name TEXT NOT NULL, depth INTEGER NOT NULL, busy INTEGER NOT NULL DEFAULT 0, UNIQUE (pool, id)
) STRICT;
CREATE TABLE IF NOT EXISTS acl_queue_user (
    queue INTEGER NOT NULL REFERENCES acl_queue ON DELETE CASCADE,
    process INTEGER NOT NULL REFERENCES process ON DELETE CASCADE, PRIMARY KEY (queue, process)
) STRICT;
CREATE TABLE IF NOT EXISTS acl_queue_grant (
    queue INTEGER NOT NULL REFERENCES acl_queue ON DELETE CASCADE,
    pid INTEGER NOT NULL, start_time INTEGER NOT NULL, bits INTEGER NOT NULL,
    PRIMARY KEY (queue, pid)
) STRICT;
CREATE TABLE IF NOT EXISTS acl_block (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    pool INTEGER NOT NULL REFERENCES acl_pool ON DELETE CASCADE, pages INTEGER NOT NULL,
    nbytes INTEGER NOT NULL, address INTEGER NOT NULL, span INTEGER NOT NULL, digest BLOB
) STRICT;
CREATE TABLE IF NOT EXISTS acl_block_holder (
    block INTEGER NOT NULL REFERENCES acl_block ON DELETE CASCADE,
    process INTEGER NOT NULL REFERENCES process ON DELETE CASCADE, descriptor INTEGER NOT NULL,
    PRIMARY KEY (block, process)
) STRICT;
CREATE TRIGGER IF NOT EXISTS acl_block_freed AFTER DELETE ON acl_block BEGIN
    DELETE FROM pages WHERE number = OLD.pages;
END;
CREATE TABLE IF NOT EXISTS acl_mbuf (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    block INTEGER NOT NULL REFERENCES acl_block ON DELETE CASCADE,
    holder INTEGER, lost_s REAL,
    queue INTEGER REFERENCES acl_queue ON DELETE CASCADE,
    router INTEGER REFERENCES acl_queue ON DELETE CASCADE,
    element INTEGER, place INTEGER NOT NULL DEFAULT 0,
    length INTEGER NOT NULL DEFAULT 0, user BLOB NOT NULL DEFAULT x'',
    is_user_set INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX IF NOT EXISTS acl_mbuf_by_queue ON acl_mbuf (queue, element, place);
CREATE INDEX IF NOT EXISTS acl_mbuf_by_router ON acl_mbuf (router);
CREATE INDEX IF NOT EXISTS acl_mbuf_by_block ON acl_mbuf (block);
CREATE TRIGGER IF NOT EXISTS acl_mbuf_freed AFTER DELETE ON acl_mbuf BEGIN
    DELETE FROM acl_block WHERE number = OLD.block
    AND NOT EXISTS (SELECT * FROM acl_mbuf WHERE block = OLD.block);
END;
CREATE TABLE IF NOT EXISTS acl_route (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    pool INTEGER NOT NULL REFERENCES acl_pool ON DELETE CASCADE,
    source_id INTEGER NOT NULL, target_id INTEGER NOT NULL,
    source INTEGER REFERENCES acl_queue ON DELETE SET NULL,
    target INTEGER REFERENCES acl_queue ON DELETE SET NULL,
    is_pending INTEGER NOT NULL DEFAULT 0, UNIQUE (pool, source_id, target_id)
) STRICT;
CREATE INDEX IF NOT EXISTS acl_route_by_source ON acl_route (source);
CREATE INDEX IF NOT EXISTS acl_route_by_target ON acl_route (target);
"""
