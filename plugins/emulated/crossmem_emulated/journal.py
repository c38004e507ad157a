# SPDX-License-Identifier: Apache-2.0
"""The recorded violations and the injected faults of all processes of an emulated host."""

import os
from typing import Final, NamedTuple

from crossmem.models.identity import process_start_time
from crossmem_emulated.machine import Machine

__all__ = ["Faults", "Journal", "Violation"]


class Violation(NamedTuple):
    """One call that the vendor forbids or leaves undefined."""

    pid: int
    """Id of the process that made the call."""
    call: str
    """The vendor's function, such as ``"rt.map_mem"``."""
    rule: str
    """Id of the rule, such as ``"ACL-E8"``."""
    text: str
    """A description, with the values of the call."""


_OF_PROCESS: Final = (
    "(pid IS NULL OR (pid, start_time) = (SELECT pid, start_time FROM process WHERE number = ?))"
)
"""A condition in SQL. It selects the faults that are for all processes, and the faults that are for
one process. The parameter is the number of that process in the table ``process``."""


class Journal:
    """The violations of all processes of one emulated host, in the order of the calls."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def record(self, call: str, rule: str, text: str) -> None:
        """Add a violation of this process."""
        with self._machine.transaction() as tables:
            tables.execute(
                "INSERT INTO violation (pid, call, rule, text) VALUES (?, ?, ?, ?)",
                (os.getpid(), call, rule, text),
            )

    def read(self, after: int = 0) -> list[Violation]:
        """Return the violations whose numbers are larger than ``after``; see :meth:`last`."""
        query = "SELECT pid, call, rule, text FROM violation WHERE number > ? ORDER BY number"
        with self._machine.transaction() as tables:
            return [Violation(*row) for row in tables.execute(query, (after,))]

    def last(self) -> int:
        """Return the number of the last violation, or 0 if there is none.

        After :meth:`clear`, no violation gets the number of a deleted violation.
        """
        with self._machine.transaction() as tables:
            query = "SELECT COALESCE(MAX(number), 0) FROM violation"
            found: int = tables.execute(query).fetchone()[0]
            return found

    def clear(self) -> None:
        """Delete all violations."""
        with self._machine.transaction() as tables:
            tables.execute("DELETE FROM violation")


class Faults:
    """The injected faults of one emulated host. A fault makes calls of one function fail.

    Each fault is for one process or for all processes. A fault ends when the process that added the
    fault ends.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._version: object = None
        self._calls: frozenset[str] = frozenset()

    def add(
        self, call: str, code: int, *, skip: int = 0, count: int = 1, pid: int | None = None
    ) -> int:
        """Make calls of a function fail with a code. A call that fails has no effect.

        Parameters
        ----------
        call
            The vendor's function, such as ``"rt.map_mem"``.
        code
            The result of the calls that fail.
        skip
            Number of calls that run normally before the first failure.
        count
            Number of calls that fail after the skipped calls.
        pid
            The id of a living process, whose calls fail. If None, the calls of all processes fail,
            and ``skip`` and ``count`` apply to all these calls together.

        Returns
        -------
        int
            The fault's number, for :meth:`remove`.
        """
        # The start time distinguishes the process ``pid`` from a later process with this pid.
        started = None if pid is None else process_start_time(pid)
        with self._machine.transaction() as tables:
            made = tables.execute(
                "INSERT INTO fault (call, code, skip, count, pid, start_time, process) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (call, code, skip, count, pid, started, self._machine.me(tables)),
            )
            self._version = None
            return int(made.lastrowid or 0)

    def remove(self, number: int) -> None:
        """Remove a fault. Do nothing if the fault has ended already."""
        with self._machine.transaction() as tables:
            tables.execute("DELETE FROM fault WHERE number = ?", (number,))
        self._version = None

    def clear(self) -> None:
        """Remove all faults."""
        with self._machine.transaction() as tables:
            tables.execute("DELETE FROM fault")
        self._version = None

    def take(self, call: str) -> int | None:
        """Count a call. Return the code with which the call must fail, or None."""
        version = self._machine.version
        if version != self._version:
            with self._machine.transaction() as tables:
                query = f"SELECT DISTINCT call FROM fault WHERE {_OF_PROCESS}"  # noqa: S608
                rows = tables.execute(query, (self._machine.me(tables),))
                self._calls = frozenset(name for (name,) in rows)
            self._version = version
        return self._take(call) if call in self._calls else None

    def _take(self, call: str) -> int | None:
        self._version = None
        with self._machine.transaction() as tables:
            query = (
                "SELECT number, code, skip, count, process FROM fault "  # noqa: S608 - constant
                f"WHERE call = ? AND {_OF_PROCESS} ORDER BY number"
            )
            rows = tables.execute(query, (call, self._machine.me(tables))).fetchall()
            row = next((one for one in rows if self._machine.lives(tables, one[-1])), None)
            if row is None:
                return None
            number, code, skip, count, _ = row
            if skip:
                tables.execute("UPDATE fault SET skip = skip - 1 WHERE number = ?", (number,))
                return None
            if count > 1:
                tables.execute("UPDATE fault SET count = count - 1 WHERE number = ?", (number,))
            else:
                tables.execute("DELETE FROM fault WHERE number = ?", (number,))
            return int(code)
