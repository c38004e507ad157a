# SPDX-License-Identifier: Apache-2.0
"""The thread that releases memory whose owner has died (law C29).

The thread runs as long as an import with ``on_owner_death="release"`` is open. Several times a
second, it checks the pidfds of the owners. Without a pidfd, the end of the connection counts as the
owner's death.
"""

import logging
import weakref
from collections.abc import Iterable
from functools import partial
from typing import ClassVar, Final, Literal, NamedTuple

from typing_extensions import override

from crossmem.control.client import OwnerConnection
from crossmem.control.limits import no_thread
from crossmem.control.threads import PassingThread
from crossmem.errors import BusyError, CrossmemError, UnsupportedError
from crossmem.guards import check_choice
from crossmem.models import ShareableHandle
from crossmem.sharing.base.deferred import Record
from crossmem.sharing.base.ending import Endable, end_because
from crossmem.sharing.base.process import Part, Process
from crossmem.sharing.importer.record import ImportRecord, Use
from crossmem.sharing.importer.remote import RemoteImport

__all__ = ["KEEP", "OnOwnerDeath", "OwnerWatcher", "asks_for_release", "end_with_owner"]

OnOwnerDeath = Literal["keep", "release"]
"""Whether an import stays or is closed when its owner dies."""
KEEP: Final = "keep"
"""The default. On the hot path, callers compare their argument with KEEP, and call
:func:`asks_for_release` only for other values."""

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.2
"""Seconds between two checks of the owners. A live view keeps an object open, even if the owner of
the memory has died. Then each check tries again to end the object."""
_LOOK_AGAIN_S: Final = 0.02
"""Seconds before the second check of an owner that seems to be dead."""


class _Watched(NamedTuple):
    """An open import, mapping or piece. The watcher holds only weak references to it."""

    record: weakref.ref[Record]
    shown: weakref.ref[Endable]
    """The application's object."""


class OwnerWatcher(Part):
    """Ends imports of this process when their owners have died."""

    closing: ClassVar = -3

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._watched: dict[OwnerConnection, dict[int, _Watched]] = {}
        """The watched objects. The keys are the connection to the owner, and the ``id()`` of the
        object's record. A thread that adds an object or removes a connection holds the lock of the
        process's state."""
        self._suspects: set[OwnerConnection] = set()
        """Owners that seemed to be dead at the last check."""
        self._thread = PassingThread(self._look, self._is_needed)

    def watch(self, shown: Endable, record: Record, imported: ImportRecord) -> None:
        """Let the watcher end an object soon after the owner of its memory has died.

        If the object has a live view, the object ends after the view has ended.

        Parameters
        ----------
        shown, record
            The import, mapping or piece, and its record.
        imported
            The import that the object uses. If it is an import of this process's own memory, the
            call does nothing, because the owner cannot die before this process.

        Raises
        ------
        DriverError
            This process can start no more threads.
        """
        if not isinstance(imported, RemoteImport) or imported.connection is None:
            return
        connection, key = imported.connection, id(record)
        with self._process.state:
            watched = self._watched.setdefault(connection, {})
            # When the record is garbage, the callback of the weak reference removes the entry. The
            # callback is C code, so no signal handler can interrupt it.
            gone = weakref.ref(record, partial(watched.pop, key))
            watched[key] = _Watched(gone, weakref.ref(shown))
        if not self._thread.start():
            raise no_thread("crossmem-watcher")

    def _is_needed(self) -> bool:
        with self._process.state:
            for connection, watched in list(self._watched.items()):
                if not watched:
                    del self._watched[connection]
            if not self._watched:
                self._suspects.clear()
            return bool(self._watched)

    def _look(self) -> None:
        """Check each owner once, and end the objects that use memory of dead owners."""
        dead = {one for one in list(self._watched) if _is_owner_dead(one)}
        # Without a pidfd, an owner also seems to be dead while another thread reconnects to the
        # owner. So an owner counts as dead only after two checks in a row.
        certain, self._suspects = dead & self._suspects, dead
        for connection in certain:
            self._let_go(connection)
        self._thread.bell.wait(_LOOK_S if dead == certain else _LOOK_AGAIN_S)

    def _let_go(self, connection: OwnerConnection) -> None:
        pid = connection.owner.pid
        why = f'its owner, process {pid}, died, and on_owner_death="release" closed it'
        # The newest comes first: an import cannot end before its mappings, which were made later.
        for one in reversed(list(self._watched.get(connection, {}).values())):
            record, shown = one.record(), one.shown()
            if record is None or record.is_done:
                continue
            try:
                if shown is None or shown.closed:
                    # The object was dropped, or its release has failed. Its record is in the queue
                    # of deferred work.
                    self._process.drain()
                else:
                    end_because(shown, why)
            except BusyError:
                # A view is alive, or the import has a mapping. The next check tries again.
                continue
            except CrossmemError as error:
                _log.debug("releasing memory of the dead process %d: %s", pid, error)
            except Exception:  # noqa: BLE001 - logged with its traceback
                # Other imports need this thread, so a driver's fault must not end the thread.
                _log.exception("releasing memory of the dead process %d failed", pid)

    @override
    def close_at_exit(self) -> None:
        """End the thread."""
        self._thread.stop()


def _is_owner_dead(connection: OwnerConnection) -> bool:
    try:
        return connection.is_owner_dead(within_s=0.0)
    except (OSError, TypeError, ValueError):
        # Another thread has closed the connection, because no import from that owner is left.
        return False


def asks_for_release(on_owner_death: object, handles: Iterable[ShareableHandle]) -> bool:
    """Check ``on_owner_death``, and return whether imports end when their owners die.

    Raises
    ------
    ConfigurationError
        The value is neither ``"keep"`` nor ``"release"``.
    UnsupportedError
        The value is ``"release"``, but a handle is raw. This process has no connection to the owner
        of a raw handle, so it cannot watch the owner.
    """
    check_choice("on_owner_death", on_owner_death, ("keep", "release"), "import")
    if on_owner_death == "keep":
        return False
    for handle in handles:
        if handle.raw is not None:
            msg = "the owner of a raw handle cannot be watched: importers have no connection to it"
            hint = 'import the handle with on_owner_death="keep"'
            raise UnsupportedError(msg, operation="import", backend=handle.backend, hint=hint)
    return True


def end_with_owner(shown: Endable, record: Record, use: Use) -> None:
    """Let the watcher end an object when its memory's owner dies; see :meth:`OwnerWatcher.watch`.

    Parameters
    ----------
    shown, record
        The import, mapping or piece, and its record.
    use
        The object's use of an import.
    """
    use.ends_with_owner = True
    if use.record is not None:
        use.process.part(OwnerWatcher).watch(shown, record, use.record)
