"""Fetches the units of several datasets for one iteration, each on its dataset's own event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.datasets.protocol import GroupChooser, LoadableDataset, OpenUnit, RowFetcher
from concurrent_loader.order.mixture_plan import MixturePlan
from concurrent_loader.order.protocol import BatchIndex
from concurrent_loader.storage.errors import StoreClosed

__all__ = ["MixtureSource"]


class MixtureSource:
    """The units of a mixture, for one iteration; see `concurrent_loader.datasets.protocol.Source`.

    The methods are for one event loop. They forward calls to the other datasets' event loops.

    Args:
        children: Datasets of the mixture.
    """

    def __init__(self, children: Sequence[LoadableDataset]) -> None:
        self._loops = [child.loop for child in children]
        self._sources = [child.source for child in children]
        self._plan: MixturePlan | None = None
        self._world_size = 1
        self._shared = False
        self._scheduled: dict[int, int] = {}  # dataset → epoch whose schedule its cache has

    @property
    def max_concurrent(self) -> None:
        return None  # with a common limit, the units of one dataset would wait for another's request slots

    def choose_groups(self, choosers: Sequence[Mapping[str, GroupChooser]]) -> None:
        each = choosers if len(choosers) == len(self._sources) else [choosers[0]] * len(self._sources)
        for source, own in zip(self._sources, each, strict=True):
            source.choose_groups([own])

    async def set_schedule(self, plan: Any, world_size: int, *, shared: bool = False) -> None:
        self._plan, self._world_size, self._shared = plan, world_size, shared

    def set_step(self, step: int) -> None:
        plan = self._current_plan
        for child, scheduled in list(self._scheduled.items()):
            epoch, within = plan.position(child, min(step, plan.max_steps))
            if epoch > scheduled:
                within += plan.children[child].max_steps  # the schedule counts on into the next epoch
            self._loops[child].call_soon(self._sources[child].set_step, within if epoch >= scheduled else 0)

    def num_samples(self, unit: int) -> int:
        place = self._current_plan.decode_unit(unit)
        return self._sources[place.child].num_samples(place.unit)

    def num_bytes(self, unit: int) -> int:
        place = self._current_plan.decode_unit(unit)
        return self._sources[place.child].num_bytes(place.unit)

    def url(self, unit: int) -> str:
        place = self._current_plan.decode_unit(unit)
        return self._sources[place.child].url(place.unit)

    def key(self, unit: int) -> str:
        place = self._current_plan.decode_unit(unit)
        return self._sources[place.child].key(place.unit)

    def fetch_times(self, unit: int) -> tuple[float, float | None] | None:
        place = self._current_plan.decode_unit(unit)
        return self._sources[place.child].fetch_times(place.unit)

    async def acquire(self, unit: int) -> OpenUnit:
        plan = self._current_plan
        place = plan.decode_unit(unit)
        source, loop = self._sources[place.child], self._loops[place.child]
        if self._scheduled.get(place.child, -1) < place.epoch:
            self._scheduled[place.child] = place.epoch
            child_plan = plan.child_plan(place.child, place.epoch)
            await loop.reach(source.set_schedule(child_plan, self._world_size, shared=self._shared))
        return await loop.reach(source.acquire(place.unit), lambda _: source.release(place.unit))

    async def row_fetcher(self, unit: int, rows: npt.NDArray[np.int64]) -> RowFetcher | None:
        place = self._current_plan.decode_unit(unit)
        loop = self._loops[place.child]
        fetch = await loop.reach(self._sources[place.child].row_fetcher(place.unit, rows))
        return None if fetch is None else lambda: loop.reach(fetch())

    def release(self, unit: int, *, done_for_epoch: bool = False) -> None:
        place = self._current_plan.decode_unit(unit)
        source = self._sources[place.child]
        # Another loop runs calls in the order of submission, so a unit is never released before it is acquired.
        self._loops[place.child].call_soon(lambda: source.release(place.unit, done_for_epoch=done_for_epoch))

    async def replace(self, unit: int, damaged: OpenUnit) -> OpenUnit:
        place = self._current_plan.decode_unit(unit)
        return await self._loops[place.child].reach(self._sources[place.child].replace(place.unit, damaged))

    async def end(self) -> None:
        for loop, source in zip(self._loops, self._sources, strict=True):
            with suppress(StoreClosed):  # a closed dataset has released everything
                await loop.reach(source.end())

    def resolve(self, index: BatchIndex) -> BatchIndex:
        assert index.source is not None
        row, sample = index.row.copy(), index.sample.copy()
        units = self._current_plan.child_units(index.shard)
        for child in np.unique(index.source).tolist():
            own = np.flatnonzero(index.source == child)
            part = BatchIndex(index.step, units[own], row[own], sample[own])
            resolved = self._sources[child].resolve(part)
            row[own], sample[own] = resolved.row, resolved.sample
        return replace(index, row=row, sample=sample)

    @property
    def _current_plan(self) -> MixturePlan:
        assert self._plan is not None, "set_schedule must be called first"
        return self._plan
