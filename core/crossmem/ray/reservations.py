# SPDX-License-Identifier: Apache-2.0
"""Memory that messages reserve: as long as Ray has them, however often they are received.

Each message carries a token, an object of Ray's that the sender owns. Ray keeps it as long as it
keeps the message, in an object store, in a call that waits or runs, in a result, and it counts who
received it. Receivers keep the token as long as they keep the memory, and send it on with that.
When nobody has it any more, killed processes included, the sender lets the memory go.

Ray counts a token once the message is complete. Until then the sender has to keep it, and a
serialiser is not told when that is. So it is kept as long as something that the sender has in its
hands while it sends, its ``tie``; one token does for all messages with the same tie.
"""

import logging
import threading
import weakref
from typing import Any

from crossmem.ray.session import new_token
from crossmem.sharing.base.memory import Memory, is_block, usage_of, view_anchor_of
from crossmem.sharing.base.process import drain

__all__ = ["keep_token", "tie_of", "token_for", "token_of"]

_log = logging.getLogger(__name__)

# Reentrant: a finaliser may send something while its thread makes a token.
_lock = threading.RLock()
_reserved: dict[bytes, object] = {}
"""What messages of this process keep, by the ids of their tokens."""
_tokens: dict[int, tuple[Any, "weakref.ref[Any]"]] = {}
"""Tokens and their ties, by the ids of the ties; the garbage collector takes entries out."""


def token_of(memory: Memory) -> Any:
    """Return the token for a message with an array that lies in some memory."""
    received = _tokens.get(id(tie_of(memory)))
    return received[0] if received is not None else token_for(view_anchor_of(memory), memory)


def tie_of(memory: Memory) -> Any:
    """Return what lives as long as this process has some memory that it received.

    The blocks of a pool have their usage in common, so each mapping of a block stands for itself.
    """
    return memory if is_block(memory) else usage_of(memory)


def token_for(tie: Any, kept: object) -> Any:
    """Return the token for a message.

    Parameters
    ----------
    tie
        Lives at least until the message is complete, and as long as this process may send again.
    kept
        What keeps the memory. It must not keep ``tie``.
    """
    with _lock:
        found = _tokens.get(id(tie))
        if found is not None:
            return found[0]
        token = new_token(_let_go)
        _reserved[token.binary()] = kept
        _put(tie, token)
    return token


def keep_token(tie: Any, token: Any) -> None:
    """Keep a token that was received as long as ``tie``, which keeps the memory here."""
    with _lock:
        # A process that receives its own memory would keep itself from letting it go.
        if id(tie) not in _tokens and token.binary() not in _reserved:
            _put(tie, token)


def _put(tie: Any, token: Any) -> None:
    key = id(tie)
    _tokens[key] = (token, weakref.ref(tie, lambda _: _tokens.pop(key, None)))


def _let_go(token: bytes) -> None:
    """Give memory back that no message reserves any more. Called on a thread of Ray's."""
    _reserved.pop(token, None)
    try:
        # The finalisers of what was kept left the work to the next call of crossmem.
        drain()
    except Exception:  # noqa: BLE001 - logged with its traceback
        _log.exception("memory reserved by a Ray message could not be released")
