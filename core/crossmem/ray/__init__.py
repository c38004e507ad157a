# SPDX-License-Identifier: Apache-2.0
"""Sends arrays and tensors in memory of crossmem through Ray: as arguments, results and objects.

:func:`crossmem.install` registers serialisers with Ray. Call it in each process that sends. On the
sender's node, the receiver attaches the memory by its handle. On another node, the receiver gets a
copy. Ray serialises other arrays as it does without crossmem. A process that only receives needs no
call of ``install``.
"""
