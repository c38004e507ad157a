# SPDX-License-Identifier: Apache-2.0
"""Ray serialisers for arrays, tensors and shared trees.

Ray gives an object to any process that requests it, so the sender does not know the receivers.
Therefore, each message contains handles and the id of the sender's node. A receiver on that node
attaches the memory. A receiver on another node gets a copy.
"""

from collections.abc import Callable
from typing import Any, Final

from crossmem.arrays.adapters import ADAPTERS
from crossmem.arrays.libraries import on_use, require
from crossmem.models import Event, EventKind
from crossmem.ray.copying import copy_from
from crossmem.ray.reservations import keep_token, tie_of, token_for, token_of
from crossmem.ray.session import check, import_ray, is_message, node
from crossmem.sharing.base.memory import leave_to_views
from crossmem.sharing.base.process import drain
from crossmem.sharing.importer.attach import Readonly, attach_many
from crossmem.sharing.importer.mapping import Mapping
from crossmem.trees.building import build
from crossmem.trees.message import Message
from crossmem.trees.share import message_of, share
from crossmem.trees.shared import Shared

__all__ = ["register"]

Reduced = tuple[Any, ...]
"""The result of ``__reduce_ex__``: a function, its arguments, and further items."""

_PROTOCOL: Final = 5
_before: dict[type, Callable[[Any], Reduced] | None] = {}
"""The serialiser that each class had before crossmem registered its own serialiser. None: Ray used
the ``__reduce_ex__`` of the class."""


def register() -> None:
    """Make Ray send handles; see :func:`crossmem.install`. This function imports Ray.

    Raises
    ------
    UnsupportedError
        Ray cannot be imported, or lacks an attribute that crossmem needs.
    """
    check()
    if Shared not in _before:
        _register(Shared, _reduce_shared)
        on_use(_register_library)


def _register_library(name: str) -> None:
    """Register a serialiser for the arrays of a library that is now in use."""
    _register(ADAPTERS[name].classes(require(name))[0], _reduce_array)


def _register(kind: type, reduce: Callable[[Any], Reduced]) -> None:
    ray = import_ray()
    # If another thread has just registered the class, get() returns crossmem's own serialiser. But
    # that thread has already stored the earlier serialiser, and setdefault() does not replace a
    # stored serialiser.
    _before.setdefault(kind, ray.cloudpickle.CloudPickler.dispatch.get(kind))
    ray.util.register_serializer(kind, serializer=reduce, deserializer=_rebuild)


def _rebuild(reduced: Reduced) -> Any:
    """Make the object that a result of ``__reduce_ex__`` describes.

    Ray calls a deserialiser with one argument, so ``_rebuild`` takes the whole result.
    """
    function, arguments, *state = reduced
    value = function(*arguments)
    if state and state[0] is not None:
        value.__setstate__(state[0])
    return value


def _reduce_as_before(value: Any) -> Reduced:
    """Return the result of the serialiser that Ray uses without crossmem.

    Protocol 5 lets ``__reduce_ex__`` return buffers out of band.
    """
    before = _before[type(value)]
    reduced: Reduced = before(value) if before is not None else value.__reduce_ex__(_PROTOCOL)
    return reduced


# Sending ----------------------------------------------------------------------------------


def _reduce_array(array: Any) -> Reduced:
    found = message_of(array) if is_message() else None
    if found is None:
        return _reduce_as_before(array)
    message, memory, readonly = found
    memory.device.synchronize()
    learns = getattr(array, "requires_grad", False)
    rebuild = _rebuild_learning_tensor if learns else _rebuild_array
    return rebuild, (message.to_bytes(), node(), token_of(memory), readonly)


def _reduce_shared(shared: Shared[Any]) -> Reduced:
    if not is_message():
        return _reduce_as_before(shared)
    shared.check()
    return _rebuild_shared, (shared.to_bytes(), node(), token_for(shared, shared.kept))


# Receiving --------------------------------------------------------------------------------


def _rebuild_learning_tensor(*arguments: Any) -> Any:
    return _rebuild_array(*arguments).requires_grad_()


def _rebuild_array(blob: bytes, origin: str, token: Any, readonly: Readonly) -> Any:
    message = Message.from_bytes(blob)
    if node() == origin:
        array = build(message, _attach(message, token, readonly))
        _note(EventKind.RECEIVED, message, origin)
    else:
        array = copy_from(origin, blob)
        _note(EventKind.RECEIVED_COPY, message, origin)
    return array


def _rebuild_shared(blob: bytes, origin: str, token: Any) -> Shared[Any]:
    """Return a shared tree.

    If the sender runs on another node, the tree is a copy, which never gets a new version.
    """
    message = Message.from_bytes(blob)
    if node() == origin:
        shared: Shared[Any] = Shared(
            drain(), message, received=_attach(message, token, readonly=False)
        )
        keep_token(shared, token)
        _note(EventKind.RECEIVED, message, origin)
    else:
        copied = share(copy_from(origin, blob))
        shared = Shared(drain(), copied.message._replace(timeline=None), kept=copied)
        _note(EventKind.RECEIVED_COPY, message, origin)
    return shared


def _attach(message: Message, token: Any, readonly: Readonly) -> list[Mapping]:
    mappings = attach_many(message.handles, readonly=readonly)
    for mapping in mappings:
        leave_to_views(mapping)
        keep_token(tie_of(mapping), token)
    return mappings


def _note(kind: EventKind, message: Message, origin: str) -> None:
    """Tell observers that this process has received a message."""
    process = drain()
    for handle in message.handles[:1]:
        process.registry.emit(
            Event(
                kind,
                backend=handle.backend,
                device=handle.device,
                nbytes=sum(row.layout.nbytes for row in message.rows),
                owner_pid=handle.owner.pid,
                detail=f"from Ray's node {origin}",
            )
        )
