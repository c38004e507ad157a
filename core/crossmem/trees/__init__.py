# SPDX-License-Identifier: Apache-2.0
"""Trees of arrays and tensors: one call shares a tree, another receives it."""

from crossmem.trees.new_arrays import empty, empty_like
from crossmem.trees.receive import receive
from crossmem.trees.share import share
from crossmem.trees.shared import Shared

__all__ = ["Shared", "empty", "empty_like", "receive", "share"]
