# SPDX-License-Identifier: Apache-2.0
"""Sends arrays, tensors and trees through ``multiprocessing`` as handles.

:func:`crossmem.install` registers reducers with the pickler that ``multiprocessing`` and
``concurrent.futures`` use. Arrays in memory of crossmem then travel without a copy, even if this
memory belongs to another process. ``multiprocessing`` sends all other arrays as it does without
crossmem. Plain ``pickle`` does not change.

Each message reserves the memory of its arrays until a process receives or discards the message, or
until the sender has exited. A sender may therefore drop an array as soon as ``put`` of a queue has
returned. The receiver holds a lease on the memory of a received array as long as the array exists.
Each exporter has a limit for each sender: the sender's messages may reserve at most so many of this
exporter's exports at a time. The setting ``CROSSMEM_MAX_RESERVATIONS`` of the exporter is the
limit. At the limit, the sender waits until a message is received or discarded. If this takes longer
than ``CROSSMEM_TIMEOUT``, the sender raises :class:`crossmem.BusyError`. :func:`crossmem.exports`
shows the reservations.
"""

import io
import pickle
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

from typing_extensions import override

from crossmem.arrays.adapters import ADAPTERS, describe
from crossmem.arrays.libraries import require, used
from crossmem.errors import CrossmemError
from crossmem.models import ShareableHandle
from crossmem.sharing.base.memory import leave_to_views
from crossmem.sharing.base.process import current
from crossmem.sharing.exporter.adoption import Adoption
from crossmem.sharing.exporter.allocation import Allocation
from crossmem.sharing.importer.attach import Readonly, attach_reserved
from crossmem.sharing.importer.block_mapping import BlockMapping
from crossmem.sharing.importer.mapping import Mapping, asked_readonly
from crossmem.sharing.importer.messages import discard as discard_reservations
from crossmem.sharing.importer.messages import reserve
from crossmem.sharing.pools.block import Block
from crossmem.trees import Shared
from crossmem.trees.building import build
from crossmem.trees.message import Message
from crossmem.trees.pool_blocks import refuse_unmapped
from crossmem.trees.share import message_of

__all__ = ["discard", "register"]

_DISCARD_TIMEOUT_S: Final = 1.0

_Reduced = tuple[Any, ...]


def discard(pickled: bytes | bytearray | memoryview) -> None:
    """End the reservations of a message that no process will receive.

    Parameters
    ----------
    pickled
        The message, as ``recv_bytes`` of a connection returns it. This function reads only the
        reservations, and runs no code that the message names.

    Raises
    ------
    CrossmemError
        An exporter cannot be reached. The reservations in all reachable exporters have ended.
    pickle.UnpicklingError, EOFError
        The bytes are not a message.
    """
    discard_reservations(_reservations_of(pickled))


def _reservations_of(
    pickled: bytes | bytearray | memoryview,
) -> list[tuple[ShareableHandle, int]]:
    reader = _Discarder(io.BytesIO(pickled))
    reader.load()
    return reader.reserved


class _Discarder(pickle.Unpickler):
    """Collects the reservations of a message without creating its objects."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.reserved: list[tuple[ShareableHandle, int]] = []

    @override
    def find_class(self, module: str, name: str) -> Any:
        if module != __name__:
            return _OLD_CALLS.get((module, name), _Nothing)
        return self._note_mapping if name == _rebuild_mapping.__name__ else self._note_tree

    def _note_tree(self, blob: bytes, numbers: Sequence[int], *_: object) -> "_Nothing":
        self.reserved += zip(Message.from_bytes(blob).handles, numbers, strict=True)
        return _Nothing()

    def _note_mapping(self, blob: bytes, number: int, _readonly: Readonly) -> "_Nothing":
        self.reserved.append((ShareableHandle.from_bytes(blob), number))
        return _Nothing()


class _Nothing:
    """Stands for every class and function in a message, and for the objects that they return."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __call__(self, *_: object, **__: object) -> "_Nothing":
        return self

    def __setitem__(self, _key: object, _value: object) -> None:
        pass

    def ignore(self, *_: object) -> None:
        """Ignore the state and items that a pickle puts into objects."""

    __setstate__ = add = append = extend = update = ignore


def _to_bytes(text: object, *_: object) -> object:
    return text.encode("latin-1", "replace") if isinstance(text, str) else _Nothing()


# Pickles of protocols before 4 call these functions to make bytes and to find nested classes.
_OLD_CALLS: Final[dict[tuple[str, str], Callable[..., Any]]] = {
    ("_codecs", "encode"): _to_bytes,
    ("__builtin__", "getattr"): lambda *_: _Nothing,
    ("builtins", "getattr"): lambda *_: _Nothing,
}


