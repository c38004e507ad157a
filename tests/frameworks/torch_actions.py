# SPDX-License-Identifier: Apache-2.0
"""What peers do for the tests with PyTorch."""

from typing import Any

import torch

import crossmem

_kept: dict[str, Any] = {}


def digests(blobs: list[bytes]) -> list[list[Any]]:
    """Receive trees of tensors, and return all that can be seen of each tensor."""
    return [[look(one) for one in crossmem.receive(blob)] for blob in blobs]


def look(tensor: Any) -> tuple[Any, ...]:
    """Return all that can be seen of a tensor."""
    # A copy: a single element may have any stride, which contiguous() keeps and view() refuses.
    copied = tensor.detach().clone(memory_format=torch.contiguous_format)
    flat = copied.reshape(-1).view(torch.uint8)
    return tuple(tensor.shape), tensor.stride(), str(tensor.dtype), bytes(flat.numpy())


def receive_model(blob: bytes) -> tuple[bool, bool, float]:
    """Load a received state dict into a model of the same kind, and use it."""
    _kept["state"] = state = crossmem.receive(blob)
    tied = state["first.weight"].data_ptr() == state["last.weight"].data_ptr()
    shared = (
        state["first.weight"].untyped_storage().data_ptr()
        == state["first.bias"].untyped_storage().data_ptr()
    )
    return tied, shared, float(state["first.weight"].sum())


def add(value: float) -> None:
    """Add to a weight, in place."""
    _kept["state"]["first.weight"].add_(value)


def write_read_only(blob: bytes) -> None:
    """Write to a tensor that the kernel keeps from being written."""
    (tensor,) = crossmem.receive(blob, readonly=True)
    print(float(tensor[0]))
    tensor[0] = 5
