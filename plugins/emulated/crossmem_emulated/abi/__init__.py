# SPDX-License-Identifier: Apache-2.0
"""Shared libraries that replace the vendors' libraries, and call the emulations.

A library is built at its first use, with the machine's C compiler. The packages ``ascend`` and
``hip`` describe each library by a :class:`~crossmem_emulated.abi.library.Library`. The library's
functions jump through a table, except those that need no emulation. The first call fills the table
with callbacks into Python. The callbacks run in the Python of the calling process, or in an
interpreter that the library starts if the process has none. Before the first call, the library only
registers handlers for forks. So a program may load the library and fork before its first call, as
with the real libraries.

A callback only converts arguments and calls the emulation, which implements the vendor's rules.
"""
