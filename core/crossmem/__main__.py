# SPDX-License-Identifier: Apache-2.0
"""``python -m crossmem``: the same as the ``crossmem`` command."""

from crossmem.cli import main

# If Python runs this file by its path, multiprocessing imports the file again in each spawned
# child, under the name ``__mp_main__``. Without this ``if``, the child would run the command again.
if __name__ == "__main__":
    main()
