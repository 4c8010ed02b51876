"""One epoch's batches as the consumer's thread takes them: between the pipeline, which makes them, and the loader."""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import weakref
from time import monotonic
from typing import Any, Protocol

from concurrent_loader.pipeline import STOP_S, Pipeline
from concurrent_loader.waiting import Trail, Whereabouts
from storage.errors import StoreClosed
from storage.loop_thread import LoopThread

__all__ = ["EpochBatches", "Iteration", "ThreadedBatches", "check_process"]

_EXIT_S = 1.0  # for all iterations that nobody has ended when the process ends


class EpochBatches(Protocol):
    """Where an iteration gets its batches from, in order; all methods are the consumer's thread's."""

    def start(self) -> None:
        """Begins to make them."""

    def take(self, timeout_s: float | None = None) -> Any:
        """Waits for the next one, and makes room for another.

        Args:
            timeout_s: For how long; None for as long as it takes.

        Returns:
            A batch, a `Failure`, or `END`; after the last two nothing comes.

        Raises:
            TimeoutError: None has come; it may be asked for again.
        """

    @property
    def trail(self) -> Trail:
        """Where the one taken last has been, for `concurrent_loader.waiting.divide`; empty where that is not known."""

    def whereabouts(self) -> Whereabouts:
        """Says where the next one is at this moment; asked only when it is late."""

    def stop(self, patience_s: float = STOP_S) -> None:
        """Ends whatever is still going on, and waits for it. Idempotent.

        Args:
            patience_s: For how long the user's code may take to return; what takes longer is left behind.
        """


class ThreadedBatches:
    """Batches made by a pipeline on the data set's loop, with threads of this process.

    Args:
        loop: The data set's.
        **arguments: As for `Pipeline`, without ``deliver``.
    """

    def __init__(self, loop: LoopThread, **arguments: Any) -> None:
        self._loop = loop
        self._ready: queue.SimpleQueue[tuple[Any, Trail]] = queue.SimpleQueue()
        self._trail: Trail = ()
        self._pipeline = Pipeline(**arguments, deliver=lambda item, trail: self._ready.put((item, trail)))
        self._pid = os.getpid()

    def start(self) -> None:
        """Begins to make them."""
        self._loop.run(self._pipeline.start())

    def take(self, timeout_s: float | None = None) -> Any:
        """Waits for the next one; see `EpochBatches`.

        Raises:
            TimeoutError: None has come.
            StoreClosed: The process has been forked meanwhile.
        """
        check_process(self._pid)
        try:
            item, self._trail = self._ready.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError("no batch has come") from None
        self._loop.call_soon(self._pipeline.consumed)
        return item

    @property
    def trail(self) -> Trail:
        """Where the one taken last has been."""
        return self._trail

    def whereabouts(self) -> Whereabouts:
        """Says where the next one is at this moment."""
        return self._pipeline.whereabouts()

    def stop(self, patience_s: float = STOP_S) -> None:
        """Ends the pipeline, and waits until its tasks and threads are gone; see `Pipeline.stop`."""
        self._pipeline.stop(self._loop, patience_s)


class Iteration:
    """Ends an iteration's batches: on whatever thread that happens, and with the process at the latest.

    Args:
        batches: Of the iteration, which the calling thread consumes.
    """

    def __init__(self, batches: EpochBatches) -> None:
        self._batches = batches
        self._consumer = threading.current_thread()
        _iterations.add(self)

    def consumed(self) -> None:
        """Notes which thread consumes the batches."""
        self._consumer = threading.current_thread()

    def end(self, patience_s: float) -> None:
        """Stops making batches; the consumer's thread waits for that, another one does not.

        The garbage collector finalizes an iterator that is part of a reference cycle on any thread: on the dataset's
        loop, or on a decode thread. Those would wait for themselves.

        Args:
            patience_s: As for `EpochBatches.stop`.
        """
        _iterations.discard(self)
        if threading.current_thread() is self._consumer or sys.is_finalizing():
            self._batches.stop(patience_s)
        else:
            threading.Thread(target=self._batches.stop, args=(patience_s,), name="loader-stop", daemon=True).start()

    def end_at_exit(self, patience_s: float) -> None:
        """Stops making batches while threads still run that could be waited for."""
        # A daemon thread that still consumes ends with the process, without an error.
        if self._consumer is threading.main_thread() or not self._consumer.is_alive():
            self._batches.stop(patience_s)


_iterations: weakref.WeakSet[Iteration] = weakref.WeakSet()


@atexit.register
def _end_at_exit() -> None:
    deadline_s = monotonic() + _EXIT_S
    for iteration in list(_iterations):
        iteration.end_at_exit(max(0.0, deadline_s - monotonic()))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_iterations.clear)  # the threads are the parent's


def check_process(pid: int) -> None:
    """Makes sure that an iteration goes on in the process where it began.

    Raises:
        StoreClosed: It does not.
    """
    if os.getpid() != pid:
        raise StoreClosed(
            "this iteration began before a fork, and its batches arrive in the parent; iterate over the "
            "loader anew in the child"
        )
