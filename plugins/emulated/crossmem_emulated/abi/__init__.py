# SPDX-License-Identifier: Apache-2.0
"""Shared libraries that replace the vendors' libraries, and call the emulations.

The packages ``ascend`` and ``hip`` describe each library by a
:class:`~crossmem_emulated.abi.library.Library`. The machine's C compiler builds the library at its
first use. The library's functions jump through a table, except those that need no emulation. The
first call fills the table with callbacks into Python. The callbacks convert the arguments and call
the emulation. They run in the Python of the calling process, or in an interpreter that the library
starts if the process has none.

As with the real libraries, a program may load the library and fork before its first call. So, until
this call, the library only registers handlers for forks.
"""
