"""Defines how the consumer's thread takes the batches of one epoch, and how an iteration ends."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

from concurrent_loader.stats.pipeline_status import PipelineStatus
from concurrent_loader.stats.wait_attribution import BatchStatus, Spans
from concurrent_loader.storage.errors import StoreClosed

__all__ = ["END", "STOP_S", "EpochBatches", "Failure", "Iteration", "check_process"]

STOP_S = 30.0  # grace period for threads that still run the user's code
_EXIT_S = 1.0  # for all iterations that are still open when the process ends


@dataclass(frozen=True, slots=True)
class Failure:
    """An error, delivered in place of a batch. Nothing is delivered after it.

    Attributes:
        error: Exception to raise in the consumer's thread.
    """

    error: BaseException


class _End:
    """Delivered after the last batch."""


END = _End()


class EpochBatches(Protocol):
    """The batches of one epoch, in order. The methods are for the consumer's thread, if they do not say otherwise."""

    def start(self) -> None:
        """Starts making batches."""

    def take(self, timeout_s: float | None = None) -> Any:
        """Waits for the next batch, and makes room for another one.

        Args:
            timeout_s: Maximum wait in seconds; None, the default, waits without a limit.

        Returns:
            A batch, a `Failure`, or `END`. Nothing follows the last two.

        Raises:
            TimeoutError: No batch has come; the call can be repeated.
        """

    @property
    def spans(self) -> Spans:
        """Time spans of the batch taken last, for `concurrent_loader.stats.wait_attribution.attribute_wait`.

        Empty if they are unknown.
        """

    def batch_status(self) -> BatchStatus:
        """Returns what the next batch is waiting for at this moment. The consumer asks only when it is late."""

    def pipeline_status(self) -> PipelineStatus:
        """Returns how full the stages are. May be called from any thread."""

    def stop(self, grace_period_s: float = STOP_S) -> None:
        """Stops making batches, and waits until all work has ended. Idempotent.

        Args:
            grace_period_s: Time in seconds for the user's code to return. Code that takes longer is left running.
        """


class Iteration:
    """Ends an iteration's batches, from any thread, and at the latest when the process exits.

    Args:
        batches: Batches of the iteration. The calling thread is their consumer.
    """

    def __init__(self, batches: EpochBatches) -> None:
        self._batches = batches
        self._consumer = threading.current_thread()
        _iterations.add(self)

    def consumed(self) -> None:
        """Notes that the calling thread consumes the batches."""
        self._consumer = threading.current_thread()

    def end(self, grace_period_s: float) -> None:
        """Stops making batches. The consumer's thread waits for the end, any other thread does not.

        The garbage collector can finalize an iterator on any thread if it is part of a reference cycle. On the
        dataset's loop or on a decode thread, waiting would be a deadlock.

        Args:
            grace_period_s: Grace period in seconds; see `EpochBatches.stop`.
        """
        _iterations.discard(self)
        if threading.current_thread() is self._consumer or sys.is_finalizing():
            self._batches.stop(grace_period_s)
        else:
            threading.Thread(target=self._batches.stop, args=(grace_period_s,), name="loader-stop", daemon=True).start()

    def end_at_exit(self, grace_period_s: float) -> None:
        """Stops making batches while the threads still run and can be waited for."""
        # A daemon thread that is still consuming ends with the process, without an error.
        if self._consumer is threading.main_thread() or not self._consumer.is_alive():
            self._batches.stop(grace_period_s)


_iterations: weakref.WeakSet[Iteration] = weakref.WeakSet()


@atexit.register
def _end_at_exit() -> None:
    deadline_s = monotonic() + _EXIT_S
    for iteration in list(_iterations):
        iteration.end_at_exit(max(0.0, deadline_s - monotonic()))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_iterations.clear)  # the threads belong to the parent


def check_process(pid: int) -> None:
    """Checks that an iteration continues in the process where it began.

    Raises:
        StoreClosed: The process has been forked since.
    """
    if os.getpid() != pid:
        raise StoreClosed(
            "this iteration began before a fork, and its batches arrive in the parent; iterate over the "
            "loader again in the child"
        )
