# SPDX-License-Identifier: Apache-2.0
"""Exceptions that the program's signal handlers raise inside code of plugins."""

from types import FrameType
from typing import Final

__all__ = ["raise_if_of_handler"]

_VARARGS: Final = 4
"""The bit ``inspect.CO_VARARGS``. It is set in ``co_flags`` if a function has ``*args``."""


def raise_if_of_handler(error: BaseException) -> None:
    """Raise an exception again if a signal handler of the program has raised it.

    Faults of plugins are caught and reported. The exception of a handler, such as ``SystemExit``
    after SIGTERM, is not a fault of the interrupted plugin, so it must reach the program.
    """
    outer = error.__traceback__
    while outer is not None and (inner := outer.tb_next) is not None:
        if _is_handler(inner.tb_frame, outer.tb_frame):
            raise error
        outer = inner


def _is_handler(frame: FrameType, caller: FrameType) -> bool:
    """Whether a frame runs a signal handler.

    Python passes the interrupted frame to a handler as an argument.
    """
    code, known = frame.f_code, frame.f_locals
    # co_varnames lists the parameters in this order: positional, keyword-only, *args.
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & _VARARGS)
    for name in code.co_varnames[:count]:
        value = known.get(name)
        if value is caller or (type(value) is tuple and any(one is caller for one in value)):
            return True
    return False
