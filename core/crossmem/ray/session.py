# SPDX-License-Identifier: Apache-2.0
"""All that is asked of Ray beside its public interface, and what that leaves unsaid.

Four things have no public name. Each is looked for at :func:`check`, so that a Ray without it is
refused at once:

- whether Ray is serialising a message of its own. Its pickler also writes what others keep, such
  as checkpoints and functions, and no handle must get into these;
- when the last reference to an object is gone, in whatever process of the cluster it was;
- the lock that Ray holds in every deserialiser. One that waits for Ray would keep all others of the
  process waiting, and Ray itself, which deserialises what is awaited before it goes on;
- whether this is the thread on which Ray does that. Nothing can be waited for there.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from crossmem.errors import UnsupportedError
from crossmem.guards import clause, shorten

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
    """Return Ray.

    Raises
    ------
    UnsupportedError
        Where it cannot be imported.
    """
    try:
        return import_module("ray")
    except ImportError as error:
        msg = f"Ray cannot be imported here: {clause(str(error))}"
        raise UnsupportedError(msg, hint="install crossmem[ray]") from error


def check() -> None:
    """Refuse a Ray that lacks something.

    Raises
    ------
    UnsupportedError
        With what is missing.
    """
    ray = import_ray()
    serialization = import_module("ray._private.serialization")
    for owner, name in (
        (serialization.SerializationContext, "is_in_band_serialization"),
        (ray._raylet.CoreWorker, "add_object_out_of_scope_callback"),  # noqa: SLF001
        (_worker().function_actor_manager, "lock"),
    ):
        if not hasattr(owner, name):
            msg = f"{shorten(owner)} of Ray {ray.__version__} has no {name}"
            raise UnsupportedError(
                msg, operation="register", hint="install a Ray that crossmem[ray] allows"
            )


def node() -> str:
    """Return Ray's id of the node on which this process runs."""
    found: str = import_ray().get_runtime_context().get_node_id()
    return found


def is_message() -> bool:
    """Whether this thread is serialising an object, an argument or a result for Ray."""
    return bool(_worker().get_serialization_context().is_in_band_serialization())


def new_token(ended: Callable[[bytes], None]) -> Any:
    """Return a new reference, to be put into messages.

    Parameters
    ----------
    ended
        Called with the token's binary id, on a thread of Ray's, once neither this process nor a
        message nor a process that received one has the token any more.
    """
    # Ray writes bytes without its pickler, so the message that is being pickled is not disturbed.
    token = import_ray().put(b"")
    _worker().core_worker.add_object_out_of_scope_callback(token, ended)
    return token


def is_answering_thread() -> bool:
    """Whether nothing that Ray has to do for this process is done while this thread waits."""
    name = Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text()
    return name.rstrip("\n") == _ANSWERING_THREAD


@contextmanager
def waiting() -> Iterator[None]:
    """Let this process deserialise other things while a deserialiser waits in the block."""
    lock = _worker().function_actor_manager.lock
    depth = 0
    try:
        while True:
            lock.release()
            depth += 1
    except RuntimeError:
        # Nothing is left to release.
        pass
    try:
        yield
    finally:
        for _ in range(depth):
            lock.acquire()


def _worker() -> Any:
    return import_module("ray._private.worker").global_worker
