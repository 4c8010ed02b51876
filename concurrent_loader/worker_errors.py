"""Errors on their way from a worker of the drop-in loader to the training loop, in a form that always arrives.

torch sends the type of an exception and its text. A type that cannot be found by its name would never arrive, and the
loader would wait for ever. ``StopIteration`` would end the epoch, and ``SystemExit`` the worker.
"""

from __future__ import annotations

import pickle

from torch._utils import ExceptionWrapper

__all__ = ["caught_in_worker", "no_stop_iteration", "presentable"]


def no_stop_iteration(error: BaseException, doing: str) -> BaseException:
    """Returns a ``RuntimeError`` for a ``StopIteration``, as generators do (PEP 479), and any other error as it is.

    Args:
        error: Exception of the user's code.
        doing: What was called, such as ``dataset[3]``.
    """
    if not isinstance(error, StopIteration):
        return error
    made = RuntimeError(
        f"{doing} raised StopIteration, which would have ended the epoch; raise IndexError or another error"
    )
    made.__cause__ = error
    return made


def presentable(error: BaseException, doing: str) -> BaseException:
    """Returns an exception of a worker's user code in a form that arrives: itself, or a ``RuntimeError`` caused by it.

    Args:
        error: Exception, neither ``KeyboardInterrupt`` nor ``GeneratorExit``.
        doing: What was called.
    """
    shown = no_stop_iteration(error, doing)
    if isinstance(error, SystemExit):
        shown = RuntimeError(
            f"{doing} called sys.exit({error.code!r}) in a worker process, which cannot end the training; "
            "raise another exception"
        )
    elif not _can_be_made_again(type(shown)):
        shown = RuntimeError(f"{type(error).__module__}.{type(error).__qualname__}: {error}")
    if shown is not error:
        shown.__cause__ = error
    return shown


def caught_in_worker(error: BaseException, worker: int, doing: str) -> ExceptionWrapper:
    """Wraps an exception as torch does; see `presentable`."""
    shown = presentable(error, doing)
    return ExceptionWrapper(  # type: ignore[no-untyped-call]
        (type(shown), shown, shown.__traceback__), where=f"in DataLoader worker process {worker}"
    )


def _can_be_made_again(kind: type[BaseException]) -> bool:
    try:
        found = pickle.loads(pickle.dumps(kind))  # noqa: S301 - its own
        if getattr(kind, "message", None):  # torch then passes the text as ``message=`` and lets errors through
            kind(message="")  # type: ignore[call-arg]
    except Exception:  # noqa: BLE001 - whatever the user's class does
        return False
    return found is kind
