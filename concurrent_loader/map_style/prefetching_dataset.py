"""The user's dataset inside a worker of the drop-in: many items are read at once, and ahead of their turn."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset

from concurrent_loader.map_style.fetchers import ItemFetcher, Pending, make_fetcher
from concurrent_loader.map_style.inline_heuristic import Findings
from concurrent_loader.map_style.lookahead_sampler import Task

__all__ = ["PrefetchingDataset"]


class PrefetchingDataset(Dataset[Any]):
    """Returns the items of a task or of plain indices, and reads those of later batches ahead.

    A pickle holds the dataset only. Each process creates its threads or event loop on first use. They end with `close`,
    with this object, or with the process.

    Args:
        dataset: Dataset of the user.
        in_flight: Number of items read at once in each process.
        batched: Whether a task is a batch rather than one item.
        findings: Findings of all processes about the items; this process adds its own.

    Attributes:
        dataset: Dataset of the user.
        number: Number of this process in ``findings``.

    Thread-safety: Use it from one thread, like torch's loaders.
    """

    def __init__(self, dataset: Any, *, in_flight: int, batched: bool, findings: Findings) -> None:
        self.dataset = dataset
        self.number = 0
        self._in_flight = in_flight
        self._batched = batched
        self._findings = findings
        self._ahead: _Lookahead | None = None

    def __getitem__(self, task: Any) -> Any:
        """Returns one item, or the items of a batch."""
        ahead = self._ahead
        if ahead is None or ahead.pid != os.getpid():
            ahead = self._open()
        return ahead.take(task) if type(task) is Task else ahead.get(task)

    __getitems__ = __getitem__  # torch calls this for batches

    def release_idle(self) -> None:
        """Lets idle threads exit; the next task starts new ones."""
        if self._ahead is not None:
            self._ahead.fetcher.release_idle()

    def close(self) -> None:
        """Ends the threads or event loop of this process. Running reads get a few seconds to finish."""
        if self._ahead is not None:
            self._ahead.stop()
            self._ahead = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ahead": None}

    def _open(self) -> _Lookahead:
        found, number = self._findings.bytes, self.number
        self._ahead = _Lookahead(
            make_fetcher(
                self.dataset,
                in_flight=self._in_flight,
                batched=self._batched,
                known=found[number],
                report=lambda known: found.__setitem__(number, known),
            )
        )
        # also when the interpreter exits, while threads can still be joined
        weakref.finalize(self, self._ahead.stop)
        return self._ahead


class _Lookahead:
    """The batches announced to this process, and those already started."""

    def __init__(self, fetcher: ItemFetcher) -> None:
        self.fetcher = fetcher
        self.pid = os.getpid()
        self._iteration = 0
        self._named: dict[int, Any] = {}  # indices of announced batches; bounded by the look-ahead, as is …
        self._pending: dict[int, Pending] = {}

    def get(self, indices: Any) -> Any:
        """Returns the items of a batch that announces no others: none is in flight in this iteration."""
        if self._named or self._pending:
            self._forget(lambda number: True)
        return self.fetcher.get(indices, self._start_named)

    def take(self, task: Task) -> Any:
        """Returns the items of a task's batch, and starts the announced ones if that is worthwhile."""
        # The last iteration ended early, or torch gave the batch to another worker.
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
        """Cancels all batches and ends the threads. Does nothing in a forked child."""
        if os.getpid() == self.pid:
            self._forget(lambda number: True)
            self.fetcher.stop()

    def _start_named(self) -> None:
        for number, indices in self._named.items():
            # A batch that cannot be started now is read in its turn, and raises then.
            with contextlib.suppress(Exception):
                self._pending[number] = self.fetcher.start(indices)
        self._named.clear()

    def _forget(self, is_stale: Callable[[int], bool]) -> None:
        for number in [number for number in self._named if is_stale(number)]:
            del self._named[number]
        for number in [number for number in self._pending if is_stale(number)]:
            self._pending.pop(number).cancel()
