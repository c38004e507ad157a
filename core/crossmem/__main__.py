# SPDX-License-Identifier: Apache-2.0
"""``python -m crossmem``: the same as the ``crossmem`` command."""

from crossmem.cli import main

# Spawned children of the demo import this module again, under another name. Without this test, they
# would run the command again.
if __name__ == "__main__":
    main()
