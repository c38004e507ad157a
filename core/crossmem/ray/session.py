# SPDX-License-Identifier: Apache-2.0
"""The uses of Ray's private interface, and the check that Ray has this interface.

crossmem needs four things of Ray that have no public name. :func:`check` raises an error if Ray
lacks one of the first three.

- Whether Ray is serialising a message. Ray's pickler also writes stored data, such as checkpoints
  and functions. Stored data must not contain handles.
- A notice when no process of the cluster has a reference to an object any more.
- The lock that Ray holds while a deserialiser runs. A deserialiser that waits for Ray without
  releasing this lock blocks Ray and all other deserialisers of the process.
- Whether this thread is the thread on which Ray deserialises awaited objects. That thread must not
  wait.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from crossmem.errors import UnsupportedError
from crossmem.guards import clause

__all__ = [
    "check",
    "import_ray",
    "is_answering_thread",
    "is_message",
    "new_token",
    "node",
    "waiting",
]

_ANSWERING_THREAD: Final = "worker.io"


def import_ray() -> Any:
    """Return the module ``ray``.

    Raises
    ------
    UnsupportedError
        Ray cannot be imported.
    """
    try:
        return import_module("ray")
    except ImportError as error:
        msg = f"Ray cannot be imported here: {clause(str(error))}"
        raise UnsupportedError(msg, hint="install crossmem[ray]") from error


def check() -> None:
    """Check that Ray has the attributes that crossmem needs.

    Raises
    ------
    UnsupportedError
        Ray cannot be imported, or lacks one of these attributes. The message names the missing one.
    """
    ray = import_ray()
    for module, owner, name in (
        ("ray._private.serialization", "SerializationContext", "is_in_band_serialization"),
        ("ray", "_raylet.CoreWorker", "add_object_out_of_scope_callback"),
        ("ray._private.worker", "global_worker.function_actor_manager", "lock"),
    ):
        try:
            attrgetter(f"{owner}.{name}")(import_module(module))
        except (ImportError, AttributeError) as error:
            msg = f"{module}.{owner} of Ray {ray.__version__} has no {name}"
            hint = "install a version of Ray that crossmem[ray] allows"
            raise UnsupportedError(msg, operation="register", hint=hint) from error


def node() -> str:
    """Return Ray's id of the node on which this process runs."""
    found: str = import_ray().get_runtime_context().get_node_id()
    return found


def is_message() -> bool:
    """Whether this thread is serialising an object, an argument or a result for Ray."""
    return bool(_worker().get_serialization_context().is_in_band_serialization())


def new_token(ended: Callable[[bytes], None]) -> Any:
    """Return a new token for messages: a reference to a new object of Ray.

    Parameters
    ----------
    ended
        A function that Ray calls when this process, all messages and all receivers have dropped the
        token. The argument is the token's binary id. The call runs on a thread of Ray.
    """
    # Ray writes bytes without its pickler, so this call does not disturb the pickling in progress.
    token = import_ray().put(b"")
    _worker().core_worker.add_object_out_of_scope_callback(token, ended)
    return token


def is_answering_thread() -> bool:
    """Whether this thread deserialises Ray's awaited objects, and so must not wait."""
    name = Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text()
    return name.rstrip("\n") == _ANSWERING_THREAD


@contextmanager
def waiting() -> Iterator[None]:
    """Return a context in which a deserialiser can wait while other deserialisers run."""
    lock = _worker().function_actor_manager.lock
    depth = 0
    try:
        while True:
            lock.release()
            depth += 1
    except RuntimeError:
        # release() raises if this thread does not hold the lock any more. The lock is reentrant,
        # so the loop has released it as often as this thread had taken it.
        pass
    try:
        yield
    finally:
        for _ in range(depth):
            lock.acquire()


def _worker() -> Any:
    return import_module("ray._private.worker").global_worker
