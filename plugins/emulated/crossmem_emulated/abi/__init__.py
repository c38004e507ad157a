# SPDX-License-Identifier: Apache-2.0
"""The vendors' shared libraries, with the emulations behind their C functions.

A library is built on first use, with the machine's C compiler, from declarations that a vendor's
package here gives (:class:`~crossmem_emulated.abi.library.Library`). What is built is thin: every
function jumps through a table. The first call fills the table with callbacks into Python, of the
process that calls where that is a Python, and of an embedded interpreter otherwise. So loading the
library does nothing, and a program may fork before its first call, as programs for the real
libraries do.

The rules are not here: a callback converts arguments and calls the emulation.
"""
