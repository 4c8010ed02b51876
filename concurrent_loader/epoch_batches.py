"""One epoch's batches as the consumer's thread takes them: between the pipeline, which makes them, and the loader."""

from __future__ import annotations

import os
import queue
from typing import Any, Protocol

from concurrent_loader.pipeline import Pipeline
from storage.errors import StoreClosed
from storage.loop_thread import LoopThread

__all__ = ["EpochBatches", "ThreadedBatches", "check_process"]


class EpochBatches(Protocol):
    """Where an iteration gets its batches from, in order; all methods are the consumer's thread's."""

    def start(self) -> None:
        """Begins to make them."""

    def take(self) -> Any:
        """Waits for the next one, and makes room for another.

        Returns:
            A batch, a `Failure`, or `END`; after the last two nothing comes.
        """

    def stop(self) -> None:
        """Ends whatever is still going on, and waits for it. Idempotent."""


class ThreadedBatches:
    """Batches made by a pipeline on the data set's loop, with threads of this process.

    Args:
        loop: The data set's.
        **arguments: As for `Pipeline`, without ``deliver``.
    """

    def __init__(self, loop: LoopThread, **arguments: Any) -> None:
        self._loop = loop
        self._ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._pipeline = Pipeline(**arguments, deliver=self._ready.put)
        self._pid = os.getpid()

    def start(self) -> None:
        """Begins to make them."""
        self._loop.run(self._pipeline.start())

    def take(self) -> Any:
        """Waits for the next one; see `EpochBatches`.

        Raises:
            StoreClosed: The process has been forked meanwhile.
        """
        check_process(self._pid)
        item = self._ready.get()
        self._loop.call_soon(self._pipeline.consumed)
        return item

    def stop(self) -> None:
        """Ends the pipeline, and waits until its tasks and threads are gone."""
        self._pipeline.stop(self._loop)


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
