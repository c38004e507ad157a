# SPDX-License-Identifier: Apache-2.0
"""Shared libraries that replace the vendors' libraries, and call the emulations.

The packages ``ascend`` and ``hip`` each describe one library by a
:class:`~crossmem_emulated.abi.library.Library`. The machine's C compiler builds the library if the
cache does not have it. C code implements the functions that need no emulation. All other functions
jump through a table, which the first call in a process fills with callbacks into Python. The
callbacks convert the arguments and call the emulation. They run in the Python of the calling
process. If the process has no Python, the library starts an interpreter.

With the vendors' libraries, a program may load a library, fork, and make the first call in the
child. The emulated libraries allow this, too: until the first call, a loaded library only registers
handlers for forks, and neither uses nor starts Python.
"""
