"""torch's own loaders below the drop-in: their datasets return outcomes, of items or of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from concurrent_loader.map_style.lookahead_sampler import LookaheadSampler
from concurrent_loader.map_style.sampler_state import ResumePoint
from concurrent_loader.map_style.worker_dataset import Outcome, WorkerDataset, WorkerInit, WorkerStream, identity
from concurrent_loader.map_style.worker_progress import ItemProgress, StatefulTasks, StreamProgress, WorkerPlaces

__all__ = ["ItemParts", "StreamParts"]


def _make_loader(served: Any, arguments: Mapping[str, Any], **more: Any) -> DataLoader[Outcome]:
    init = WorkerInit(arguments["worker_init_fn"])
    return DataLoader(served, batch_size=None, collate_fn=identity, **{**arguments, **more, "worker_init_fn": init})


class ItemParts:
    """torch's loader over the items of a map-style dataset.

    Args:
        served: Dataset whose samples are outcomes.
        tasks: Sampler whose samples are tasks.
        arguments: Further arguments of torch's loader.

    Attributes:
        items: Prefetching dataset of this process.
    """

    def __init__(self, served: WorkerDataset, tasks: LookaheadSampler, arguments: Mapping[str, Any]) -> None:
        self.items = served.items
        self._served = served
        self._tasks = tasks
        self._num_workers: int = arguments["num_workers"]
        self._in_order: bool = arguments["in_order"]
        self._stateful = StatefulTasks(tasks, num_workers=self._num_workers) if served.stateful else None
        self._loader = _make_loader(served, arguments, sampler=self._stateful or tasks)

    @property
    def workers_report_start(self) -> bool:
        """Whether each worker first reports that it has started."""
        return self._stateful is not None

    def begin(self, start: ResumePoint) -> Iterator[Outcome]:
        """Starts an iteration."""
        self._tasks.start = start
        if self._stateful is not None:
            self._stateful.places = start.places
        try:
            return _begin(self._loader, start.seed)
        finally:
            self._tasks.start = ResumePoint()

    def progress(
        self, start: ResumePoint, batches: Any, *, now: ResumePoint, stated_length: int | None
    ) -> ItemProgress:
        """Returns the progress of the newest iteration, which began at ``start`` with the random states ``now``."""
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
        """Ends the threads of this process."""
        self.items.close()

    def release_idle(self) -> None:
        """Lets idle threads of this process exit."""
        self.items.release_idle()


class StreamParts:
    """torch's loader over an iterable dataset, with the methods of `ItemParts`.

    Args:
        served: Dataset whose samples are outcomes.
        arguments: Further arguments of torch's loader.
    """

    workers_report_start = True

    def __init__(self, served: WorkerStream, arguments: Mapping[str, Any]) -> None:
        self._served = served
        self._num_workers: int = arguments["num_workers"]
        self._in_order: bool = arguments["in_order"]
        self._loader = _make_loader(served, arguments)

    def begin(self, start: ResumePoint) -> Iterator[Outcome]:
        """Starts an iteration."""
        places = start.places
        self._served.set_start(places)
        try:
            return _begin(self._loader, start.seed)
        finally:
            self._served.set_start(None)

    def progress(
        self, start: ResumePoint, batches: Any, *, now: ResumePoint, stated_length: int | None
    ) -> StreamProgress:
        """Returns the progress of the newest iteration, which began at ``start`` with the random states ``now``."""
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
        """Does nothing, because a stream has no threads."""

    def release_idle(self) -> None:
        """Does nothing, because a stream has no threads."""


def _begin(loader: DataLoader[Outcome], seed: int | None) -> Iterator[Outcome]:
    """Starts an iteration of torch's loader, with the given base of the workers' seeds unless it is None."""
    assert isinstance(loader.worker_init_fn, WorkerInit)
    loader.worker_init_fn.seed = seed
    generator = loader.generator
    if seed is not None:
        loader.generator = torch.Generator()  # torch draws a base from it, which is not used
    try:
        return iter(loader)
    finally:
        loader.generator = generator


def _seed(start: ResumePoint, batches: Any) -> int:
    """Returns the base of the workers' seeds. A resumed epoch has it from its state."""
    return int(batches._base_seed) if start.seed is None else start.seed
