# SPDX-License-Identifier: Apache-2.0
"""Arrays, tensors and trees go through queues, pipes and pools of ``multiprocessing`` as handles.

Importing this module is all it takes: it registers with the pickler that ``multiprocessing`` and
``concurrent.futures`` use. What lies in memory of crossmem, or was received from another process,
then crosses without a copy; all other arrays go as they always did. Plain ``pickle`` is left alone.

The message holds the memory until it is first received, discarded, or its sender has exited: a
worker may drop what it sent as soon as ``put`` has returned. A received array stays for as long as
it is used. How many such holds there may be is bounded (``CROSSMEM_MAX_HOLDS``); a sender waits
where there are more, and :func:`crossmem.exports` shows them.
"""

import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

from typing_extensions import override

from crossmem.arrays.libraries import on_use, require, used
from crossmem.errors import CrossmemError
from crossmem.models import ShareableHandle
from crossmem.sharing.adoption import Adoption
from crossmem.sharing.allocation import Allocation
from crossmem.sharing.attach import Readonly, attach_held
from crossmem.sharing.holds import discard as discard_holds
from crossmem.sharing.holds import hold
from crossmem.sharing.mapping import Mapping
from crossmem.trees import Shared
from crossmem.trees.message import Message
from crossmem.trees.receive import build
from crossmem.trees.share import message_of

__all__ = ["discard"]

_DISCARD_TIMEOUT_S: Final = 1.0

_Reduced = tuple[Any, ...]


def discard(pickled: bytes | bytearray | memoryview) -> None:
    """Let go what a message holds that nobody will receive.

    Parameters
    ----------
    pickled
        The message as ``recv_bytes`` gives it. Whatever else is in it is unpickled, so it must
        come from a process that is trusted, as for ``recv``.

    Raises
    ------
    CrossmemError
        Where an exporter cannot be told.
    """
    _Discarder(io.BytesIO(pickled)).load()


class _Discarder(pickle.Unpickler):
    """Unpickles a message without receiving what it holds."""

    @override
    def find_class(self, module: str, name: str) -> Any:
        if module == __name__:
            return _discard_mapping if name == _rebuild_mapping.__name__ else _discard_tree
        return super().find_class(module, name)


def _discard_tree(blob: bytes, numbers: Sequence[int], *_: object) -> None:
    discard_holds(zip(Message.from_bytes(blob).handles, numbers, strict=True))


def _discard_mapping(blob: bytes, number: int, _readonly: Readonly) -> None:
    discard_holds([(ShareableHandle.from_bytes(blob), number)])


# Sending ----------------------------------------------------------------------------------


def _reducer(fallback: Callable[[Any], _Reduced]) -> Callable[[Any], _Reduced]:
    """Return what reduces arrays of one class; those that are not crossmem's as before."""

    def reduce(array: Any) -> _Reduced:
        learns = getattr(array, "requires_grad", False)
        # What is computed and learns has a history, which PyTorch refuses to send.
        found = None if learns and not array.is_leaf else message_of(array)
        if found is None:
            return fallback(array)
        message, memory = found
        # "advisory" is the wish of one reader, and not of those that it sends to.
        readonly = isinstance(memory, Mapping) and memory.asked_readonly is True
        arguments = (message.to_bytes(), hold(message.handles), readonly)
        is_parameter = type(array).__name__ == "Parameter"
        if learns or is_parameter:
            return _rebuild_learning, (*arguments, learns, is_parameter)
        return _rebuild_array, arguments

    return reduce


def _reduce_shared(shared: Shared) -> _Reduced:
    shared.check()
    return _rebuild_shared, (shared.to_bytes(), hold(shared.message.handles))


def _reduce_allocation(allocation: Allocation) -> _Reduced:
    return _held(allocation.export(), readonly=False)


def _reduce_mapping(mapping: Mapping) -> _Reduced:
    return _held(mapping.handle, readonly=mapping.asked_readonly)


def _held(handle: ShareableHandle, *, readonly: Readonly) -> _Reduced:
    (number,) = hold([handle])
    return _rebuild_mapping, (handle.to_bytes(), number, readonly)


# Receiving --------------------------------------------------------------------------------


def _rebuild_array(blob: bytes, numbers: Sequence[int], readonly: Readonly) -> Any:
    message = Message.from_bytes(blob)
    held = list(zip(message.handles, numbers, strict=True))
    with _discarding(held):
        mappings = attach_held(held, readonly=readonly)
    for mapping in mappings:
        mapping.leave_to_views()
    return build(message, mappings)


def _rebuild_learning(
    blob: bytes,
    numbers: Sequence[int],
    readonly: Readonly,
    learns: bool,  # noqa: FBT001
    is_parameter: bool,  # noqa: FBT001
) -> Any:
    tensor = _rebuild_array(blob, numbers, readonly)
    if is_parameter:
        return require("torch").nn.Parameter(tensor, requires_grad=learns)
    return tensor.requires_grad_(learns)


def _rebuild_shared(blob: bytes, numbers: Sequence[int]) -> Shared:
    with _discarding(zip(Message.from_bytes(blob).handles, numbers, strict=True)):
        return Shared.from_held(blob, numbers)


def _rebuild_mapping(blob: bytes, number: int, readonly: Readonly) -> Mapping:
    held = [(ShareableHandle.from_bytes(blob), number)]
    with _discarding(held):
        (mapping,) = attach_held(held, readonly=readonly)
    return mapping


@contextmanager
def _discarding(held: Iterable[tuple[ShareableHandle, int]]) -> Iterator[None]:
    """Let go what a message holds where it cannot be received: nobody unpickles it again."""
    try:
        yield
    except CrossmemError:
        # Its exporter may be the one that does not answer.
        with suppress(CrossmemError):
            discard_holds(held, timeout=_DISCARD_TIMEOUT_S)
        raise


# Registering ------------------------------------------------------------------------------


def _register(library: str) -> None:
    """Register for the arrays of a library, which has just been used for the first time."""
    module = require(library)
    classes: dict[str, Callable[[], tuple[type, ...]]] = {
        "numpy": lambda: (module.ndarray, module.memmap),
        "cupy": lambda: (module.ndarray,),
        "torch": lambda: (module.Tensor, module.nn.Parameter),
    }
    for kind in classes[library]():
        known: Callable[[Any], _Reduced] | None = _registered.get(kind)
        ForkingPickler.register(kind, _reducer(known or _default))


def _default(array: Any) -> _Reduced:
    reduced: _Reduced = array.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
    return reduced


# There is no public way to ask what was registered; PyTorch registers its own before.
_registered: dict[type, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]  # noqa: SLF001
ForkingPickler.register(Shared, _reduce_shared)
ForkingPickler.register(Allocation, _reduce_allocation)
ForkingPickler.register(Adoption, _reduce_allocation)
ForkingPickler.register(Mapping, _reduce_mapping)
for _library in ("numpy", "cupy", "torch"):
    # Arrays of crossmem may have become tensors of what crossmem itself has not used yet.
    if used(_library) is not None:
        require(_library)
on_use(_register)
