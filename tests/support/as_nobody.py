# SPDX-License-Identifier: Apache-2.0
"""Run the default tests as the user nobody, in a checkout that cannot be written.

Only root can do that. Arguments are pytest's.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

_CHECKOUT: Final = Path(__file__).parents[2]
_NOBODY: Final = 65534
_AS_NOBODY: Final = ("setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups")


def _copy_checkout(target: Path) -> None:
    """Copy what git tracks, for everybody to read and nobody to write."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], check=True, capture_output=True, text=True, cwd=_CHECKOUT
    )
    for name in filter(None, listed.stdout.split("\0")):
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(_CHECKOUT / name, copy)
    subprocess.run(["chmod", "-R", "a+rX,a-w", target], check=True)


def _uncovered(folder: Path, spare: Path) -> list[str]:
    """Return shell commands that let everybody enter a folder, in a mount namespace."""
    closed = [one for one in reversed(folder.parents) if not one.stat().st_mode & 0o001]
    if not closed:
        return []
    spare.mkdir()
    return [
        f"mount --bind {shlex.quote(str(folder))} {shlex.quote(str(spare))}",
        f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(closed[0]))}",
        f"mkdir -p {shlex.quote(str(folder))}",
        f"mount --bind {shlex.quote(str(spare))} {shlex.quote(str(folder))}",
    ]


def main(arguments: list[str]) -> int:
    """Run the tests and return pytest's exit code."""
    if os.geteuid() != 0:
        print("only root can run tests as another user", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="crossmem-nobody-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        checkout, home = folder / "checkout", folder / "home"
        _copy_checkout(checkout)
        home.mkdir()
        os.chown(home, _NOBODY, _NOBODY)
        pytest = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        steps = _uncovered(Path(sys.base_prefix), folder / "python")
        if sys.prefix != sys.base_prefix:
            steps += _uncovered(Path(sys.prefix), folder / "environment")
        steps.append(f"exec {shlex.join([*_AS_NOBODY, *pytest])}")
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return subprocess.run(
            ["unshare", "--mount", "bash", "-euc", "\n".join(steps)],
            check=False,
            cwd=checkout,
            env={**kept, "HOME": str(home)},
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
