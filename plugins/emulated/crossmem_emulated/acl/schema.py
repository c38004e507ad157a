# SPDX-License-Identifier: Apache-2.0
"""The tables for ACL in the emulated host's database, such as those of keys and whitelists."""

from typing import Final

__all__ = ["BARE_TGID_BASE", "SCHEMA"]

BARE_TGID_BASE: Final = 1 << 22
"""The bare tgid is the vendor's name for the pid that a process has outside its container. In the
emulation, the bare tgid is the pid inside the container plus this number, which is the maximum pid
of Linux."""

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS acl_share (
    number INTEGER PRIMARY KEY AUTOINCREMENT, pages INTEGER NOT NULL,
    owner INTEGER NOT NULL REFERENCES process ON DELETE CASCADE,
    device INTEGER NOT NULL, attribute INTEGER NOT NULL, validates INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS acl_share_admitted (
    share INTEGER NOT NULL REFERENCES acl_share ON DELETE CASCADE,
    tgid INTEGER NOT NULL, since INTEGER NOT NULL, PRIMARY KEY (share, tgid)
) STRICT;
CREATE TABLE IF NOT EXISTS acl_key (
    number INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT NOT NULL UNIQUE, pages INTEGER NOT NULL,
    first INTEGER NOT NULL, nbytes INTEGER NOT NULL,
    owner INTEGER NOT NULL REFERENCES process ON DELETE CASCADE,
    device INTEGER NOT NULL, validates INTEGER NOT NULL, is_small INTEGER NOT NULL,
    is_closed INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE IF NOT EXISTS acl_key_admitted (
    key INTEGER NOT NULL REFERENCES acl_key ON DELETE CASCADE,
    tgid INTEGER NOT NULL, since INTEGER NOT NULL, PRIMARY KEY (key, tgid)
) STRICT;
CREATE TABLE IF NOT EXISTS acl_key_opener (
    key INTEGER NOT NULL REFERENCES acl_key ON DELETE CASCADE,
    process INTEGER NOT NULL REFERENCES process ON DELETE CASCADE, PRIMARY KEY (key, process)
) STRICT;
CREATE TRIGGER IF NOT EXISTS acl_key_forgotten AFTER DELETE ON acl_key_opener BEGIN
    DELETE FROM acl_key WHERE number = OLD.key AND is_closed
    AND NOT EXISTS (SELECT * FROM acl_key_opener WHERE key = OLD.key);
END;
CREATE TABLE IF NOT EXISTS acl_event (
    token BLOB PRIMARY KEY, owner INTEGER NOT NULL REFERENCES process ON DELETE CASCADE,
    pending INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS acl_notify (
    number INTEGER PRIMARY KEY AUTOINCREMENT, device INTEGER NOT NULL,
    is_recorded INTEGER NOT NULL DEFAULT 0, text TEXT UNIQUE, owner INTEGER NOT NULL,
    validates INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE TABLE IF NOT EXISTS acl_notify_admitted (
    notify INTEGER NOT NULL REFERENCES acl_notify ON DELETE CASCADE,
    tgid INTEGER NOT NULL, since INTEGER NOT NULL, PRIMARY KEY (notify, tgid)
) STRICT;
CREATE TABLE IF NOT EXISTS acl_notify_holder (
    notify INTEGER NOT NULL REFERENCES acl_notify ON DELETE CASCADE,
    process INTEGER NOT NULL REFERENCES process ON DELETE CASCADE, PRIMARY KEY (notify, process)
) STRICT;
CREATE TRIGGER IF NOT EXISTS acl_notify_forgotten AFTER DELETE ON acl_notify_holder BEGIN
    DELETE FROM acl_notify WHERE number = OLD.notify
    AND NOT EXISTS (SELECT * FROM acl_notify_holder WHERE notify = OLD.notify);
END;
"""
