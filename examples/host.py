# SPDX-License-Identifier: Apache-2.0
"""What the examples share: bytes from the host to arrays and back, and what must not differ.

The examples compute nothing on the device, so they also run on a GPU that is emulated.
"""

import hashlib
import sys
from typing import Any

import numpy as np

Array = Any
"""An array of NumPy where the CPU can address the memory, else one of CuPy."""


def put(array: Array, values: np.ndarray) -> None:
    """Overwrite an array with values of the host, and wait until they are there."""
    if isinstance(array, np.ndarray):
        array[...] = values
    else:
        with array.device:
            array.set(values)
            array.device.synchronize()


def get(array: Array) -> np.ndarray:
    """Return the elements on the host; a copy only where they are not there already."""
    return array if isinstance(array, np.ndarray) else array.get()


def digest(values: np.ndarray) -> str:
    """Return a short text that differs where the bytes do."""
    return hashlib.blake2b(values.tobytes(), digest_size=8).hexdigest()


def expect(found: object, wanted: object, what: str) -> None:
    """End the program with an error where two things differ."""
    if found != wanted:
        sys.exit(f"{what}: found {found}, wanted {wanted}")
