"""What the drop-in loader gives to torch: a loader whose dataset serves outcomes, of items or of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from concurrent_loader.order_source import Start
from concurrent_loader.served import Outcome, ServedItems, ServedStream, WorkerInit, as_it_is
from concurrent_loader.tasks_ahead import TaskSampler
from concurrent_loader.worker_places import ItemProgress, StatefulTasks, StreamProgress, WorkerPlaces

__all__ = ["ItemParts", "StreamParts"]


def _make_loader(served: Any, arguments: Mapping[str, Any], **more: Any) -> DataLoader[Outcome]:
    init = WorkerInit(arguments["worker_init_fn"])
    return DataLoader(served, batch_size=None, collate_fn=as_it_is, **{**arguments, **more, "worker_init_fn": init})


class ItemParts:
    """torch's loader over the items of a map-style dataset.

    Args:
        served: What its workers serve.
        tasks: The order.
        arguments: Further arguments of torch's loader.

    Attributes:
        items: Where items of this process come from.
    """

    def __init__(self, served: ServedItems, tasks: TaskSampler, arguments: Mapping[str, Any]) -> None:
        self.items = served.items
        self._served = served
        self._tasks = tasks
        self._num_workers: int = arguments["num_workers"]
        self._in_order: bool = arguments["in_order"]
        self._stateful = StatefulTasks(tasks, num_workers=self._num_workers) if served.stateful else None
        self._loader = _make_loader(served, arguments, sampler=self._stateful or tasks)

    @property
    def is_announced(self) -> bool:
        """Whether each worker first says that it has begun."""
        return self._stateful is not None

    def begin(self, start: Start) -> Iterator[Outcome]:
        """Begins an iteration."""
        self._tasks.start = start
        if self._stateful is not None:
            self._stateful.places = start.places
        try:
            return _begin(self._loader, start.seed)
        finally:
            self._tasks.start = Start()

    def progress(self, start: Start, batches: Any, *, now: Start, stated_length: int | None) -> ItemProgress:
        """Returns the progress of the iteration begun last, as ``start`` says, with the randomness ``now``."""
        assert self._tasks.newest is not None
        places = None
        if self._stateful is not None:
            places = WorkerPlaces(
                start.places,
                num_workers=self._num_workers,
                in_order=self._in_order,
                live=None if self._num_workers else self._served.place,
            )
        return ItemProgress(self._tasks.newest, places, _seed(start, batches))

    def close(self) -> None:
        """Ends threads of this process."""
        self.items.close()

    def rest(self) -> None:
        """Lets idle threads of this process end."""
        self.items.rest()


class StreamParts:
    """torch's loader over an iterable dataset; the methods are those of `ItemParts`.

    Args:
        served: What its workers serve.
        arguments: Further arguments of torch's loader.
    """

    is_announced = True

    def __init__(self, served: ServedStream, arguments: Mapping[str, Any]) -> None:
        self._served = served
        self._num_workers: int = arguments["num_workers"]
        self._in_order: bool = arguments["in_order"]
        self._loader = _make_loader(served, arguments)

    def begin(self, start: Start) -> Iterator[Outcome]:
        """Begins an iteration."""
        places = start.places
        self._served.begin_at(places)
        try:
            return _begin(self._loader, start.seed)
        finally:
            self._served.begin_at(None)

    def progress(self, start: Start, batches: Any, *, now: Start, stated_length: int | None) -> StreamProgress:
        """Returns the progress of the iteration begun last, as ``start`` says, with the randomness ``now``."""
        newest = self._served.newest
        places = WorkerPlaces(
            start.places,
            num_workers=self._num_workers,
            in_order=self._in_order,
            live=None if newest is None else newest.place,
        )
        name = str(self._served.dataset)
        return StreamProgress(
            start,
            places,
            now=now,
            seed=_seed(start, batches),
            name=name,
            stated_length=stated_length,
        )

    def close(self) -> None:
        """Does nothing: there are no threads."""

    def rest(self) -> None:
        """Does nothing: there are no threads."""


def _begin(loader: DataLoader[Outcome], seed: int | None) -> Iterator[Outcome]:
    """Begins an iteration of torch's loader, with a given base of the workers' seeds unless it is None."""
    assert isinstance(loader.worker_init_fn, WorkerInit)
    loader.worker_init_fn.seed = seed
    generator = loader.generator
    if seed is not None:
        loader.generator = torch.Generator()  # torch draws a base from it that nobody uses
    try:
        return iter(loader)
    finally:
        loader.generator = generator


def _seed(start: Start, batches: Any) -> int:
    """Returns the base of the workers' seeds: of the epoch's beginning, which a resumed one has from its state."""
    return int(batches._base_seed) if start.seed is None else start.seed
