# SPDX-License-Identifier: Apache-2.0
"""The sizes, counts and rounds of a benchmark in each mode."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

__all__ = ["KIB", "MIB", "PLANS", "Plan"]

KIB: Final = 1 << 10
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes, counts and rounds of a run. A round measures the peers in turn, or crossmem alone.

    Parameters
    ----------
    sizes
        Sizes in bytes of the allocations whose whole lives, from create to free, are measured.
    rounds, count
        Number of rounds in which whole lives are measured, at each size. ``count`` is the number of
        each peer's allocations in such a round.
    budget_s
        Seconds after which a peer's part of such a round ends early. At large sizes, peers that
        write to every page reach this limit.
    batch, batch_rounds
        Number of allocations in each round of the sections ``loop``, ``churn`` and ``held`` of the
        report, and number of rounds. A round of the section ``batch`` attaches ``batch``
        allocations in one call, and ``batch`` other allocations one by one.
    busy
        Number of attaches to a busy exporter in a round. The benchmark measures each load on the
        exporter in ``batch_rounds`` rounds, and the load ``GIL held`` in ``holds`` rounds. While
        the GIL is held, a peer that needs the exporter's answer for each attach makes only one
        attach in a round.
    holds, hold_s
        Number of rounds of the load ``GIL held``, and the seconds for which the exporter holds the
        GIL in each round.
    repeats, repeat_rounds
        Number of allocations in each round of the section ``repeats``, and number of rounds. Round
        trips and hand-overs use the same two numbers. ``repeats`` is also how often the rows of
        importers are read, how many batches of blocks are freed, and how often a C program calls
        each function.
    bandwidth_sizes, bandwidth_rounds, bandwidth_repeats
        ``bandwidth_sizes`` are sizes in bytes of the memory whose bandwidth is measured. Each size
        has ``bandwidth_rounds`` rounds. Each round has fresh allocations. A round times
        ``bandwidth_repeats`` reads of an allocation, and as many writes.
    parts_of, parts
        Number of allocations, and number of parts of each allocation. An importer attaches all
        parts one after another, and keeps them attached.
    separate
        Number of allocations that live at the same time, if the descriptor limit allows as many.
    imports
        Number of fresh interpreters for each import statement. A C program that calls an emulated
        library runs equally often.
    traced
        Number of repeated imports of an allocation. A part of the allocation is imported equally
        often. The benchmark counts the system calls of all these imports together.
    tensors, tree_nbytes, tree_rounds
        Number of tensors in a shared tree, the total size of the tensors in bytes, and how often
        crossmem shares the tree. ``tree_rounds`` is also how often an array is sent through a
        queue.
    array_nbytes
        Size of the array that is sent through queues and that readers attach, in bytes.
    readers
        Number of processes that read one array.
    copied_sizes, copied_pairs, copied_rounds
        Sizes in bytes of the dicts that are copied into shared memory. Each way to copy has
        ``copied_pairs`` fresh pairs of processes at each size. Each pair makes the copy
        ``copied_rounds`` times.
    updated_nbytes, updated_rounds
        Size in bytes of the dict that is copied once and then updated, and the number of updates in
        each of ``copied_pairs`` fresh processes.
    is_brief
        Whether the run measures only some sections of the report, and computes no targets.
    """

    sizes: tuple[int, ...] = (4 * KIB, 2 * MIB, 1024 * MIB)
    rounds: int = 5
    count: int = 60
    budget_s: float = 0.5
    batch: int = 1000
    batch_rounds: int = 2
    busy: int = 20
    holds: int = 1
    hold_s: float = 1.0
    repeats: int = 200
    repeat_rounds: int = 3
    bandwidth_sizes: tuple[int, ...] = (2 * MIB, 256 * MIB)
    bandwidth_rounds: int = 3
    bandwidth_repeats: int = 7
    parts_of: int = 100
    parts: int = 100
    separate: int = 10_000
    imports: int = 5
    traced: int = 1000
    tensors: int = 1000
    tree_nbytes: int = 64 * MIB
    tree_rounds: int = 5
    array_nbytes: int = 64 * MIB
    readers: int = 8
    copied_sizes: tuple[int, ...] = (4 * MIB, 256 * MIB)
    copied_pairs: int = 3
    copied_rounds: int = 5
    updated_nbytes: int = 512 * MIB
    updated_rounds: int = 3
    is_brief: bool = False


PLANS: Final = MappingProxyType(
    {
        "smoke": Plan(
            rounds=2,
            count=5,
            batch=20,
            batch_rounds=1,
            busy=2,
            hold_s=0.1,
            repeats=10,
            repeat_rounds=1,
            bandwidth_sizes=(2 * MIB,),
            bandwidth_rounds=1,
            bandwidth_repeats=3,
            parts_of=10,
            parts=20,
            separate=50,
            imports=1,
            traced=20,
            tensors=10,
            tree_nbytes=MIB,
            tree_rounds=2,
            array_nbytes=4 * MIB,
            readers=2,
            copied_sizes=(4 * MIB,),
            copied_pairs=1,
            copied_rounds=2,
            updated_nbytes=4 * MIB,
            updated_rounds=2,
        ),
        "brief": Plan(
            rounds=9,
            count=30,
            budget_s=0.2,
            batch=300,
            batch_rounds=5,
            busy=10,
            repeats=100,
            bandwidth_sizes=(256 * MIB,),
            is_brief=True,
        ),
        "quick": Plan(),
        "full": Plan(
            rounds=25,
            count=200,
            budget_s=2.0,
            batch_rounds=9,
            busy=40,
            holds=9,
            repeats=1000,
            repeat_rounds=9,
            bandwidth_sizes=(2 * MIB, 256 * MIB, 1024 * MIB),
            bandwidth_rounds=9,
            bandwidth_repeats=15,
            imports=25,
            traced=10_000,
            tree_nbytes=2048 * MIB,
            tree_rounds=25,
            array_nbytes=256 * MIB,
            copied_pairs=9,
            copied_rounds=9,
            updated_rounds=9,
        ),
    }
)
"""The plan of each mode. The key is the mode."""
