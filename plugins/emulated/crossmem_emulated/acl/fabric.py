# SPDX-License-Identifier: Apache-2.0
"""Version 2 of the calls for shareable handles, and two calls for keys.

A fabric connects the servers of a super node. The emulation has one server. The calls of version 2
take shareable handles of two types. ``ipc_mem_set_attr`` chooses the link to a key's memory.
``ipc_mem_import_pid_inter_server`` admits processes to a key's memory.
"""

import struct
from typing import Final

from crossmem_emulated.acl.calls import Refused, entry
from crossmem_emulated.acl.codes import Code
from crossmem_emulated.acl.keys import admit_by_key, check_known, check_owner
from crossmem_emulated.acl.process import AclProcess
from crossmem_emulated.acl.shares import admit, export, import_share, pack
from crossmem_emulated.acl.vmm import Physical, check_newer

__all__ = ["FABRIC", "FABRIC_HANDLE_NBYTES", "PLAIN"]

PLAIN, FABRIC = 1, 2
"""The types of shareable handles. A plain handle is a number that is valid on this server. A fabric
handle consists of bytes."""
FABRIC_HANDLE_NBYTES: Final = 128

_SERVER: Final = 0
"""The number of this server in its super node."""
_LINKS: Final = frozenset({0, 1})
"""The links of an A3 to another device's memory. One link lies within a chip (SIO), and the other
link between chips (HCCS)."""
_LINKS_V3: Final = frozenset({2, 3})
"""The links of a 950 to another device's memory. One link uses one port of a unified bus, and the
other link uses several ports."""
_LAYOUT: Final = struct.Struct(f"<IIQ{FABRIC_HANDLE_NBYTES - 16}x")


def _check_kind(process: AclProcess, kind: int) -> None:
    check_newer(process)
    if kind not in {PLAIN, FABRIC}:
        raise Refused(
            Code.RT_PARAM_INVALID, f"there are no shareable handles of type {kind}", "ACL-E33"
        )
    if kind == FABRIC and not process.profile.fabric:
        raise Refused(Code.RT_FEATURE_NOT_SUPPORT, "this product has no fabric")


def _describe(physical: Physical) -> bytes:
    return _LAYOUT.pack(FABRIC, _SERVER, pack(physical))


def _value_of(kind: int, share: int | bytes) -> int:
    if isinstance(share, int):
        return share
    written, server, value = _LAYOUT.unpack(share)
    if written != kind or server != _SERVER:
        raise Refused(Code.RT_INVALID_HANDLE, "these bytes are not a shareable handle")
    return int(value)


@entry("c.mem_export_to_shareable_handle_v2", "kKi", None)
def _mem_export_to_shareable_handle_v2(
    process: AclProcess, handle: int, flags: int, kind: int
) -> int | bytes:
    _check_kind(process, kind)
    if kind == FABRIC:
        process.current()
        return export(process, handle, flags, _describe)
    return export(process, handle, flags, pack)


@entry("c.mem_set_pid_to_shareable_handle_v2", "oip")
def _mem_set_pid_to_shareable_handle_v2(
    process: AclProcess, share: int | bytes, kind: int, pids: list[int]
) -> None:
    if not pids:
        raise Refused(Code.INVALID_PARAM, "the list of pids is null or empty")
    _check_kind(process, kind)
    admit(process, _value_of(kind, share), pids)


@entry("c.mem_import_from_shareable_handle_v2", "oiK", 0)
def _mem_import_from_shareable_handle_v2(
    process: AclProcess, share: int | bytes, kind: int, flags: int
) -> int:
    if flags:
        raise Refused(Code.INVALID_PARAM, f"flags must be 0, not {flags}")
    _check_kind(process, kind)
    return import_share(process, _value_of(kind, share), process.current().device)


# Keys -------------------------------------------------------------------------------------


@entry("c.ipc_mem_set_attr", "siK")
def _ipc_mem_set_attr(process: AclProcess, text: str, kind: int, value: int) -> None:
    is_v3 = process.profile.generation == 3  # noqa: PLR2004
    if not (process.profile.fabric or is_v3):
        raise Refused(
            Code.RT_FEATURE_NOT_SUPPORT, "this product has only one link to another device's memory"
        )
    if kind:
        raise Refused(Code.RT_PARAM_INVALID, f"keys have no attribute {kind}")
    if value not in (_LINKS_V3 if is_v3 else _LINKS):
        code = Code.RT_LINK_TYPE_NOT_SUPPORT if is_v3 else Code.RT_FEATURE_NOT_SUPPORT
        raise Refused(code, f"this product has no link {value}")
    if is_v3:
        # In this generation, the importer chooses the link, so the caller need not own the key.
        check_known(process, text)
    else:
        check_owner(process, text)


@entry("c.ipc_mem_import_pid_inter_server", "so")
def _ipc_mem_import_pid_inter_server(
    process: AclProcess, text: str, servers: list[tuple[int, list[int]]]
) -> None:
    """Admit processes to a key's memory.

    Each entry of ``servers`` is a server's number and the pids of processes on that server.
    """
    if not process.profile.fabric:
        raise Refused(Code.RT_FEATURE_NOT_SUPPORT, "this product has no fabric")
    if not servers or not all(pids for _, pids in servers):
        raise Refused(Code.INVALID_PARAM, "the list of servers or a list of pids is null or empty")
    check_owner(process, text)
    for server, pids in servers:
        # The emulation has no other server, so the pids of other servers are ignored.
        if server == _SERVER:
            admit_by_key(process, text, pids)
