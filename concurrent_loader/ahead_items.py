"""What a worker of the drop-in loader takes for its data set: the user's, got many items at once and ahead of time."""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any

from torch.utils.data import Dataset

from concurrent_loader.item_fetchers import ItemFetcher, Pending, make_fetcher
from concurrent_loader.tasks_ahead import Task

__all__ = ["AheadItems"]


class AheadItems(Dataset[Any]):
    """Gets tasks where torch passes indices, and returns the items of their indices.

    It pickles as the data set; threads and loop are made in each process when the first task comes, and end with
    `close`, with this object, or with the process.

    Args:
        dataset: The user's.
        in_flight: Items under way at once in each process.
        batched: Whether tasks are batches.

    Thread-safety: One thread, like torch's loaders.
    """

    def __init__(self, dataset: Any, *, in_flight: int, batched: bool) -> None:
        self.dataset = dataset
        self._in_flight = in_flight
        self._batched = batched
        self._ahead: _Ahead | None = None

    def __getitems__(self, task: Task) -> list[Any]:
        """The items of a batch; torch calls this where it makes batches."""
        items: list[Any] = self._opened().take(task)
        return items

    def __getitem__(self, task: Task) -> Any:
        """One item; torch calls this where it does not make batches."""
        return self._opened().take(task)

    def rest(self) -> None:
        """Lets idle threads end; the next task starts new ones."""
        if self._ahead is not None:
            self._ahead.fetcher.rest()

    def close(self) -> None:
        """Ends threads and loop of this process; waits some seconds for what is under way."""
        if self._ahead is not None:
            self._ahead.stop()
            self._ahead = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ahead": None}

    def _opened(self) -> _Ahead:
        if self._ahead is None or self._ahead.pid != os.getpid():
            self._ahead = _Ahead(make_fetcher(self.dataset, in_flight=self._in_flight, batched=self._batched))
            # also at the interpreter's end, while threads can still be joined
            weakref.finalize(self, self._ahead.stop)
        return self._ahead


class _Ahead:
    """The batches that are under way in one process."""

    def __init__(self, fetcher: ItemFetcher) -> None:
        self.fetcher = fetcher
        self.pid = os.getpid()
        self._iteration = 0
        self._pending: dict[int, Pending] = {}  # bounded by what tasks name ahead

    def take(self, task: Task) -> Any:
        """Starts a task's batch and those ahead of it, and waits for the first."""
        for number in [number for number in self._pending if self._is_stale(number, task)]:
            self._pending.pop(number).cancel()
        self._iteration = task.iteration
        current = self._pending.pop(task.number, None) or self.fetcher.start(task.indices)
        for number, indices in task.ahead:
            # What cannot be started is tried again in its turn, and raises then.
            with contextlib.suppress(Exception):
                self._pending[number] = self.fetcher.start(indices)
        return current.result()

    def stop(self) -> None:
        """Ends it all; in a process that was forked from this one, does nothing."""
        if os.getpid() == self.pid:
            for pending in self._pending.values():
                pending.cancel()
            self._pending.clear()
            self.fetcher.stop()

    def _is_stale(self, number: int, task: Task) -> bool:
        # The loop before was left early; or torch gave the batch to another worker after all.
        return task.iteration != self._iteration or number < task.number
