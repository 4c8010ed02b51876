"""Fetches shards whose columns are stored in several files, because some were added later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from concurrent_loader.datasets.clip_columns import clip_column
from concurrent_loader.datasets.protocol import GroupChooser, OpenUnit
from concurrent_loader.datasets.selection import Selection
from concurrent_loader.datasets.shard_source import ShardSource
from concurrent_loader.order.epoch_plan import EpochPlan
from concurrent_loader.order.protocol import BatchIndex
from concurrent_loader.storage.cache import JoinedShard, JoinedShards, UseSchedule, needed_parts
from concurrent_loader.storage.shards.joined_reader import JoinedReader

__all__ = ["JoinedSource"]


class JoinedSource:
    """The shards of one snapshot with their added columns; see `concurrent_loader.datasets.protocol.Source`.

    Files without a column that will be read are not fetched.

    Args:
        reader: Reader of the snapshot.
        selection: Selected samples; None for all samples.
        columns: Columns that will be read.
    """

    def __init__(self, reader: JoinedReader, selection: Selection | None, columns: Sequence[str]) -> None:
        manifest = reader.manifest
        places = {name: manifest.place_of(name) for name in columns}
        parts = {
            number: ShardSource(
                reader.parts[number], selection, [place.name for place in places.values() if place.part == number]
            )
            for number in needed_parts(manifest, columns)
        }
        self._sources = list(parts.values())
        self._first = self._sources[0]
        self._cache = reader.cache
        self._reader = reader
        self._parts, self._places = parts, places
        self._shards = JoinedShards(parts, places)

    @property
    def max_concurrent(self) -> None:
        return None

    def num_samples(self, unit: int) -> int:
        return self._first.num_samples(unit)

    def num_bytes(self, unit: int) -> int:
        return sum(source.num_bytes(unit) for source in self._sources)

    def url(self, unit: int) -> str:
        return self._first.url(unit)

    def key(self, unit: int) -> str:
        return self._first.key(unit)

    def fetch_times(self, unit: int) -> tuple[float, float | None] | None:
        times = [each for source in self._sources if (each := source.fetch_times(unit)) is not None]
        if not times:
            return None
        ends = [end for _, end in times if end is not None]
        return min(start for start, _ in times), max(ends) if len(ends) == len(times) else None

    def choose_groups(self, choosers: Sequence[Mapping[str, GroupChooser]]) -> None:
        for name, choose in choosers[0].items():
            column = clip_column(self._reader, name, choose)
            if column is not None:
                place = self._places[name]
                self._parts[place.part].fetch_clips({place.name: column})

    async def set_schedule(self, plan: EpochPlan, world_size: int, *, shared: bool = False) -> None:
        await self._cache.set_schedule(
            lambda: _joined([source.schedule(plan, world_size, shared=shared) for source in self._sources])
        )

    def set_step(self, step: int) -> None:
        self._cache.set_step(step)

    async def acquire(self, unit: int) -> OpenUnit:
        return await self._shards.acquire(unit)

    async def row_fetcher(self, unit: int, rows: npt.NDArray[np.int64]) -> None:
        """Returns None: the samples of a batch would take a request per file and sample."""

    def release(self, unit: int, *, done_for_epoch: bool = False) -> None:
        self._shards.release(unit, done_for_epoch=done_for_epoch)

    async def replace(self, unit: int, damaged: OpenUnit) -> OpenUnit:
        assert isinstance(damaged, JoinedShard)
        return await self._shards.replace(unit, damaged)

    async def end(self) -> None:
        """Does nothing: shards are closed at once."""

    def resolve(self, index: BatchIndex) -> BatchIndex:
        return self._first.resolve(index)


def _joined(schedules: Sequence[UseSchedule]) -> UseSchedule:
    return UseSchedule(
        names=[name for each in schedules for name in each.names],
        first_step=np.concatenate([each.first_step for each in schedules]),
        last_step=np.concatenate([each.last_step for each in schedules]),
        next_step=np.concatenate([each.next_step for each in schedules]),
        shared=np.concatenate([each.shared for each in schedules]),
    )
