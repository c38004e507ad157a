# SPDX-License-Identifier: Apache-2.0
"""The recorded violations and the injected faults of a whole emulated host."""

import os
from typing import NamedTuple

from crossmem_emulated.machine import Machine

__all__ = ["Faults", "Journal", "Violation"]


class Violation(NamedTuple):
    """One call that the vendor forbids or leaves undefined."""

    pid: int
    """The process that made the call."""
    call: str
    """The vendor's function, such as ``"rt.map_mem"``."""
    rule: str
    """Id of the rule, such as ``"ACL-E8"``."""
    text: str
    """A description, with the values of the call."""


class Journal:
    """The violations of all processes of one host, in the order in which they happened."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def record(self, call: str, rule: str, text: str) -> None:
        """Add a violation of this process."""
        with self._machine.transaction() as tables:
            tables.execute(
                "INSERT INTO violation (pid, call, rule, text) VALUES (?, ?, ?, ?)",
                (os.getpid(), call, rule, text),
            )

    def read(self) -> list[Violation]:
        """Return all violations."""
        with self._machine.transaction() as tables:
            rows = tables.execute("SELECT pid, call, rule, text FROM violation ORDER BY number")
            return [Violation(*row) for row in rows]

    def clear(self) -> None:
        """Forget all violations."""
        with self._machine.transaction() as tables:
            tables.execute("DELETE FROM violation")


class Faults:
    """The injected faults of one host. Each is for one process or for all processes."""

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
            The process whose calls fail; None: the calls of all processes, counted together.

        Returns
        -------
        int
            The number for :meth:`remove`.
        """
        with self._machine.transaction() as tables:
            made = tables.execute(
                "INSERT INTO fault (call, code, skip, count, pid) VALUES (?, ?, ?, ?, ?)",
                (call, code, skip, count, pid),
            )
            self._version = None
            return int(made.lastrowid or 0)

    def remove(self, number: int) -> None:
        """Remove a fault. Do nothing if all its calls have failed already."""
        with self._machine.transaction() as tables:
            tables.execute("DELETE FROM fault WHERE number = ?", (number,))
        self._version = None

    def clear(self) -> None:
        """Remove all faults."""
        with self._machine.transaction() as tables:
            tables.execute("DELETE FROM fault")
        self._version = None

    def take(self, call: str) -> int | None:
        """Return the code with which a call must fail, None if the call must not fail."""
        version = self._machine.version
        if version != self._version:
            with self._machine.transaction() as tables:
                rows = tables.execute(
                    "SELECT DISTINCT call FROM fault WHERE pid IS NULL OR pid = ?", (os.getpid(),)
                )
                self._calls = frozenset(name for (name,) in rows)
            self._version = version
        return self._take(call) if call in self._calls else None

    def _take(self, call: str) -> int | None:
        self._version = None
        with self._machine.transaction() as tables:
            row = tables.execute(
                "SELECT number, code, skip, count FROM fault "
                "WHERE call = ? AND (pid IS NULL OR pid = ?) ORDER BY number LIMIT 1",
                (call, os.getpid()),
            ).fetchone()
            if row is None:
                return None
            number, code, skip, count = row
            if skip:
                tables.execute("UPDATE fault SET skip = skip - 1 WHERE number = ?", (number,))
                return None
            if count > 1:
                tables.execute("UPDATE fault SET count = count - 1 WHERE number = ?", (number,))
            else:
                tables.execute("DELETE FROM fault WHERE number = ?", (number,))
            return int(code)
