"""Which items are fetched early: between a torch sampler, which says what a batch is made of, and a worker's threads.

torch's DataLoader sends a worker one batch's indices at a time. Here every such task also names the batches that the
same worker will be sent next, so that it can begin with them. torch deals batches out in turn, hence these are the ones
that lie ``num_workers`` apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from concurrent_loader.inline_heuristic import COMPUTES
from concurrent_loader.order_source import BegunOrder, Drawn, OrderSource, Start

__all__ = ["Task", "TaskSampler", "TasksAhead"]


@dataclass(frozen=True, slots=True)
class Task:
    """What torch passes on to a worker in place of a batch's indices.

    Attributes:
        iteration: Counts the iterations of one loader; numbers of different ones have nothing to do with each other.
        number: Of the batch, from 0 in each iteration.
        indices: What the sampler said: a batch's indices, or one index where torch does not make batches.
        ahead: Number and indices of batches that the same worker gets later and has not been told of yet.
    """

    iteration: int
    number: int
    indices: Any
    ahead: tuple[tuple[int, Any], ...]


class TaskSampler:
    """Stands in for a loader's (batch) sampler, and gives tasks.

    Args:
        order: The sampler and its generators.
        num_workers: Among which torch deals the batches out in turn; 0 counts as 1.
        num_items_ahead: Of later batches a worker is told of at least so many items, if there are any; 0 for none.
        batched: Whether the sampler gives lists of indices rather than single ones.
        found: What is known of the items in each worker, see `concurrent_loader.inline_heuristic`. A worker whose items
            compute is told of none ahead.
    """

    def __init__(
        self, order: OrderSource, *, num_workers: int, num_items_ahead: int, batched: bool, found: Sequence[int]
    ) -> None:
        self._order = order
        self._found = found
        self._num_workers = max(1, num_workers)
        self._num_items_ahead = num_items_ahead
        self._batched = batched
        self._iteration = 0
        self.start = Start()  # of the iterations begun from now on
        self.newest: TasksAhead | None = None

    def __iter__(self) -> TasksAhead:
        """Begins an iteration, and with it one of the sampler: at once, as torch does. torch does it twice an epoch."""
        self._iteration += 1
        self.newest = TasksAhead(
            BegunOrder(self._order, self.start),
            iteration=self._iteration,
            num_workers=self._num_workers,
            num_items_ahead=self._num_items_ahead,
            batched=self._batched,
            found=self._found,
        )
        return self.newest


class TasksAhead:
    """The tasks of one iteration, in order; plain indices for workers whose items compute.

    It reads from the sampler no further than the tasks given so far name: ``num_items_ahead`` items for each worker,
    rounded up to batches. What the sampler raises is raised where torch would raise it.
    """

    def __init__(
        self,
        order: BegunOrder,
        *,
        iteration: int,
        num_workers: int,
        num_items_ahead: int,
        batched: bool,
        found: Sequence[int],
    ) -> None:
        self.order = order
        self._found = found
        self._iteration = iteration
        self._num_workers = num_workers
        self._num_items_ahead = num_items_ahead
        self._batched = batched
        self._number = 0
        self._read: deque[tuple[Any, Drawn]] = deque()  # batches from the current number on
        self._drawn_given: Drawn | None = None  # what the generators were after the newest task was read
        self._drawn_read: Drawn = ()  # … and after the newest batch was
        self._ended = False  # the sampler has said so, or raised
        self._error: Exception | None = None
        self._next_hint = [0] * num_workers
        self._num_ahead = [0] * num_workers  # items of batches named and not given yet
        self._sizes: dict[int, int] = {}  # of the batches given and not delivered
        self._failed: list[int] = []

    def __iter__(self) -> TasksAhead:
        return self

    def __next__(self) -> Any:
        number = self._number
        if not (self._read or self._ended) and self._computes(number % self._num_workers):
            indices = next(self.order)  # just when torch would read it
            self._drawn_given = None
            self._number += 1
            self._sizes[number] = self._weight(indices)
            return indices
        if not self._has(number):
            self._drawn_given = None  # now torch would have come to the end, too
            if self._error is None:
                raise StopIteration
            error, self._error, self._ended = self._error, None, False
            try:
                raise error
            finally:
                del error  # the traceback has this frame
        worker = number % self._num_workers
        indices, drawn = self._read[0]
        if number < self._next_hint[worker]:
            self._num_ahead[worker] -= self._weight(indices)
        ahead = self._name_ahead(worker, max(self._next_hint[worker], number + self._num_workers))
        self._read.popleft()
        self._drawn_given = drawn
        self._number += 1
        self._sizes[number] = self._weight(indices)
        return Task(self._iteration, number, indices, ahead)

    def delivered(self, number: int | None = None) -> int:
        """Tells that the consumer has got a batch; returns its number of items.

        Args:
            number: Number of the batch; None for the first that is still to come.
        """
        number = self._first_left() if number is None else number
        for failed in self._failed:
            self._pass(failed)
        self._failed.clear()
        return self._pass(number)

    def failed(self, number: int | None = None) -> None:
        """Tells that a batch was an exception. It counts as delivered when the next one is."""
        self._failed.append(self._first_left() if number is None else number)

    def put_back(self) -> None:
        """Sets the random generators that the order has of its own to where torch would have left them.

        That is where they were before the sampler was read ahead, when the iteration is left early. Where somebody else
        has drawn from them since, they are left alone.
        """
        if self._drawn_given is not None:
            self.order.put_back(self._drawn_given, if_still=self._drawn_read)

    def _first_left(self) -> int:
        return next((number for number in self._sizes if number not in self._failed), self._number)

    def _pass(self, number: int) -> int:
        self.order.delivered(number)
        return self._sizes.pop(number, 0)

    def _name_ahead(self, worker: int, start: int) -> tuple[tuple[int, Any], ...]:
        ahead: list[tuple[int, Any]] = []
        hint = start
        if self._computes(worker):
            return ()
        while self._num_ahead[worker] < self._num_items_ahead and self._has(hint):
            indices, _ = self._read[hint - self._number]
            ahead.append((hint, indices))
            self._num_ahead[worker] += self._weight(indices)
            hint += self._num_workers
        self._next_hint[worker] = hint
        return tuple(ahead)

    def _computes(self, worker: int) -> bool:
        return self._num_items_ahead > 0 and self._found[worker] == COMPUTES

    def _has(self, number: int) -> bool:
        """Reads on until a batch is there; says whether it is."""
        while len(self._read) <= number - self._number:
            if self._ended:
                return False
            try:
                indices = self._kept(next(self.order))
                self._drawn_read = self.order.drawn()
                self._read.append((indices, self._drawn_read))
            except StopIteration:
                self._drawn_read = self.order.drawn()
                self._ended = True  # the exception itself would keep its callers' frames alive, and what they refer to
            except Exception as error:  # noqa: BLE001 - raised when its turn comes
                self._ended, self._error = True, error
        return True

    def _kept(self, indices: Any) -> Any:
        """Makes what a sampler may change or use up as soon as it is asked for more into something that lasts."""
        if not self._batched:
            return indices
        return list(indices) if type(indices) is list or isinstance(indices, Iterator) else indices

    def _weight(self, indices: Any) -> int:
        if not self._batched:
            return 1
        try:
            return max(1, len(indices))
        except TypeError:
            return 1
