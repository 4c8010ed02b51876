"""Brings shards to the loader, whole or, where few of their samples are selected, only those: above the shard cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import numpy.typing as npt

from concurrent_loader.plan import BatchIndex, EpochPlan
from concurrent_loader.selection import Selection
from concurrent_loader.source import OpenUnit, Visits
from concurrent_loader.sparse_shard import SparseShard, is_sparse
from storage.cache import OpenShard, UseSchedule
from storage.shards.columns import ColumnKind
from storage.shards.reader import DatasetReader

__all__ = ["ShardSource"]

Indices = npt.NDArray[np.int64]

_NO_ROWS = np.empty(0, np.int64)


class ShardSource:
    """The shards of one snapshot, for one iteration; see `concurrent_loader.source.Source`.

    Args:
        reader: The snapshot.
        selection: Which samples; None for all.
        columns: Which columns will be read.
    """

    def __init__(self, reader: DatasetReader, selection: Selection | None, columns: Sequence[str]) -> None:
        self._reader = reader
        self._cache = reader.cache
        self._selection = selection
        self._visits = Visits()
        self._bounds = reader.first_samples if selection is None else selection.bounds(reader.first_samples)
        self._payload = [name for name in columns if reader.schema[name].kind is ColumnKind.PAYLOAD]

    @property
    def num_at_once(self) -> None:
        return None  # the bytes fetched ahead are few shards

    def num_samples(self, unit: int) -> int:
        return int(self._bounds[unit + 1] - self._bounds[unit])

    def num_bytes(self, unit: int) -> int:
        entry = self._reader.entry(unit)
        if not self._is_sparse(unit):
            return entry.size
        tail_bytes = entry.size - entry.tail_start
        return tail_bytes + (entry.payload_bytes * self.num_samples(unit) // entry.num_samples if self._payload else 0)

    def url(self, unit: int) -> str:
        return self._reader.engine.store.url

    def key(self, unit: int) -> str:
        return self._reader.entry(unit).key

    def fetched(self, unit: int) -> tuple[float, float | None] | None:
        return self._visits.get(unit) or self._cache.fetched(self._reader.entry(unit))

    async def follow(self, plan: EpochPlan, world_size: int, *, shared: bool = False) -> None:
        await self._cache.follow(lambda: self._schedule(plan, world_size, shared=shared))

    def at(self, step: int) -> None:
        self._cache.at(step)

    async def acquire(self, unit: int) -> OpenUnit:
        if self._is_sparse(unit):
            with self._visits.of(unit):
                return await SparseShard.read(
                    self._reader, unit, self._rows(unit) if self._payload else _NO_ROWS, self._payload
                )
        return await self._cache.acquire(self._reader.entry(unit))

    def release(self, unit: int, *, spent: bool = False) -> None:
        self._visits.pop(unit, None)
        if not self._is_sparse(unit):
            self._cache.release(self._reader.entry(unit), spent=spent)

    async def replace(self, unit: int, decayed: OpenUnit) -> OpenUnit:
        return await self._cache.replace(self._reader.entry(unit), cast("OpenShard", decayed))

    async def end(self) -> None:
        """Has nothing to wait for."""

    def resolve(self, index: BatchIndex) -> BatchIndex:
        if self._selection is None:
            return index
        sample = self._selection.numbers[index.sample]
        return replace(index, row=sample - self._reader.first_samples[index.shard], sample=sample)

    def _rows(self, unit: int) -> Indices:
        if self._selection is None:
            return np.arange(self._reader.entry(unit).num_samples)
        numbers = self._selection.numbers[self._bounds[unit] : self._bounds[unit + 1]]
        rows: Indices = numbers - self._reader.first_samples[unit]
        return rows

    def _is_sparse(self, unit: int) -> bool:
        entry = self._reader.entry(unit)
        if not self._payload:  # then its tail has everything
            return 2 * (entry.size - entry.tail_start) <= entry.size
        return self._selection is not None and is_sparse(entry, self.num_samples(unit))

    def _schedule(self, plan: EpochPlan, world_size: int, *, shared: bool) -> UseSchedule:
        """Tells the cache when shards are used, in this epoch and in the next one with the same settings."""
        now, then = (each.uses(world_size) for each in (plan, replace(plan, epoch=(plan.epoch + 1) % 2**64)))
        # Of shards that a view has nothing of, it knows nothing: another one may be reading them.
        used = np.flatnonzero(np.diff(self._bounds))
        digests = self._reader.manifest.table.digests
        return UseSchedule(
            names=[digests[unit] for unit in used.tolist()],
            first_step=now.first_step[used],
            last_step=now.last_step[used],
            next_step=then.first_step[used] + plan.max_steps,
            shared=now.shared[used] | shared,  # others, too, find it in the cache
        )
