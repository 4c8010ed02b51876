"""How far the workers of one iteration have come, as the loader sees it: by the outcomes that the consumer has got."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from concurrent_loader.dataset_state import Place, Places
from concurrent_loader.order_source import Randomness, Start
from concurrent_loader.served import Begin, Outcome
from concurrent_loader.tasks_ahead import TasksAhead, TaskSampler

__all__ = ["ItemProgress", "StatefulTasks", "StreamProgress", "WorkerPlaces"]


class WorkerPlaces:
    """The places of all workers.

    Args:
        start: Where the iteration began; None for the beginning.
        num_workers: Number of worker processes.
        in_order: Whether workers take turns.
        live: Place of a dataset in this process, which is never ahead of the consumer; None with workers.
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
        """Notes what the consumer has got from a worker."""
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
        """Returns the places."""
        workers = tuple(self._places) if self._live is None else (self._live(),)
        return Places(workers, 0 if epoch_ended else self._turn, epoch_ended)


class ItemProgress:
    """Progress through a map-style dataset.

    Args:
        tasks: Tasks of the iteration.
        places: Of the workers, if the dataset has a state.
        seed: Base of the workers' seeds.

    Attributes:
        seed: As given.
    """

    def __init__(self, tasks: TasksAhead, places: WorkerPlaces | None, seed: int) -> None:
        self._tasks = tasks
        self._places = places
        self.seed = seed

    def delivered(self, outcome: Any) -> int:
        """Notes a batch that the consumer gets, plain or in an outcome; returns its number of samples."""
        if type(outcome) is not Outcome:
            return self._tasks.delivered()
        self.note(outcome)
        return self._tasks.delivered(outcome.number)

    def failed(self, outcome: Outcome | None) -> None:
        """Notes an error that the consumer gets; it counts as delivered when the next batch is."""
        if outcome is not None:
            self.note(outcome)
        self._tasks.failed(None if outcome is None else outcome.number)

    def note(self, outcome: Outcome) -> None:
        """Notes what a worker has said of itself."""
        if self._places is not None:
            self._places.note(outcome)

    def position(self) -> Start:
        """Returns where an iteration begins that goes on after what was delivered."""
        start = self._tasks.order.position()
        return start if self._places is None else replace(start, seed=self.seed, places=self._places.now())

    def at_end(self) -> Places | None:
        """Returns what the next epoch begins with."""
        return None if self._places is None else self._places.now(epoch_ended=True)

    def first_at(self, randomness: Randomness) -> None:
        """Sets the randomness at the first batch, if none has been asked for."""
        self._tasks.order.first_at(randomness)

    def put_back(self) -> None:
        """Sets the generators of the order to where torch would have left them."""
        self._tasks.put_back()


class StreamProgress:
    """Progress through an iterable dataset; the methods are those of `ItemProgress`.

    Args:
        start: Where the iteration began.
        places: Of the workers.
        now: Randomness when it began, and after that.
        seed: Base of the workers' seeds.
        name: Of the dataset, for a warning.
        stated_length: Number of samples that the dataset has stated; None if it was not asked.
    """

    def __init__(
        self,
        start: Start,
        places: WorkerPlaces,
        *,
        now: Start,
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
                f"len(dataloader)), but {self._num_delivered} samples have been fetched. With workers, each must read "
                "its own part of the dataset: see get_worker_info().",
                stacklevel=3,
            )
        return outcome.size

    def failed(self, outcome: Outcome | None) -> None:
        """Notes an error that the consumer gets."""
        if outcome is not None:
            self._places.note(outcome)

    def note(self, outcome: Outcome) -> None:
        """Notes what a worker has said of itself."""
        self._places.note(outcome)

    def position(self) -> Start:
        """Returns where an iteration begins that goes on after what was delivered."""
        return Start(
            num_batches=self._num_delivered,
            at_iter=self._at_iter,
            at_first=self._at_first,
            seed=self.seed,
            places=self._places.now(),
        )

    def at_end(self) -> Places:
        """Returns what the next epoch begins with."""
        return self._places.now(epoch_ended=True)

    def first_at(self, randomness: Randomness) -> None:
        """Does nothing: there is no sampler."""

    def put_back(self) -> None:
        """Does nothing: there is no sampler."""


class StatefulTasks:
    """Puts before the tasks of an iteration those that tell each worker where to begin.

    Args:
        tasks: The tasks.
        num_workers: Number of worker processes.

    Attributes:
        places: Where the workers of the next iteration begin; None for the beginning.
    """

    def __init__(self, tasks: TaskSampler, *, num_workers: int) -> None:
        self.tasks = tasks
        self.places: Places | None = None
        self._num_workers = max(1, num_workers)

    def __iter__(self) -> Iterator[Any]:
        """Begins an iteration, at once, as `TaskSampler` does."""
        begin = [Begin()] * self._num_workers
        if self.places is not None:
            begin = [Begin(place.state) for place in self.places.workers]
        # The next batch is for the worker whose turn it is.
        none = [None] * (0 if self.places is None or self.places.epoch_ended else self.places.turn)
        return _chain([*begin, *none], iter(self.tasks))


def _chain(first: list[Any], then: Iterator[Any]) -> Iterator[Any]:
    yield from first
    yield from then
