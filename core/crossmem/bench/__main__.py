# SPDX-License-Identifier: Apache-2.0
"""``python -m crossmem.bench``: runs the benchmark, even if the extra ``cli`` is not installed."""

import argparse
import sys
from pathlib import Path

from crossmem.bench import PEERS, render, run
from crossmem.bench.plan import PLANS


def main() -> int:
    """Run the benchmark. Return 1 if a target of the report was missed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m crossmem.bench")
    parser.description = "Measure crossmem and other ways to share memory, side by side."
    parser.add_argument("--mode", choices=list(PLANS), default="brief", help="how much to measure")
    parser.add_argument(
        "--peer",
        action="append",
        choices=list(PEERS),
        help="measure only this way to share memory; may be repeated",
    )
    parser.add_argument("--device", default="host", help="the device that crossmem uses")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to this file")
    arguments = parser.parse_args()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    report = run(arguments.mode, peers=arguments.peer, device=arguments.device, say=say)
    render(report)
    if arguments.json:
        arguments.json.write_text(report.to_json() + "\n")
    return int(any(target.met is False for target in report.targets))


if __name__ == "__main__":
    sys.exit(main())
