# SPDX-License-Identifier: Apache-2.0
"""The part of a run that measures how fast dicts of arrays are copied into shared memory."""

from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Final

from crossmem.bench.cases import run_case
from crossmem.bench.machine import available_nbytes
from crossmem.bench.suite import Suite
from crossmem.bench.targets import size_name

__all__ = ["WAYS", "run"]

WAYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "crossmem": "crossmem, share(copy=True)",
        "mp": "mp.shared_memory",
        "ray": "Ray, put and get",
        "torch": "PyTorch, tensors already in shared memory (no copy)",
    }
)
"""The titles of the ways to share a dict of arrays. Each key is the name of a way."""

_ARRAYS: Final = 8
_NEEDS: Final = {"crossmem": "numpy", "mp": "numpy", "ray": "ray", "torch": "torch"}


def run(suite: Suite) -> None:
    """Measure this part, and add its rows to the report.

    In a brief run, do nothing. Without NumPy, only add a note that the part was not measured.
    """
    if suite.plan.is_brief:
        return
    if not find_spec("numpy"):
        suite.note("copies of dicts of arrays were not measured: numpy is not installed")
        return
    _copied(suite)
    _updated(suite)


def _has_room(suite: Suite, nbytes: int, title: str) -> bool:
    # The free memory must have room for the dict, its copy, and earlier copies in Ray's store.
    if available_nbytes() >= 6 * nbytes:
        return True
    suite.note(f"{title} at {size_name(nbytes)} was not measured: too little memory is free")
    return False


def _copied(suite: Suite) -> None:
    plan = suite.plan
    ways = [way for way in WAYS if find_spec(_NEEDS[way])]
    suite.report.absent.update({WAYS[way]: "not installed" for way in WAYS if way not in ways})
    for nbytes in plan.copied_sizes:
        suite.say(f"a dict of arrays, {size_name(nbytes)} in all, copied into shared memory")
        rounds: dict[tuple[str, str], list[float]] = {}
        for turn in range(plan.copied_pairs):
            for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                if not _has_room(suite, nbytes, WAYS[way]):
                    continue
                found = run_case(
                    suite,
                    "copies",
                    "copied",
                    kind=way,
                    nbytes=nbytes,
                    arrays=_ARRAYS,
                    rounds=plan.copied_rounds,
                )
                for metric, seconds in found.items():
                    rounds.setdefault((way, metric), []).extend(one * 1e3 for one in seconds)
        for way in ways:
            for metric in ("cold", "warm"):
                values = rounds.get((way, metric), [])
                suite.report.add("copies", WAYS[way], metric, values, "ms", nbytes=nbytes)


def _updated(suite: Suite) -> None:
    plan, nbytes = suite.plan, suite.plan.updated_nbytes
    if not _has_room(suite, nbytes, "update"):
        return
    suite.say(f"copies of {size_name(nbytes)} by crossmem and by NumPy")
    rounds: dict[str, list[float]] = {}
    for turn in range(plan.copied_pairs):
        found = run_case(
            suite,
            "copies",
            "updated",
            nbytes=nbytes,
            arrays=_ARRAYS,
            rounds=plan.updated_rounds,
            plain_first=turn % 2 == 0,
        )
        for metric, seconds in found.items():
            rounds.setdefault(metric, []).extend(one * 1e3 for one in seconds)
    for metric, values in rounds.items():
        subject = "NumPy" if metric.endswith("copy") else "crossmem"
        suite.report.add("updates", subject, metric, values, "ms", nbytes=nbytes)
