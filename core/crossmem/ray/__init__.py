# SPDX-License-Identifier: Apache-2.0
"""Arrays and tensors in memory of crossmem as arguments, results and objects of Ray.

:func:`crossmem.install` registers serialisers with Ray in each process that sends. On the sender's
node the receiver attaches the memory by its handle. On another node it gets a copy. Ray serialises
other arrays as before. A process that only receives needs only an installed crossmem.
"""
