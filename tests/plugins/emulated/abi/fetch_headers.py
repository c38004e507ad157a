# SPDX-License-Identifier: Apache-2.0
"""Fetch AMD's headers of several releases of ROCm into a folder: ``fetch_headers.py FOLDER``.

Packages of another project bring these headers along. They are large, so the headers alone are
kept, in the subfolders ``rocm5``, ``rocm6`` and ``rocm7``.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

SOURCES: Final = {
    "rocm5": ("pytorch-triton-rocm==2.1.0", "triton/third_party/rocm/include/"),
    "rocm6": ("triton==3.4.0", "triton/backends/amd/include/"),
    "rocm7": ("triton==3.9.0", "triton/backends/amd/include/"),
}
"""Package, and the folder in it, of each release: they are of ROCm 5.4, 6.2 and 7.1."""


def fetch(requirement: str, inside: str, target: Path) -> None:
    """Download a package, and keep what is in one of its folders."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        wanted = ["--only-binary", ":all:", "--dest", folder, requirement]
        subprocess.run([*command, *wanted], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                place = target / name.removeprefix(inside)
                if name.startswith(inside) and not name.endswith("/"):
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(archive.read(name))


def main(folder: Path) -> None:
    """Fetch what is not there yet."""
    for release, (requirement, inside) in SOURCES.items():
        if not (folder / release / "hip" / "hip_runtime_api.h").exists():
            fetch(requirement, inside, folder / release)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
