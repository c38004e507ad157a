# SPDX-License-Identifier: Apache-2.0
import multiprocessing

import crossmem


def consume(handle: bytes) -> None:
    with crossmem.attach(handle) as mapping:
        print(mapping.read(7), "at", hex(mapping.ptr))


if __name__ == "__main__":
    with crossmem.device("ascend:0").allocate(1 << 20) as allocation:
        allocation.write(b"weights")
        handle = allocation.export().to_bytes()
        child = multiprocessing.get_context("spawn").Process(target=consume, args=(handle,))
        child.start()
        child.join()
