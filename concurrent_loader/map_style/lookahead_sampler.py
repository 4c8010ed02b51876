"""Look-ahead: tells each worker which batches come next, so that it can read their items early.

torch's DataLoader sends a worker the indices of one batch at a time. Here each such task also announces the batches
that the same worker gets next. torch deals batches out in turn, so these are ``num_workers`` apart.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from concurrent_loader.map_style.inline_heuristic import COMPUTES
from concurrent_loader.map_style.sampler_state import GeneratorStates, OrderSource, ResumePoint, SamplerRun

__all__ = ["LookaheadSampler", "LookaheadTasks", "Task"]


@dataclass(frozen=True, slots=True)
class Task:
    """A batch to make, sent by torch to a worker in place of the batch's indices.

    Attributes:
        iteration: Number of the iteration. Batch numbers of different iterations are unrelated.
        number: Number of the batch, from 0 in each iteration.
        indices: Indices of the batch, or one index where torch does not make batches.
        ahead: Numbers and indices of later batches of the same worker that are announced with this task.
    """

    iteration: int
    number: int
    indices: Any
    ahead: tuple[tuple[int, Any], ...]


class LookaheadSampler:
    """Takes the place of a loader's (batch) sampler and yields tasks.

    Args:
        order: Sampler and its generators.
        num_workers: Number of workers that get batches in turn; 0 counts as 1.
        num_items_ahead: Least number of items of later batches that a worker knows of, if there are any; 0 for none.
        batched: Whether the sampler yields lists of indices rather than single ones.
        found: Finding about the items of each worker, see `concurrent_loader.map_style.inline_heuristic`. A worker
            whose items compute gets no announcements.
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
        self.start = ResumePoint()  # of the iterations started from now on
        self.newest: LookaheadTasks | None = None

    def __iter__(self) -> LookaheadTasks:
        """Starts an iteration, and one of the sampler at once, as torch does. torch does so twice per epoch."""
        self._iteration += 1
        self.newest = LookaheadTasks(
            SamplerRun(self._order, self.start),
            iteration=self._iteration,
            num_workers=self._num_workers,
            num_items_ahead=self._num_items_ahead,
            batched=self._batched,
            found=self._found,
        )
        return self.newest


class LookaheadTasks:
    """Yields the tasks of one iteration in order, and plain indices for workers whose items compute.

    The sampler is read no further than the tasks so far announce: ``num_items_ahead`` items per worker, rounded up to
    batches. An error of the sampler is raised where torch would raise it.
    """

    def __init__(
        self,
        order: SamplerRun,
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
        self._read: deque[tuple[Any, GeneratorStates]] = deque()  # batches from the current number on
        self._drawn_given: GeneratorStates | None = None  # generator states after the newest task was read
        self._drawn_read: GeneratorStates = ()  # generator states after the newest batch was read
        self._ended = False  # the sampler is exhausted, or has raised
        self._error: Exception | None = None
        self._next_hint = [0] * num_workers
        self._num_ahead = [0] * num_workers  # items of batches announced and not yet sent
        self._sizes: dict[int, int] = {}  # of the batches sent and not delivered
        self._failed: list[int] = []

    def __iter__(self) -> LookaheadTasks:
        return self

    def __next__(self) -> Any:
        number = self._number
        if not (self._read or self._ended) and self._computes(number % self._num_workers):
            indices = next(self.order)  # read exactly when torch would
            self._drawn_given = None
            self._number += 1
            self._sizes[number] = self._weight(indices)
            return indices
        if not self._has(number):
            self._drawn_given = None  # torch would be at the end now, too
            if self._error is None:
                raise StopIteration
            error, self._error, self._ended = self._error, None, False
            try:
                raise error
            finally:
                del error  # the traceback refers to this frame
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
        """Records that a batch was delivered; returns its number of items.

        Args:
            number: Number of the batch; None for the first one not yet delivered.
        """
        number = self._first_left() if number is None else number
        for failed in self._failed:
            self._pass(failed)
        self._failed.clear()
        return self._pass(number)

    def failed(self, number: int | None = None) -> None:
        """Records that a batch was an exception. It counts as delivered when the next batch is."""
        self._failed.append(self._first_left() if number is None else number)

    def restore_generators(self) -> None:
        """Sets the order's own random generators to the states in which torch would have left them.

        If the iteration ends early, these are the states before the sampler was read ahead. Generators that other code
        has drawn from since then are left alone.
        """
        if self._drawn_given is not None:
            self.order.restore_generators(self._drawn_given, if_still=self._drawn_read)

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
        """Reads on up to a batch; returns whether there is one."""
        while len(self._read) <= number - self._number:
            if self._ended:
                return False
            try:
                indices = self._kept(next(self.order))
                self._drawn_read = self.order.generator_states()
                self._read.append((indices, self._drawn_read))
            except StopIteration:
                self._drawn_read = self.order.generator_states()
                self._ended = True  # the exception itself would keep its callers' frames alive
            except Exception as error:  # noqa: BLE001 - raised when its turn comes
                self._ended, self._error = True, error
        return True

    def _kept(self, indices: Any) -> Any:
        """Copies indices that the sampler may change or exhaust when it is asked for more."""
        if not self._batched:
            return indices
        if isinstance(indices, np.ndarray | torch.Tensor):
            return copy.copy(indices) if isinstance(indices, np.ndarray) else indices.clone()
        return list(indices) if type(indices) is list or isinstance(indices, Iterator) else indices

    def _weight(self, indices: Any) -> int:
        if not self._batched:
            return 1
        try:
            return max(1, len(indices))
        except TypeError:
            return 1