# Sending ----------------------------------------------------------------------------------


class _Sending(threading.local):
    """The reservations of the message that this thread is pickling; None between messages."""

    reserved: list[tuple[ShareableHandle, int]] | None = None


_sending = _Sending()


def _dump(pickler: ForkingPickler, obj: Any) -> None:
    """Pickle a message. If the pickling fails, the message's reservations end."""
    for library in _unregistered.copy():
        # The program may have imported an array library since the last message.
        if used(library) is not None:
            _register(library)
            # The library leaves the set only after the registration. Otherwise another thread could
            # skip the registration and pickle without the reducers.
            _unregistered.discard(library)
            pickler.dispatch_table.update(_registered)
    outer, reserved = _sending.reserved, list[tuple[ShareableHandle, int]]()
    _sending.reserved = reserved
    try:
        pickle.Pickler.dump(pickler, obj)
    except BaseException:
        with suppress(CrossmemError):
            discard_reservations(reserved, timeout=_DISCARD_TIMEOUT_S)
        raise
    finally:
        _sending.reserved = outer
    if outer is not None:
        outer += reserved


def _reserve(handles: Sequence[ShareableHandle]) -> list[int]:
    return reserve(handles, message=_sending.reserved)


def _reducer(fallback: Callable[[Any], _Reduced]) -> Callable[[Any], _Reduced]:
    """Return the reducer for arrays of one class.

    ``fallback`` reduces the arrays that cannot travel as handles.
    """

    def reduce(array: Any) -> _Reduced:
        learns = getattr(array, "requires_grad", False)
        # A tensor that was computed from tensors with gradients is not a leaf of the computation.
        # PyTorch's reducer refuses such a tensor.
        if learns and not array.is_leaf:
            return fallback(array)
        is_parameter = type(array).__name__ == "Parameter"
        found = message_of(array)
        if found is None:
            alone = _alone(array)
            return fallback(array if alone is None else _learning(alone, learns, is_parameter))
        message, _memory, readonly = found
        arguments = (message.to_bytes(), _reserve(message.handles), readonly)
        if learns or is_parameter:
            return _rebuild_learning, (*arguments, learns, is_parameter)
        return _rebuild_array, arguments

    return reduce


