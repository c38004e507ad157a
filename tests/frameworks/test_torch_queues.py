# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch in queues."""

import pytest

import crossmem

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_tensors_are_copied_into_buffers_of_a_queue(dtype: str) -> None:
    tensor = torch.arange(12, dtype=getattr(torch, dtype)).reshape(3, 4)
    for one in (tensor, tensor.T, torch.nn.Parameter(tensor)[1:], tensor[:0]):
        with crossmem.device("host").queue(1, tensor.nbytes) as queue:
            queue.put(one, copy="allow")
            with queue.get(timeout=0) as buffer:
                assert buffer.data_length == one.nbytes
                found = buffer.as_tensor(one.shape, one.dtype)
                assert torch.equal(found, one)
                del found
