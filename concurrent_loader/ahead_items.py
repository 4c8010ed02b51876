"""What a worker of the drop-in loader takes for its data set: the user's, got many items at once and ahead of time."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset

from concurrent_loader.inline_heuristic import Findings
from concurrent_loader.item_fetchers import ItemFetcher, Pending, make_fetcher
from concurrent_loader.tasks_ahead import Task

__all__ = ["AheadItems"]


class AheadItems(Dataset[Any]):
    """Gets batches where torch passes tasks or plain indices, and returns the items of their indices.

    It pickles as the dataset; threads and loop are made in each process when they are first needed, and end with
    `close`, with this object, or with the process.

    Args:
        dataset: The user's.
        in_flight: Items under way at once in each process.
        batched: Whether tasks are batches.
        findings: What processes have found out about the items; this one adds what it finds out.

    Attributes:
        dataset: As given.
        number: Of this process in ``findings``.

    Thread-safety: One thread, like torch's loaders.
    """

    def __init__(self, dataset: Any, *, in_flight: int, batched: bool, findings: Findings) -> None:
        self.dataset = dataset
        self.number = 0
        self._in_flight = in_flight
        self._batched = batched
        self._findings = findings
        self._ahead: _Ahead | None = None

    def __getitem__(self, task: Any) -> Any:
        """Returns one item, or the items of a batch."""
        ahead = self._ahead
        if ahead is None or ahead.pid != os.getpid():
            ahead = self._open()
        return ahead.take(task) if type(task) is Task else ahead.get(task)

    __getitems__ = __getitem__  # torch calls this where it makes batches

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

    def _open(self) -> _Ahead:
        found, number = self._findings.bytes, self.number
        self._ahead = _Ahead(
            make_fetcher(
                self.dataset,
                in_flight=self._in_flight,
                batched=self._batched,
                known=found[number],
                tell=lambda known: found.__setitem__(number, known),
            )
        )
        # also at the interpreter's end, while threads can still be joined
        weakref.finalize(self, self._ahead.stop)
        return self._ahead


class _Ahead:
    """The batches that this process has been told of, and those of them that are under way."""

    def __init__(self, fetcher: ItemFetcher) -> None:
        self.fetcher = fetcher
        self.pid = os.getpid()
        self._iteration = 0
        self._named: dict[int, Any] = {}  # indices of batches not started; bounded by what tasks name ahead, as is …
        self._pending: dict[int, Pending] = {}

    def get(self, indices: Any) -> Any:
        """Returns the items of a batch that comes without others: none is under way in this iteration."""
        if self._named or self._pending:
            self._forget(lambda number: True)
        return self.fetcher.get(indices, self._start_named)

    def take(self, task: Task) -> Any:
        """Returns the items of a task's batch, and starts those ahead of it where that is worth while."""
        # The loop before was left early; or torch gave the batch to another worker after all.
        self._forget(lambda number: task.iteration != self._iteration or number < task.number)
        self._iteration = task.iteration
        self._named.pop(task.number, None)
        self._named.update(task.ahead)
        pending = self._pending.pop(task.number, None)
        if pending is None:
            return self.fetcher.get(task.indices, self._start_named)
        if self.fetcher.starts_early:
            self._start_named()
        return pending.result()

    def stop(self) -> None:
        """Ends it all; in a process that was forked from this one, does nothing."""
        if os.getpid() == self.pid:
            self._forget(lambda number: True)
            self.fetcher.stop()

    def _start_named(self) -> None:
        for number, indices in self._named.items():
            # What cannot be started is tried again in its turn, and raises then.
            with contextlib.suppress(Exception):
                self._pending[number] = self.fetcher.start(indices)
        self._named.clear()

    def _forget(self, is_stale: Callable[[int], bool]) -> None:
        for number in [number for number in self._named if is_stale(number)]:
            del self._named[number]
        for number in [number for number in self._pending if is_stale(number)]:
            self._pending.pop(number).cancel()