def _alone(array: Any) -> Any:
    """If an array is a tensor that is empty or lies in crossmem's memory, return a copy, else None.

    The caller has found that the array cannot travel as a handle, for example because the process
    inherited the memory through fork. Without the copy, PyTorch would send the tensor's whole
    storage, which may be a whole allocation of crossmem.
    """
    try:
        found = describe(array)
    except CrossmemError:
        return None
    if found is None or found.kind != "torch":
        return None
    low, high = found.layout.extent or (0, 0)
    nbytes = high - low
    if nbytes and not _is_crossmems(found.pointer + low, nbytes):
        return None
    flat = array.detach().as_strided((nbytes // array.itemsize,), (1,))
    return flat.clone().as_strided(array.shape, array.stride())


def _storage_reducer(fallback: Callable[[Any], _Reduced]) -> Callable[[Any], _Reduced]:
    """Return the reducer for PyTorch's storages.

    PyTorch's own reducer moves a storage, and all tensors that use the storage, into shared memory
    of PyTorch. Memory of crossmem must stay in place. So if a storage lies in memory of crossmem,
    PyTorch's reducer gets a copy of the storage.
    """

    def reduce(storage: Any) -> _Reduced:
        nbytes = storage.nbytes() if storage.device.type == "cpu" else 0
        if nbytes and _is_crossmems(storage.data_ptr(), nbytes):
            refuse_unmapped(storage.data_ptr(), nbytes, lambda: "the storage of a tensor")
            storage = storage.clone()
        return fallback(storage)

    return reduce


def _is_crossmems(pointer: int, nbytes: int) -> bool:
    """Whether addresses lie in memory of crossmem. Memory inherited through fork counts, too."""
    arrays = current().arrays
    return arrays.find(pointer, nbytes) is not None or arrays.is_inherited(pointer, nbytes)


def _reduce_shared(shared: Shared[Any]) -> _Reduced:
    shared.check()
    return _rebuild_shared, (shared.to_bytes(), _reserve(shared.message.handles))


def _reduce_allocation(allocation: Allocation | Block) -> _Reduced:
    return _reduce_reserved(allocation.export(), readonly=False)


def _reduce_mapping(mapping: Mapping) -> _Reduced:
    return _reduce_reserved(mapping.handle, readonly=asked_readonly(mapping))


def _reduce_reserved(handle: ShareableHandle, *, readonly: Readonly) -> _Reduced:
    (number,) = _reserve([handle])
    return _rebuild_mapping, (handle.to_bytes(), number, readonly)


# Receiving --------------------------------------------------------------------------------


def _rebuild_array(blob: bytes, numbers: Sequence[int], readonly: Readonly) -> Any:
    try:
        register()
        message = Message.from_bytes(blob)
        reserved = zip(message.handles, numbers, strict=True)
        mappings = attach_reserved(reserved, readonly=readonly)
        for mapping in mappings:
            leave_to_views(mapping)
        return build(message, mappings)
    except BaseException:
        _give_up(lambda: Message.from_bytes(blob).handles, numbers)
        raise


def _rebuild_learning(
    blob: bytes,
    numbers: Sequence[int],
    readonly: Readonly,
    learns: bool,  # noqa: FBT001
    is_parameter: bool,  # noqa: FBT001
) -> Any:
    return _learning(_rebuild_array(blob, numbers, readonly), learns, is_parameter)


def _learning(tensor: Any, learns: bool, is_parameter: bool) -> Any:  # noqa: FBT001
    if is_parameter:
        return require("torch").nn.Parameter(tensor, requires_grad=learns)
    return tensor.requires_grad_(learns)


def _rebuild_shared(blob: bytes, numbers: Sequence[int]) -> Shared[Any]:
    try:
        register()
        return Shared.from_reserved(blob, numbers)
    except BaseException:
        _give_up(lambda: Message.from_bytes(blob).handles, numbers)
        raise


def _rebuild_mapping(blob: bytes, number: int, readonly: Readonly) -> Mapping:
    try:
        register()
        reserved = [(ShareableHandle.from_bytes(blob), number)]
        (mapping,) = attach_reserved(reserved, readonly=readonly)
        return mapping
    except BaseException:
        _give_up(lambda: [ShareableHandle.from_bytes(blob)], [number])
        raise


def _loads(data: Any, /, **options: Any) -> Any:
    """Unpickle a message. If the unpickling fails, end all reservations of the message."""
    try:
        return pickle.loads(data, **options)  # noqa: S301 - what multiprocessing does
    except BaseException:
        # The reservations of received arrays have ended already. To end them again is harmless. If
        # an exporter does not respond, its reservations stay. The caller gets the error of the
        # unpickling in any case.
        with suppress(Exception):
            discard_reservations(_reservations_of(data), timeout=_DISCARD_TIMEOUT_S)
        raise


def _give_up(handles: Callable[[], Sequence[ShareableHandle]], numbers: Sequence[int]) -> None:
    """End the reservations of a message that could not be received.

    No process unpickles the message again, even if the message is valid and a signal handler
    raised the error. Without this call, the reservations last until the sender or this process
    ends.
    """
    # If the exporter does not respond, the reservations cannot be ended now.
    with suppress(CrossmemError):
        reserved = zip(handles(), numbers, strict=True)
        discard_reservations(reserved, timeout=_DISCARD_TIMEOUT_S)


# Registering ------------------------------------------------------------------------------


def register() -> None:
    """Make the pickler of ``multiprocessing`` send handles; see :func:`crossmem.install`.

    The receipt of a message also calls this function, because the receiver may forward the arrays.
    """
    ForkingPickler.dump = _dump  # type: ignore[method-assign, assignment]
    ForkingPickler.loads = staticmethod(_loads)
    ForkingPickler.register(Shared, _reduce_shared)
    ForkingPickler.register(Allocation, _reduce_allocation)
    ForkingPickler.register(Adoption, _reduce_allocation)
    ForkingPickler.register(Block, _reduce_allocation)
    ForkingPickler.register(Mapping, _reduce_mapping)
    ForkingPickler.register(BlockMapping, _reduce_mapping)


def _register(library: str) -> None:
    """Register reducers for the array classes of a library."""
    module = require(library)
    for kind in ADAPTERS[library].classes(module):
        ForkingPickler.register(kind, _reducer(_registered.get(kind) or _default))
    if library == "torch":
        storage = module.UntypedStorage
        ForkingPickler.register(storage, _storage_reducer(_registered.get(storage) or _default))


def _default(array: Any) -> _Reduced:
    reduced: _Reduced = array.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
    return reduced


_unregistered = set(ADAPTERS)
# This module uses the private _extra_reducers to find registered reducers, such as PyTorch's. It
# replaces ForkingPickler.dump to notice the end of the pickling of a message. The standard library
# has no public way to do either.
_registered: dict[type, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]  # noqa: SLF001
