# SPDX-License-Identifier: Apache-2.0
"""The driver for Ascend NPUs: it makes devices current, and calls the mechanisms and queues."""

import os
from collections.abc import Callable, Sequence
from typing import Final

from typing_extensions import override

from crossmem.driver import Block, CopyKind, Exported, Imported, Peer, VendorQueues
from crossmem.driver.cleanup import in_any_case
from crossmem.driver.recording import call_into
from crossmem.driver.vendor import VendorDriver
from crossmem.errors import (
    AccessDeniedError,
    BackendUnavailableError,
    CrossmemError,
    InvalidHandleError,
    UnsupportedError,
)
from crossmem.guards import clause
from crossmem.models import Access, Capabilities
from crossmem_ascend.buffers import MAX_BUFFER_NBYTES
from crossmem_ascend.context import Contexts
from crossmem_ascend.devices import find_devices
from crossmem_ascend.errors import BACKEND, SUCCESS
from crossmem_ascend.key import Key
from crossmem_ascend.library import open_tdt
from crossmem_ascend.mechanism import GRANULARITY_NBYTES, Mechanism
from crossmem_ascend.peers import PeerAccess
from crossmem_ascend.queues import NAME, QueueMechanism, obstacle
from crossmem_ascend.runtime import PEER_ACCESS, Acl, Vendor
from crossmem_ascend.shareable import Shareable
from crossmem_ascend.streams import StreamOrder

__all__ = ["AscendDriver"]

_DLPACK_EXTENSION: Final = 12
_MAX_ALLOCATION_NBYTES: Final = 1 << 40
"""An upper bound for every device. A device that is not open does not report its memory's size."""

_HOST_KINDS: Final = {CopyKind.HOST_TO_DEVICE: 1, CopyKind.DEVICE_TO_HOST: 2}
_DEVICE_TO_DEVICE: Final = 3
_MAX_TGID: Final = (1 << 31) - 1


