# SPDX-License-Identifier: Apache-2.0
"""Where the conformance kit runs: the backends and mechanisms, how much of the kit, in which tier.

``docs/explanation/contract.md`` shows this as tables. This file as a program writes them anew.
"""

import io
import os
import re
import sys
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import pytest
from measuring import UNMEASURED

import crossmem.conformance
from crossmem.conformance.peers import Peer
from crossmem.conformance.report import LAWS, POOL_LAWS, QUEUE_LAWS, TIMELINE_LAWS
from crossmem.conformance.servers import preload

KIT: Final = Path(crossmem.conformance.__file__).parent
PAGE: Final = Path(__file__).parents[2] / "docs" / "explanation" / "contract.md"
_PLUGINS: Final = (
    *("crossmem_emulated.driver", "crossmem_emulated.host"),
    *("crossmem_ascend.driver", "crossmem_hip.driver"),
)
_OF_STREAMS: Final = ("test_timelines", "test_hand_over", "test_queues_streams")
_MEMORY: Final = Path("/dev/shm")
_BEGIN: Final = "<!-- tables of tests/support/kit_runs.py -->\n"
_END: Final = "<!-- end of the tables -->\n"


class KitRun(NamedTuple):
    """The kit on one backend, which is host memory or an emulation."""

    backend: str
    mechanism: str
    part: str
    """``core``; ``whole``; ``rest``, which the core leaves; or ``streams``, the tests of the core
    that give work to streams."""
    tier: str
    """``default``, ``ci`` or ``long``."""
    profile: str = ""
    """Edition of the vendor's rules, where it is not the default one."""
    on_blocks: bool = False
    """Whether blocks of pools are tested in place of allocations."""
    slow_streams: bool = False
    """Whether streams work only when they are waited for, or some time after a signal."""

    @property
    def options(self) -> list[str]:
        """The options of the kit."""
        options = ["--crossmem-device", f"{self.backend}:0", "--crossmem-mechanism", self.mechanism]
        options += (
            [] if self.backend in {"host", "emulated"} else ["--crossmem-runtime", "emulated"]
        )
        options += ["--crossmem-core"] if self.part in {"core", "streams"} else []
        options += ["-m", "not crossmem_core"] if self.part == "rest" else []
        options += ["--crossmem-blocks"] if self.on_blocks else []
        return options

    @property
    def modules(self) -> str:
        """Which modules run, as an expression for ``pytest -k``; empty for all."""
        return " or ".join(_OF_STREAMS) if self.part == "streams" else ""

    def has(self, test: "KitTest") -> bool:
        """Whether a test of the kit belongs to this part of it."""
        if self.part == "streams":
            return test.is_core and test.module.startswith(_OF_STREAMS)
        return {"core": test.is_core, "rest": not test.is_core}.get(self.part, True)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that choose the profile and the speed of streams."""
        api = "ACL" if self.backend == "ascend" else "HIP"
        if self.mechanism == "acltdt":
            # Emulated programs on the device's own processor, in one memory group.
            return {
                "CROSSMEM_EMULATED_ACL_PROFILE": self.profile,
                "CROSSMEM_EMULATED_ACL_GROUP": "kit",
                "SHAREGROUP_PRECONFIG": "1",
            }
        found = {f"CROSSMEM_EMULATED_{api}_PROFILE": self.profile} if self.profile else {}
        return found | ({"CROSSMEM_EMULATED_SLOW_STREAMS": "1"} if self.slow_streams else {})


RUNS: Final = (
    KitRun("host", "memfd", "whole", "default"),
    KitRun("ascend", "shareable", "core", "default"),
    KitRun("hip", "legacy", "core", "default"),
    KitRun("ascend", "key", "core", "ci"),
    KitRun("hip", "vmm", "core", "ci"),
    KitRun("cuda", "legacy", "core", "ci"),
    KitRun("emulated", "memfd", "core", "ci"),
    KitRun("emulated", "memfd", "whole", "long"),
    KitRun("ascend", "shareable", "rest", "long"),
    KitRun("hip", "legacy", "rest", "long"),
    KitRun("ascend", "key", "whole", "long"),
    KitRun("hip", "vmm", "whole", "long"),
    KitRun("cuda", "legacy", "whole", "long"),
    KitRun("cuda", "vmm", "whole", "long"),
    # "310b-rc" shares nothing else.
    KitRun("ascend", "acltdt", "whole", "ci", "310b-rc"),
    *(
        KitRun("ascend", mechanism, "whole", "long", profile)
        for profile in ("cann8", "a2", "a3", "950", "old-driver")
        for mechanism in ("shareable", "key")
    ),
    *(KitRun("hip", "legacy", "whole", "long", profile) for profile in ("clr24", "clr26", "rocm5")),
    KitRun("host", "memfd", "core", "ci", on_blocks=True),
    *(
        KitRun(backend, mechanism, "whole", "long", on_blocks=True)
        for backend, mechanism in (
            *(("host", "memfd"), ("emulated", "memfd"), ("hip", "legacy"), ("hip", "vmm")),
            *(("ascend", "shareable"), ("ascend", "key"), ("cuda", "legacy"), ("cuda", "vmm")),
        )
    ),
    KitRun("cuda", "vmm", "streams", "ci", slow_streams=True),
    *(
        KitRun(backend, mechanism, "core", "long", slow_streams=True)
        for backend, mechanism in (
            *(("hip", "legacy"), ("hip", "vmm")),
            *(("cuda", "legacy"), ("cuda", "vmm")),
        )
    ),
    # ROCm 5 has no virtual memory.
    *(KitRun("hip", "vmm", "whole", "long", profile) for profile in ("clr24", "clr26")),
)


def _run_here(arguments: list[str]) -> tuple[int, str]:
    """Run pytest in this process, which was started for that; return exit code and output."""
    # A peer has its test's path instead.
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    written = io.StringIO()
    with redirect_stdout(written):
        exit_code = pytest.main(arguments)
    return int(exit_code), written.getvalue()


def run_kit(
    arguments: list[str],
    folder: Path,
    *,
    within: float,
    measured: bool = False,
    fresh: bool = False,
    **environment: str | None,
) -> tuple[int, str]:
    """Run the kit in a process of its own, away from every project; return exit code and output.

    Parameters
    ----------
    arguments
        Options of pytest and of the kit, and what to run.
    folder
        Where it runs; nothing else may use it.
    within
        How long it may take, in seconds.
    measured
        Whether coverage counts what it runs, if coverage runs; that takes twice the time.
    fresh
        Whether the process is started anew, for variables that are read when crossmem is imported.
    environment
        Variables to set, or to remove.
    """
    changed: dict[str, str | None] = {
        "CROSSMEM_RUN_DIR": None,
        "PYTEST_XDIST_WORKER": None,
        # pytest writes its own form of the kit's tests once, wherever the kit is installed.
        "PYTHONDONTWRITEBYTECODE": None,
        "PYTHONPYCACHEPREFIX": str(folder.parent / "bytecode"),
    }
    if not measured:
        changed |= UNMEASURED
    preload("pytest", "hypothesis", "crossmem.conformance.machine", *_PLUGINS)
    # The journal of an emulated host has the API misuse of all its processes. Other runs break the
    # rules on purpose.
    with (
        TemporaryDirectory(prefix="crossmem-", dir=_MEMORY if _MEMORY.is_dir() else None) as state,
        Peer(
            "host",
            tracing=False,
            environment={**changed, "CROSSMEM_EMULATED_STATE": state, **environment},
            fresh=fresh,
        ) as peer,
    ):
        peer.call(os.chdir, str(folder))
        options = ["-q", "-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider"]
        done: tuple[int, str] = peer.call(_run_here, [*options, *arguments], within=within)
        return done


class KitTest(NamedTuple):
    """A test of the kit."""

    module: str
    name: str
    is_core: bool

    @property
    def law(self) -> str:
        """The law that it tests, such as ``C1`` or ``P1``."""
        return f"{self.name[5].upper()}{int(self.name[6:8])}"


def kit_tests() -> list[KitTest]:
    """Return the functions of the kit that are tests."""
    pattern = re.compile(
        r"^(@pytest\.mark\.crossmem_core\n)?def (test_[clpq]\d\d_\w+)", re.MULTILINE
    )
    return [
        KitTest(path.stem, name, bool(core))
        for path in sorted(KIT.glob("test_*.py"))
        for core, name in pattern.findall(path.read_text("utf-8"))
    ]


def tables() -> str:
    """Return the tables of the page on the contract."""
    all_tests = Counter(one.law for one in kit_tests())
    core = Counter(one.law for one in kit_tests() if one.is_core)
    lines = [
        "| backend | mechanism | core of the kit in | whole kit in | on blocks | slow streams |",
        "|---|---|---|---|---|---|",
    ]
    for backend, mechanism in dict.fromkeys((run.backend, run.mechanism) for run in RUNS):
        slow = [
            run
            for run in RUNS
            if (run.backend, run.mechanism) == (backend, mechanism) and run.slow_streams
        ]
        tiers = {
            # After the core, the rest completes the whole.
            run.part.replace("rest", "whole"): run.tier
            for run in RUNS
            if (run.backend, run.mechanism, run.on_blocks, run.slow_streams)
            == (backend, mechanism, False, False)
            and (not run.profile or mechanism == "acltdt")
        }
        on_blocks = {
            run.part: run.tier
            for run in RUNS
            if (run.backend, run.mechanism, run.on_blocks) == (backend, mechanism, True)
        }
        lines.append(
            f"| `{backend}` | `{mechanism}` | {tiers.get('core', tiers['whole'])} "
            f"| {tiers['whole']} "
            f"| {', '.join(f'{part} in {tier}' for part, tier in on_blocks.items())} "
            f"| {', '.join(f'{run.part} in {run.tier}' for run in slow)} |"
        )
    lines += ["", "| law | tests | of these in the core |", "|---|---|---|"]
    lines += [
        f"| {law} | {all_tests[law]} | {core[law]} |"
        for law in (*LAWS, *POOL_LAWS, *TIMELINE_LAWS, *QUEUE_LAWS)
    ]
    return "\n".join(lines) + "\n"


def split(page: str) -> tuple[str, str, str]:
    """Return a page's text before the tables, the tables, and the text after them."""
    before, _, rest = page.partition(_BEGIN)
    found, _, after = rest.partition(_END)
    return before + _BEGIN, found, _END + after


if __name__ == "__main__":
    head, _, tail = split(PAGE.read_text("utf-8"))
    PAGE.write_text(f"{head}\n{tables()}\n{tail}", "utf-8")
    sys.stdout.write(f"wrote the tables of {PAGE.name}\n")
