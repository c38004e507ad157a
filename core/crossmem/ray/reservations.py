# SPDX-License-Identifier: Apache-2.0
"""Keeps the memory of a Ray message as long as Ray keeps the message.

Each message carries a token: a Ray object that the sender owns, and whose references Ray counts.
Ray keeps the token as long as it keeps the message. A receiver keeps the token as long as it holds
the memory. If the receiver sends the memory on, the new message carries the same token. When no
message and no living process has the token, the sender releases the memory.

Ray counts the references in a message only when the message is complete, and does not report that
moment to the serialiser. Therefore, each token has a *tie*: another object, which the sender holds
during the send. The sender keeps the token as long as the tie lives. Messages with the same tie
share one token.
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

# Reentrant: a finaliser may send a message while the thread that it interrupts makes a token.
_lock = threading.RLock()
_reserved: dict[bytes, object] = {}
"""For each token, the object that keeps the memory of its messages. The key is the token's id."""
_tokens: dict[int, tuple[Any, "weakref.ref[Any]"]] = {}
"""For each tie, its token, and a weak reference that removes the entry when the tie ends. The key
is the tie's ``id()``."""


def token_of(memory: Memory) -> Any:
    """Return the token for a message with an array in the given memory."""
    received = _tokens.get(id(tie_of(memory)))
    return received[0] if received is not None else token_for(view_anchor_of(memory), memory)


def tie_of(memory: Memory) -> Any:
    """Return an object that lives as long as this process holds ``memory``, which it has received.

    This object is the ``Usage`` of the memory. All blocks of a pool share one ``Usage``, so for a
    block the object is ``memory`` itself.
    """
    return memory if is_block(memory) else usage_of(memory)


def token_for(tie: Any, kept: object) -> Any:
    """Return the token for a message. The first call for a tie makes the token.

    Parameters
    ----------
    tie
        An object that lives at least until the message is complete. It also lives as long as this
        process may send the memory again.
    kept
        The object that keeps the memory. This module keeps the object until the token ends, and
        keeps the token until the tie ends. The object must hold no reference to ``tie``; otherwise
        the object, the token and the tie would keep each other alive.
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
    """Keep a received token as long as ``tie`` lives."""
    with _lock:
        # A process that receives its own memory must not keep its own token. ``_reserved`` keeps
        # the memory until the token ends, and the memory keeps the tie, so the token would not end.
        if id(tie) not in _tokens and token.binary() not in _reserved:
            _put(tie, token)


def _put(tie: Any, token: Any) -> None:
    key = id(tie)
    _tokens[key] = (token, weakref.ref(tie, lambda _: _tokens.pop(key, None)))


def _let_go(token: bytes) -> None:
    """Release the memory of a token that has ended. A thread of Ray calls this function."""
    _reserved.pop(token, None)
    try:
        # The finalisers of the memory have only queued the releases, which drain() executes.
        drain()
    except Exception:  # noqa: BLE001 - logged with its traceback
        _log.exception("memory reserved by a Ray message could not be released")
