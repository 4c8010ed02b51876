"""One iteration over the native loader, as the consumer has it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

from concurrent_loader.worker_processes import WorkerProcesses

__all__ = ["LoaderIterator"]


class LoaderIterator(Iterator[Any]):
    """Gives the batches of one epoch; threads and workers end with it.

    Args:
        batches: Generator of the batches.
        workers: Worker processes of the loader; None where threads make the batches.
    """

    def __init__(self, batches: Generator[Any, None, None], workers: WorkerProcesses | None) -> None:
        self._batches = batches
        self._processes = workers

    def __next__(self) -> Any:
        return next(self._batches)

    def close(self) -> None:
        """Ends the iteration."""
        self._batches.close()

    @property
    def _workers(self) -> list[BaseProcess]:
        """The worker processes, from the first batch on: where torch's iterator has them, for tools that watch them.

        Raises:
            AttributeError: There are no workers, as with torch.
        """
        if self._processes is None:
            raise AttributeError("_workers: the loader has num_workers=0")
        return self._processes.processes
