# SPDX-License-Identifier: Apache-2.0
"""The tables for HIP in the emulated host's database: exports, imports, and shared events."""

from typing import Final

__all__ = ["SCHEMA"]

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS hip_share (
    number INTEGER PRIMARY KEY AUTOINCREMENT, token BLOB NOT NULL UNIQUE, pages INTEGER NOT NULL,
    owner INTEGER NOT NULL REFERENCES process ON DELETE CASCADE,
    device INTEGER NOT NULL, ordinal INTEGER NOT NULL, pid INTEGER NOT NULL,
    address INTEGER NOT NULL, first INTEGER NOT NULL, nbytes INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS hip_import (
    number INTEGER PRIMARY KEY AUTOINCREMENT, share INTEGER NOT NULL,
    process INTEGER NOT NULL REFERENCES process ON DELETE CASCADE
) STRICT;
CREATE INDEX IF NOT EXISTS hip_import_by_share ON hip_import (share);
CREATE TABLE IF NOT EXISTS hip_event (
    number INTEGER PRIMARY KEY AUTOINCREMENT, token BLOB NOT NULL UNIQUE,
    owner INTEGER NOT NULL REFERENCES process ON DELETE CASCADE,
    recorder INTEGER REFERENCES process ON DELETE SET NULL, pending INTEGER NOT NULL
) STRICT;
"""
