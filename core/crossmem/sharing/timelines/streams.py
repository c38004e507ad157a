# SPDX-License-Identifier: Apache-2.0
"""The vendor's handle of a framework's stream."""

from typing import Any

from crossmem.errors import ConfigurationError
from crossmem.guards import is_within, shorten

__all__ = ["stream_of"]

_ATTRIBUTES = ("ptr", "cuda_stream", "npu_stream")
"""Where CuPy, PyTorch and torch-npu keep the handle."""


def stream_of(stream: Any) -> int:
    """Return the vendor's handle of a stream, 0 for the default stream.

    Raises
    ------
    ConfigurationError
        The value is neither a stream of a known framework nor a handle.
    """
    found = stream
    for name in _ATTRIBUTES:
        found = getattr(stream, name, found)
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        _version, found = protocol()
    if not is_within(found, 0, 2**64 - 1):
        msg = f"stream must be a stream, its handle or None, not {shorten(stream)}"
        hint = "pass a stream of CuPy, PyTorch or torch-npu, or its handle as an integer"
        raise ConfigurationError(msg, hint=hint)
    return int(found)
