# SPDX-License-Identifier: Apache-2.0
"""Helpers of the examples: they copy values between host and arrays, and compare results.

The examples compute nothing on the device, so they also run on a GPU that is emulated.
"""

import hashlib
import sys
from typing import Any

import numpy as np

Array = Any
"""An array of NumPy if the CPU can address the memory, else an array of CuPy."""


def put(array: Array, values: np.ndarray) -> None:
    """Overwrite an array with values of the host, and wait until the copy is complete."""
    if isinstance(array, np.ndarray):
        array[...] = values
    else:
        with array.device:
            array.set(values)
            array.device.synchronize()


def get(array: Array) -> np.ndarray:
    """Return the elements on the host. Elements in device memory are copied."""
    return array if isinstance(array, np.ndarray) else array.get()


def digest(values: np.ndarray) -> str:
    """Return a short text, which differs if the bytes differ."""
    return hashlib.blake2b(values.tobytes(), digest_size=8).hexdigest()


def expect(found: object, wanted: object, what: str) -> None:
    """End the program with an error if two values differ."""
    if found != wanted:
        sys.exit(f"{what}: found {found}, wanted {wanted}")
