# SPDX-License-Identifier: Apache-2.0
"""Whole trees of arrays and tensors: shared in one call, received in another."""

from crossmem.trees.new_arrays import empty, empty_like
from crossmem.trees.receive import receive
from crossmem.trees.share import share
from crossmem.trees.shared import Shared

__all__ = ["Shared", "empty", "empty_like", "receive", "share"]
