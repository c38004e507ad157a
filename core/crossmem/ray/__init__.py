# SPDX-License-Identifier: Apache-2.0
"""Arrays and tensors in memory of crossmem as arguments, results and objects of Ray.

:func:`crossmem.install` registers serialisers with Ray in each process that sends. On one node a
message then has a handle, and on another one the receiver gets a copy. What lies elsewhere is
serialised as Ray does it without this. A process that only receives needs nothing but an installed
crossmem.
"""
