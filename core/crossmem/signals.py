# SPDX-License-Identifier: Apache-2.0
"""Exceptions that the program's signal handlers raise inside code of plugins."""

__all__ = ["raise_if_of_handler"]


def raise_if_of_handler(error: BaseException) -> None:
    """Raise an exception again if a signal handler of the program has raised it.

    Faults of plugins are caught and reported. The exception of a handler, such as ``SystemExit``
    after SIGTERM, is no fault of the plugin that it interrupts, so it must reach the program.
    """
    # In an embedded interpreter, the import changes what SIGINT does, so it comes with an error.
    import signal  # noqa: PLC0415

    codes = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            raise error
        traceback = traceback.tb_next


def _code_of(handler: object) -> object:
    """Return the code of a handler that is written in Python, else None."""
    return getattr(getattr(handler, "func", handler), "__code__", None)
