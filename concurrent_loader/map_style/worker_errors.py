"""Errors sent from a worker of the drop-in to the training loop, in a form that always arrives.

torch sends the type of an exception and its text. A type that cannot be imported by name would never arrive, and the
loader would wait forever. ``StopIteration`` would end the epoch, and ``SystemExit`` the worker.
"""

from __future__ import annotations

import pickle

from torch._utils import ExceptionWrapper

__all__ = ["picklable_error", "replace_stop_iteration", "wrap_worker_error"]


def replace_stop_iteration(error: BaseException, doing: str) -> BaseException:
    """Returns a ``RuntimeError`` for a ``StopIteration``, as generators do (PEP 479), and any other error unchanged.

    Args:
        error: Exception raised by the user's code.
        doing: Call that raised, such as ``dataset[3]``.
    """
    if not isinstance(error, StopIteration):
        return error
    made = RuntimeError(
        f"{doing} raised StopIteration, which would have ended the epoch; raise IndexError or another error"
    )
    made.__cause__ = error
    return made


def picklable_error(error: BaseException, doing: str) -> BaseException:
    """Returns an exception that can be sent: the user's own, or a ``RuntimeError`` caused by it.

    Args:
        error: Exception raised in a worker; not ``KeyboardInterrupt`` or ``GeneratorExit``.
        doing: Call that raised.
    """
    shown = replace_stop_iteration(error, doing)
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


def wrap_worker_error(error: BaseException, worker: int, doing: str) -> ExceptionWrapper:
    """Wraps an exception as torch does, in a form that arrives; see `picklable_error`."""
    shown = picklable_error(error, doing)
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
