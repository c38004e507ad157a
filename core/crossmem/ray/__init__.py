# SPDX-License-Identifier: Apache-2.0
"""Sends arrays and tensors in memory of crossmem through Ray: as arguments, results and objects.

:func:`crossmem.install` registers serialisers with Ray. Each process that sends must call it. On
the sender's node, the receiver attaches the memory by its handle. On another node, the receiver
gets a copy. Ray serialises other arrays as it does without crossmem.
"""
