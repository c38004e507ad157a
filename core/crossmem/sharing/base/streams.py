# SPDX-License-Identifier: Apache-2.0
"""The streams of frameworks, and the work that was issued on them."""

from typing import Any, Final, Protocol

from crossmem.errors import ConfigurationError
from crossmem.guards import is_within, shorten

__all__ = ["Landing", "stream_of"]

_ATTRIBUTES: Final = ("ptr", "cuda_stream", "npu_stream")
"""The attributes that contain the handle of a stream in CuPy, PyTorch and torch-npu."""


def stream_of(stream: Any) -> int:
    """Return the vendor's handle of a stream. The handle of the default stream is 0.

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
        msg = f"stream must be a stream or its handle, not {shorten(stream)}"
        hint = "pass a stream of CuPy, PyTorch or torch-npu, or its handle as an integer"
        raise ConfigurationError(msg, hint=hint)
    return int(found)


class Landing(Protocol):
    """An object that knows whether certain work of a stream is complete.

    ``LocalDevice._landing_of()`` returns the object. The work was issued before that call.
    """

    def has_landed(self) -> bool:
        """Return at once whether the work is complete.

        Raises
        ------
        CrossmemError
            The vendor's query failed, or this process is exiting.
        """
        ...