class AscendDriver(VendorDriver):
    """Memory of Ascend NPUs, through pyACL or a binding with pyACL's interface.

    Some members exist only under a condition:

    - the methods of :class:`crossmem.driver.AddressRanges`, if the runtime has shareable handles
    - the methods of :class:`crossmem.driver.StreamWords`, if streams can write values
    - the methods of :class:`crossmem.driver.VendorQueues`, if the vendor's queues work between
      processes
    - ``violations``, if the runtime is an emulation that records API misuse

    Raises
    ------
    BackendUnavailableError
        The runtime supports neither shareable handles nor keys, because it lacks functions.
    """

    backend = BACKEND

    register_host: Callable[[int, int, int], int]
    unregister_host: Callable[[int, int], None]
    write_value: Callable[[int, int, int, int], None]
    wait_value: Callable[[int, int, int, int], None]

    def __init__(self, acl: Acl) -> None:
        self._vendor = Vendor(acl)
        self._shareable = Shareable(self._vendor)
        mechanisms: tuple[Mechanism, ...] = (self._shareable, Key(self._vendor))
        self._mechanisms = {
            one.name: one for one in mechanisms if not self._vendor.missing(one.needs)
        }
        if not self._mechanisms:
            missing = {one.name: ", ".join(self._vendor.missing(one.needs)) for one in mechanisms}
            words = [f"{name} needs {functions}" for name, functions in missing.items()]
            raise BackendUnavailableError(
                f"acl.rt supports no mechanism: {clause('; '.join(words))}",
                hint="shareable handles need CANN 8.0, keys need CANN 8.3.RC1",
                details="\n".join(words),
                backend=BACKEND,
            )
        self._current = Contexts(self._vendor)
        self._peers = PeerAccess(self._vendor, self._current)
        self._devices = find_devices(self._vendor, os.environ)
        self._capabilities: dict[tuple[int, str | None], Capabilities] = {}
        self._tgid: int | None = None
        if self._shareable.name in self._mechanisms:
            self._offer_ranges(self._shareable)
        self._order = order = StreamOrder(self._vendor, self._on)
        self.synchronize_stream = order.synchronize_stream
        self.create_stream, self.destroy_stream = order.create_stream, order.destroy_stream
        self.copy_async = order.copy_async
        if "word" in order.levels:
            self.register_host, self.unregister_host = order.register_host, order.unregister_host
            self.write_value, self.wait_value = order.write_value, order.wait_value
        self._tdt = open_tdt(acl)
        self._has_queues = not obstacle(self._vendor, self._tdt, 0, os.environ)
        if self._has_queues:
            self._offer_queues()
        if hasattr(acl, "violations"):
            self.violations = lambda: [str(one) for one in acl.violations]

    def _offer_queues(self) -> None:
        """Offer the group :class:`crossmem.driver.VendorQueues`."""
        queues = QueueMechanism(self._vendor, self._tdt, self._on, self._about)
        for name in (one for one in vars(VendorQueues) if not one.startswith("_")):
            setattr(self, name, getattr(queues, name))

    @override
    def refusal(self, ordinal: int, mechanism: str) -> UnsupportedError | None:
        if mechanism == NAME:
            return obstacle(self._vendor, self._tdt, ordinal, os.environ)
        return None

    @override
    def capabilities(self, ordinal: int, mechanism: str | None) -> Capabilities:
        found = self._capabilities.get((ordinal, mechanism))
        if found is None:
            peer_access = self._reaches_all(ordinal)
            names = tuple(self._mechanisms)
            if self._has_queues and not ordinal:
                names += (NAME,)
            for name in (None, *names):
                found = self._capabilities_of(name, names, peer_access)
                self._capabilities[ordinal, name] = found
            found = self._capabilities[ordinal, mechanism]
        return found

    def _capabilities_of(
        self,
        mechanism: str | None,
        names: tuple[str, ...],
        peer_access: bool,  # noqa: FBT001
    ) -> Capabilities:
        is_queue = mechanism == NAME
        is_shareable = (mechanism or names[0]) == self._shareable.name
        return Capabilities(
            mechanisms=names,
            granularity_nbytes=GRANULARITY_NBYTES,
            max_allocation_nbytes=MAX_BUFFER_NBYTES if is_queue else _MAX_ALLOCATION_NBYTES,
            host_visible=False,
            readonly_exports=False,
            readonly_imports=False,
            peer_access=is_shareable and peer_access,
            fork_safe=False,
            survives_owner=is_shareable,
            raw_handles=not is_queue,
            address_ranges=is_shareable,
            foreign_memory=False,
            dlpack_device_type=_DLPACK_EXTENSION,
            timeline_levels=self._order.levels,
            vendor_queues=is_queue,
        )

    def _reaches_all(self, ordinal: int) -> bool:
        others = [one.ordinal for one in self._devices if one.ordinal != ordinal]
        if not others or self._vendor.missing(PEER_ACCESS):
            return False
        try:
            return all(
                self._peers.exists(ordinal, one) and self._peers.exists(one, ordinal)
                for one in others
            )
        except CrossmemError:
            # A product without peer access refuses the query.
            return False

    # Own memory ---------------------------------------------------------------------------

    @override
    def export(self, block: Block, mechanism: str, access: Access, *, raw: bool) -> Exported:
        owned = block.reference
        if owned.raw is not None and owned.raw != raw:
            kinds = ("with leases", "raw")
            raise UnsupportedError(
                f"this memory was exported {kinds[owned.raw]}, so it cannot be exported "
                f"{kinds[raw]}: the vendor's whitelist is on or off for the whole allocation",
                hint="allocate separate memory for raw exports",
                operation="export",
                backend=BACKEND,
            )
        with self._on(block.ordinal, "export"):
            payload: bytes = owned.mechanism.export(block, raw=raw)
            owned.raw = raw
        return Exported((payload,))

    # The whitelist ------------------------------------------------------------------------

    @override
    def peer_identity(self) -> int:
        if self._tgid is None:
            rt = self._vendor.rt
            self._tgid = self._vendor.value("rt.device_get_bare_tgid", rt.device_get_bare_tgid())
        return self._tgid

    @override
    def grant(self, block: Block, exported: Exported, peers: Sequence[Peer]) -> None:
        owned = block.reference
        mechanism: Mechanism = owned.mechanism
        with self._about(block.ordinal, "export"):
            tgids = [self._check_peer(peer) for peer in peers]
            if len(owned.admitted.union(tgids)) > mechanism.whitelist_limit:
                raise AccessDeniedError(
                    f"the vendor admits at most {mechanism.whitelist_limit} processes to this "
                    "allocation, including processes that have ended since",
                    hint="copy the memory to another allocation, and export that allocation",
                    backend=BACKEND,
                )
            # No device is current on the lease server's thread, which calls this method.
            with self._current.on(block.ordinal):
                mechanism.admit(block, tgids)
            owned.admitted.update(tgids)

    def _check_peer(self, peer: Peer) -> int:
        """Return the bare tgid that a peer reports. Refuse a number that cannot be the peer's.

        A bare tgid is the vendor's number of a process.
        """
        own = self.peer_identity()
        fault = None
        if not 0 < peer.reported <= _MAX_TGID:
            fault = "which is not a process number"
        elif peer.reported == own:
            fault = "which is the exporter's"
        # Outside of containers, the bare tgid of a process is its pid. If the bare tgid of this
        # process is its pid, the bare tgid of the peer must be the peer's pid.
        elif own == os.getpid() and peer.pid and peer.pid != peer.reported:
            fault = f"but is process {peer.pid}"
        if fault is not None:
            raise AccessDeniedError(
                f"the importer reports the bare tgid {peer.reported}, {fault}",
                backend=BACKEND,
            )
        return peer.reported

    # Memory of other processes ------------------------------------------------------------

    @override
    def import_(
        self,
        ordinal: int,
        exported: Exported,
        *,
        home: int,
        mechanism: str,
        nbytes: int,
        capacity: int,
        access: Access,
    ) -> Imported:
        way = self._mechanisms[mechanism]
        if len(exported.payloads) != 1 or exported.descriptors:
            raise InvalidHandleError(
                f"an export of {BACKEND} memory has 1 payload and 0 descriptors; this one has "
                f"{len(exported.payloads)} payloads and {len(exported.descriptors)} descriptors",
                operation="import",
                backend=BACKEND,
            )
        if capacity % GRANULARITY_NBYTES or not 0 < nbytes <= capacity:
            raise InvalidHandleError(
                f"the exporter reports {nbytes} bytes and capacity {capacity}; the capacity must "
                f"be a multiple of {GRANULARITY_NBYTES} and hold the bytes",
                operation="import",
                backend=BACKEND,
            )
        if home != ordinal and way is not self._shareable:
            raise UnsupportedError(
                f"mechanism {mechanism!r} shares memory only between processes on one device: on "
                "another device, copies from and to the host fail",
                hint=f"allocate with mechanism {self._shareable.name!r}",
                operation="import",
                backend=BACKEND,
            )
        made: list[Imported] = []
        try:
            with self._on(ordinal, "import"):
                if home != ordinal:
                    self._peers.enable(ordinal, home)
                call_into(made, way.import_, ordinal, exported.payloads[0], capacity, access)
        except BaseException as error:
            for imported in made:
                self._undo(error, self.close, imported)
            raise
        return made[0]

    # Work of the device -------------------------------------------------------------------

    @override
    def copy(self, ordinal: int, target: int, source: int, nbytes: int, kind: CopyKind) -> None:
        vendor, rt = self._vendor, self._vendor.rt
        with self._on(ordinal, "copy"):
            if kind is not CopyKind.DEVICE_TO_DEVICE:
                code = rt.memcpy(target, nbytes, source, nbytes, _HOST_KINDS[kind])
                vendor.check("rt.memcpy", code)
                return
            if self.capabilities(ordinal, None).peer_access:
                self._peers.enable_all(ordinal)
            # The copy needs a stream, because a synchronous copy within one device refuses imported
            # memory (error 207000).
            stream = vendor.value("rt.create_stream", rt.create_stream())
            with in_any_case(lambda: self._destroy(stream)):
                code = rt.memcpy_async(target, nbytes, source, nbytes, _DEVICE_TO_DEVICE, stream)
                vendor.check("rt.memcpy_async", code)
                vendor.check("rt.synchronize_stream", rt.synchronize_stream(stream))

    def _destroy(self, stream: int) -> None:
        rt = self._vendor.rt
        code = rt.destroy_stream(stream)
        if code != SUCCESS:
            # No later call knows this stream, so this is the last chance to destroy it.
            rt.destroy_stream(stream)
        self._vendor.check("rt.destroy_stream", code)

    @override
    def synchronize(self, ordinal: int) -> None:
        vendor, rt = self._vendor, self._vendor.rt
        with self._on(ordinal, "synchronize"):
            # The vendor's call waits only for streams of the current context.
            vendor.check("rt.synchronize_device", rt.synchronize_device())
            with self._current.on_default(ordinal) as is_another:
                if is_another:
                    vendor.check("rt.synchronize_device", rt.synchronize_device())
