# SPDX-License-Identifier: Apache-2.0
"""A producer shares an array of CuPy with a consumer in another process."""

import multiprocessing
from multiprocessing.connection import Connection

import cupy
import numpy as np

COUNT = 1024


def consume(pipe: Connection) -> None:
    handle = pipe.recv()
    pointer = cupy.cuda.runtime.ipcOpenMemHandle(handle)
    memory = cupy.cuda.UnownedMemory(pointer, COUNT * 4, None, device_id=0)
    array = cupy.ndarray(COUNT, "float32", cupy.cuda.MemoryPointer(memory, 0))
    pipe.send(array.get())
    del array, memory
    cupy.cuda.runtime.ipcCloseMemHandle(pointer)
    # The producer must not free the memory before it has received this message.
    pipe.send("closed")


def test_the_consumer_reads_what_the_producer_wrote() -> None:
    # CuPy's pool puts many arrays into one allocation, and a handle stands for a whole allocation.
    # Without the pool, the array has an allocation of its own.
    cupy.cuda.set_allocator(None)
    array = cupy.asarray(np.arange(COUNT, dtype="float32"))
    cupy.cuda.get_current_stream().synchronize()

    # After a process has used the GPU, its forked children cannot use the GPU.
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    consumer = context.Process(target=consume, args=(theirs,))
    consumer.start()
    theirs.close()
    pipe.send(cupy.cuda.runtime.ipcGetMemHandle(array.data.ptr))
    received = pipe.recv()
    assert pipe.recv() == "closed"
    consumer.join()

    assert consumer.exitcode == 0
    assert received.tolist() == list(range(COUNT))
