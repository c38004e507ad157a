# SPDX-License-Identifier: Apache-2.0
"""The vendors' shared libraries, with the emulations behind their C functions.

A library is built at its first use, with the machine's C compiler, from the declarations in a
vendor's package here (:class:`~crossmem_emulated.abi.library.Library`). The library is thin: every
function jumps through a table. The first call fills the table with callbacks into Python: the
calling process's own Python, or an embedded interpreter if it has none. So the load of the library
has no effect, and a program may fork before its first call, as with the real libraries.

A callback only converts arguments and calls the emulation, which implements the vendor's rules.
"""
