"""Brings the units of several data sets to one iteration, each on its own event loop: above all other sources."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from concurrent_loader.mixture_plan import MixturePlan
from concurrent_loader.plan import BatchIndex
from concurrent_loader.source import LoadableDataset, OpenUnit
from storage.errors import StoreClosed

__all__ = ["MixtureSource"]


class MixtureSource:
    """The units of a mixture, for one iteration; see `concurrent_loader.source.Source`.

    It is used on one loop and has the other data sets' sources used on theirs.

    Args:
        children: The data sets.
    """

    def __init__(self, children: Sequence[LoadableDataset]) -> None:
        self._loops = [child.loop for child in children]
        self._sources = [child.source for child in children]
        self._plan: MixturePlan | None = None
        self._world_size = 1
        self._shared = False
        self._followed: dict[int, int] = {}  # data set → the epoch whose order its cache knows

    @property
    def num_at_once(self) -> None:
        return None  # the units of one data set would wait for another's places in flight

    async def follow(self, plan: Any, world_size: int, *, shared: bool = False) -> None:
        self._plan, self._world_size, self._shared = plan, world_size, shared

    def at(self, step: int) -> None:
        plan = self._its_plan
        for child, followed in list(self._followed.items()):
            epoch, within = plan.position(child, min(step, plan.max_steps))
            if epoch > followed:
                within += plan.children[child].max_steps  # as the schedule counts on into the next epoch
            self._loops[child].call_soon(self._sources[child].at, within if epoch >= followed else 0)

    def num_samples(self, unit: int) -> int:
        place = self._its_plan.place(unit)
        return self._sources[place.child].num_samples(place.unit)

    def num_bytes(self, unit: int) -> int:
        place = self._its_plan.place(unit)
        return self._sources[place.child].num_bytes(place.unit)

    def url(self, unit: int) -> str:
        place = self._its_plan.place(unit)
        return self._sources[place.child].url(place.unit)

    def key(self, unit: int) -> str:
        place = self._its_plan.place(unit)
        return self._sources[place.child].key(place.unit)

    def fetched(self, unit: int) -> tuple[float, float | None] | None:
        place = self._its_plan.place(unit)
        return self._sources[place.child].fetched(place.unit)

    async def acquire(self, unit: int) -> OpenUnit:
        plan = self._its_plan
        place = plan.place(unit)
        source, loop = self._sources[place.child], self._loops[place.child]
        if self._followed.get(place.child, -1) < place.epoch:
            self._followed[place.child] = place.epoch
            its_plan = plan.child_plan(place.child, place.epoch)
            await loop.reach(source.follow(its_plan, self._world_size, shared=self._shared))
        return await loop.reach(source.acquire(place.unit), lambda _: source.release(place.unit))

    def release(self, unit: int, *, spent: bool = False) -> None:
        place = self._its_plan.place(unit)
        source = self._sources[place.child]
        # What another loop is told arrives in the order of telling, so it is not released before it is acquired.
        self._loops[place.child].call_soon(lambda: source.release(place.unit, spent=spent))

    async def replace(self, unit: int, decayed: OpenUnit) -> OpenUnit:
        place = self._its_plan.place(unit)
        return await self._loops[place.child].reach(self._sources[place.child].replace(place.unit, decayed))

    async def end(self) -> None:
        for loop, source in zip(self._loops, self._sources, strict=True):
            with suppress(StoreClosed):  # then it has let go of everything
                await loop.reach(source.end())

    def resolve(self, index: BatchIndex) -> BatchIndex:
        assert index.source is not None
        row, sample = index.row.copy(), index.sample.copy()
        units = self._its_plan.units_within(index.shard)
        for child in np.unique(index.source).tolist():
            own = np.flatnonzero(index.source == child)
            part = BatchIndex(index.step, units[own], row[own], sample[own])
            resolved = self._sources[child].resolve(part)
            row[own], sample[own] = resolved.row, resolved.sample
        return replace(index, row=row, sample=sample)

    @property
    def _its_plan(self) -> MixturePlan:
        assert self._plan is not None, "a source follows a plan before anything else"
        return self._plan
