"""Progress of the workers in one iteration, derived from the outcomes that the consumer has received."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from concurrent_loader.map_style.dataset_state import Place, Places
from concurrent_loader.map_style.lookahead_sampler import LookaheadSampler, LookaheadTasks
from concurrent_loader.map_style.sampler_state import Randomness, ResumePoint
from concurrent_loader.map_style.worker_dataset import Outcome, StartTask

__all__ = ["ItemProgress", "StatefulTasks", "StreamProgress", "WorkerPlaces"]


class WorkerPlaces:
    """Tracks the positions of all workers.

    Args:
        start: Positions at which the iteration started; None for the beginning.
        num_workers: Number of worker processes.
        in_order: Whether workers take turns.
        live: Function that returns the position of a dataset in this process, never ahead of the consumer; None with
            workers.
    """

    def __init__(
        self, start: Places | None, *, num_workers: int, in_order: bool, live: Callable[[], Place] | None = None
    ) -> None:
        begun = None if start is None or start.epoch_ended else start
        self._places = [Place()] * max(1, num_workers) if begun is None else list(begun.workers)
        self._turn = 0 if begun is None else begun.turn
        self._in_order = in_order and num_workers > 0
        self._live = live

    def note(self, outcome: Outcome) -> None:
        """Records an outcome that the consumer has received."""
        is_turn = outcome.has_batch or outcome.error is not None or outcome.ended
        place = self._places[outcome.worker]
        if outcome.state is not None:
            place = Place(outcome.state)
        elif outcome.has_batch or outcome.error is not None:
            place = replace(place, num_since=place.num_since + 1)
        self._places[outcome.worker] = replace(place, ended=outcome.ended or place.ended)
        if is_turn and self._in_order:
            self._turn = (outcome.worker + 1) % len(self._places)

    def now(self, *, epoch_ended: bool = False) -> Places:
        """Returns the current positions."""
        workers = tuple(self._places) if self._live is None else (self._live(),)
        return Places(workers, 0 if epoch_ended else self._turn, epoch_ended)


class ItemProgress:
    """Progress through a map-style dataset.

    Args:
        tasks: Tasks of the iteration.
        places: Positions of the workers; None if the dataset has no state.
        seed: Base of the workers' seeds.

    Attributes:
        seed: Base of the workers' seeds.
    """

    def __init__(self, tasks: LookaheadTasks, places: WorkerPlaces | None, seed: int) -> None:
        self._tasks = tasks
        self._places = places
        self.seed = seed

    def delivered(self, outcome: Any) -> int:
        """Records a delivered batch, plain or in an outcome; returns its number of samples."""
        if type(outcome) is not Outcome:
            return self._tasks.delivered()
        self.note(outcome)
        return self._tasks.delivered(outcome.number)

    def failed(self, outcome: Outcome | None) -> None:
        """Records a raised error. It counts as delivered when the next batch is."""
        if outcome is not None:
            self.note(outcome)
        self._tasks.failed(None if outcome is None else outcome.number)

    def note(self, outcome: Outcome) -> None:
        """Records what a worker has reported about itself."""
        if self._places is not None:
            self._places.note(outcome)

    def position(self) -> ResumePoint:
        """Returns the resume point after the last delivered batch."""
        start = self._tasks.order.position()
        return start if self._places is None else replace(start, seed=self.seed, places=self._places.now())

    def next_epoch_start(self) -> Places | None:
        """Returns the positions at which the next epoch starts."""
        return None if self._places is None else self._places.now(epoch_ended=True)

    def set_first_randomness(self, randomness: Randomness) -> None:
        """Sets the random states at the first batch, if no batch has been requested yet."""
        self._tasks.order.set_first_randomness(randomness)

    def restore_generators(self) -> None:
        """Sets the order's generators to the states in which torch would have left them."""
        self._tasks.restore_generators()


class StreamProgress:
    """Progress through an iterable dataset, with the methods of `ItemProgress`.

    Args:
        start: Resume point at which the iteration started.
        places: Positions of the workers.
        now: Random states at the start of the iteration.
        seed: Base of the workers' seeds.
        name: Name of the dataset, for a warning.
        stated_length: Length that the dataset has stated; None if ``len`` was not called.
    """

    def __init__(
        self,
        start: ResumePoint,
        places: WorkerPlaces,
        *,
        now: ResumePoint,
        seed: int,
        name: str,
        stated_length: int | None,
    ) -> None:
        self._start = start
        self._places = places
        self._at_iter = start.at_iter or now.at_iter
        self._at_first = start.at_first or now.at_first
        self.seed = seed
        self._name = name
        self._stated_length = stated_length
        self._num_delivered = start.num_batches

    def delivered(self, outcome: Outcome) -> int:
        """See `ItemProgress.delivered`."""
        self._places.note(outcome)
        self._num_delivered += 1
        if self._stated_length is not None and self._num_delivered > self._stated_length:
            warnings.warn(
                f"Length of IterableDataset {self._name} was reported to be {self._stated_length} (when accessing "
                f"len(dataloader)), but {self._num_delivered} samples have been fetched. For multiprocessing "
                "data-loading, this could be caused by workers that do not each read a part of their own: see "
                "get_worker_info().",
                stacklevel=3,
            )
        return outcome.size

    def failed(self, outcome: Outcome | None) -> None:
        """Records a raised error."""
        if outcome is not None:
            self._places.note(outcome)

    def note(self, outcome: Outcome) -> None:
        """Records what a worker has reported about itself."""
        self._places.note(outcome)

    def position(self) -> ResumePoint:
        """Returns the resume point after the last delivered batch."""
        return ResumePoint(
            num_batches=self._num_delivered,
            at_iter=self._at_iter,
            at_first=self._at_first,
            seed=self.seed,
            places=self._places.now(),
        )

    def next_epoch_start(self) -> Places:
        """Returns the positions at which the next epoch starts."""
        return self._places.now(epoch_ended=True)

    def set_first_randomness(self, randomness: Randomness) -> None:
        """Does nothing, because a stream has no sampler."""

    def restore_generators(self) -> None:
        """Does nothing, because a stream has no sampler."""


class StatefulTasks:
    """Yields one start task per worker before the tasks of an iteration.

    Args:
        tasks: Sampler that yields the tasks.
        num_workers: Number of worker processes.

    Attributes:
        places: Positions at which the workers of the next iteration start; None for the beginning.
    """

    def __init__(self, tasks: LookaheadSampler, *, num_workers: int) -> None:
        self.tasks = tasks
        self.places: Places | None = None
        self._num_workers = max(1, num_workers)

    def __iter__(self) -> Iterator[Any]:
        """Starts an iteration at once, as `LookaheadSampler` does."""
        begin = [StartTask()] * self._num_workers
        if self.places is not None:
            begin = [StartTask(place.state) for place in self.places.workers]
        # Empty tasks make the next batch go to the worker whose turn it is.
        none = [None] * (0 if self.places is None or self.places.epoch_ended else self.places.turn)
        return _chain([*begin, *none], iter(self.tasks))


def _chain(first: list[Any], then: Iterator[Any]) -> Iterator[Any]:
    yield from first
    yield from then
