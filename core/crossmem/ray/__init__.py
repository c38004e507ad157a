# SPDX-License-Identifier: Apache-2.0
"""Lets Ray's arguments, results and objects carry arrays and tensors that lie in crossmem's memory.

:func:`crossmem.install` registers serialisers with Ray. Each process that sends such an array or
tensor must call this function. A receiver on the sender's node attaches the memory by its handle.
A receiver on another node gets a copy. Ray serialises arrays in other memory as it does without
crossmem.
"""
