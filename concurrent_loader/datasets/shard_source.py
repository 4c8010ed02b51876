"""Fetches shards for the loader: whole shards, or single samples of a shard if only few are selected."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from concurrent_loader.datasets.clip_columns import ClipColumn, clip_column
from concurrent_loader.datasets.protocol import FetchTimes, GroupChooser, OpenUnit, RowFetcher
from concurrent_loader.datasets.selection import Selection
from concurrent_loader.order.epoch_plan import EpochPlan
from concurrent_loader.order.listed_plan import ListedPlan
from concurrent_loader.order.protocol import BatchIndex
from concurrent_loader.storage.cache import OpenShard, UseSchedule
from concurrent_loader.storage.errors import StorageError
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.media import EncodedClip
from concurrent_loader.storage.shards.format.index import ShardIndex
from concurrent_loader.storage.shards.format.schema import ColumnKind
from concurrent_loader.storage.shards.manifest.manifest import ShardEntry
from concurrent_loader.storage.shards.reader import DatasetReader
from concurrent_loader.storage.shards.shard_fetcher import ShardFetcher
from concurrent_loader.storage.stores.objects import Buffer

__all__ = ["ShardSource", "SparseShard", "is_sparse"]

Indices = npt.NDArray[np.int64]

_NO_ROWS = np.empty(0, np.int64)


class ShardSource:
    """The shards of one snapshot, for one iteration; see `concurrent_loader.datasets.protocol.Source`.

    Args:
        reader: Reader of the snapshot.
        selection: Selected samples; None for all samples.
        columns: Columns that will be read.
    """

    def __init__(self, reader: DatasetReader, selection: Selection | None, columns: Sequence[str]) -> None:
        self._reader = reader
        self._cache = reader.cache
        self._selection = selection
        self._fetch_times = FetchTimes()
        self._bounds = reader.first_samples if selection is None else selection.bounds(reader.first_samples)
        self._payload = [name for name in columns if reader.schema[name].kind is ColumnKind.PAYLOAD]
        self._clips: dict[str, ClipColumn] = {}

    @property
    def max_concurrent(self) -> None:
        return None  # the byte budget holds few shards

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

    def fetch_times(self, unit: int) -> tuple[float, float | None] | None:
        return self._fetch_times.get(unit) or self._cache.fetched(self._reader.entry(unit))

    def choose_groups(self, choosers: Sequence[Mapping[str, GroupChooser]]) -> None:
        columns = {name: clip_column(self._reader, name, choose) for name, choose in choosers[0].items()}
        self.fetch_clips({name: column for name, column in columns.items() if column is not None})

    def fetch_clips(self, columns: Mapping[str, ClipColumn]) -> None:
        """Makes `acquire` fetch the clips of some columns in place of whole videos."""
        self._clips |= columns

    async def set_schedule(self, plan: EpochPlan | ListedPlan, world_size: int, *, shared: bool = False) -> None:
        await self._cache.set_schedule(lambda: self.schedule(plan, world_size, shared=shared))

    def set_step(self, step: int) -> None:
        self._cache.set_step(step)

    async def acquire(self, unit: int) -> OpenUnit:
        if self._is_sparse(unit):
            with self._fetch_times.of(unit):
                return await SparseShard.read(
                    self._reader, unit, self._rows(unit) if self._payload else _NO_ROWS, self._payload, self._clips
                )
        return await self._cache.acquire(self._reader.entry(unit))

    async def row_fetcher(self, unit: int, rows: Indices) -> RowFetcher | None:
        entry = self._reader.entry(unit)
        # Rows of virtual shards are not ranges of the adopted object if it is transformed.
        is_worth_it = self._payload and not self._is_sparse(unit) and entry.source is None
        if not is_worth_it or not is_sparse(entry, len(rows)) or await self._cache.is_local(entry):
            return None

        async def fetch() -> OpenUnit | None:
            index = await self._reader.index(unit)
            return await SparseShard.fetch(self._cache.fetcher, index, entry, rows, self._payload)

        return fetch

    def release(self, unit: int, *, done_for_epoch: bool = False) -> None:
        self._fetch_times.pop(unit, None)
        if not self._is_sparse(unit):
            self._cache.release(self._reader.entry(unit), done_for_epoch=done_for_epoch)

    async def replace(self, unit: int, damaged: OpenUnit) -> OpenUnit:
        return await self._cache.replace(self._reader.entry(unit), cast("OpenShard", damaged))

    async def end(self) -> None:
        """Does nothing: shards are closed at once."""

    def resolve(self, index: BatchIndex) -> BatchIndex:
        if self._selection is None and self._reader.live.all_live:
            return index
        sample = index.sample if self._selection is None else self._selection.numbers[index.sample]
        return replace(index, row=self._reader.live.rows(index.shard, sample), sample=sample)

    def _rows(self, unit: int) -> Indices:
        bounds = slice(self._bounds[unit], self._bounds[unit + 1])
        if self._selection is None:
            numbers = np.arange(bounds.start, bounds.stop)
        else:
            numbers = np.unique(self._selection.numbers[bounds])  # which may repeat samples
        return self._reader.live.rows(unit, numbers)

    def _is_sparse(self, unit: int) -> bool:
        entry = self._reader.entry(unit)
        if not self._payload:  # the shard's tail has all other columns
            return 2 * (entry.size - entry.tail_start) <= entry.size
        return bool(self._clips) or is_sparse(entry, self.num_samples(unit))

    def schedule(self, plan: EpochPlan | ListedPlan, world_size: int, *, shared: bool) -> UseSchedule:
        """Returns when shards are used, in this epoch and in the next one with the same settings."""
        now, then = (each.unit_usage(world_size) for each in (plan, replace(plan, epoch=(plan.epoch + 1) % 2**64)))
        # Shards without selected samples are left out of the schedule, because another view may be reading them.
        used = np.flatnonzero(np.diff(self._bounds))
        digests = self._reader.manifest.table.digests
        return UseSchedule(
            names=[digests[unit] for unit in used.tolist()],
            first_step=now.first_step[used],
            last_step=now.last_step[used],
            next_step=then.first_step[used] + plan.max_steps,
            shared=now.shared[used] | shared,  # whether other processes use the cached shard, too
        )


# Cost of a request in addition to its bytes, in bytes. At 90 MB/s per connection this is about 3 of the 30 ms to the
# first byte, because many requests wait at the same time.
_REQUEST_BYTES = 256 * 1024


def is_sparse(entry: ShardEntry, num_rows: int) -> bool:
    """Returns whether to fetch samples one by one: whether that costs less than half of fetching the whole shard."""
    if num_rows == 0 or num_rows == entry.num_samples:
        return False
    bytes_each = entry.payload_bytes / entry.num_samples + _REQUEST_BYTES
    return 2 * num_rows * bytes_each <= entry.payload_bytes


class SparseShard:
    """A few verified samples of a shard in memory, with the interface of a whole shard.

    Args:
        index: Index of the shard.
        key: Key of the shard.
        payload: Bytes, or clip, of each (column, row).
    """

    cached = False  # a damaged local copy has been fetched again before

    def __init__(self, index: ShardIndex, key: str, payload: dict[tuple[str, int], Buffer | EncodedClip]) -> None:
        self.key = key
        self._index = index
        self._payload = payload

    @classmethod
    async def read(
        cls,
        reader: DatasetReader,
        shard: int,
        rows: Indices,
        wanted: Sequence[str],
        clips: Mapping[str, ClipColumn] | None = None,
    ) -> Self:
        """Fetches the index and samples of a shard, or reads cached ones from the local drive.

        Args:
            reader: Reader of the snapshot.
            shard: Position of the shard in the manifest.
            rows: (n,) int64, rows of the samples in the shard.
            wanted: Payload columns. If empty, only the index is fetched.
            clips: Columns of which only clips are fetched; none by default.

        Raises:
            StorageError: A request failed, or bytes are damaged; the error names shard and sample.
        """
        entry = reader.entry(shard)
        index = await reader.index(shard)
        payload: dict[tuple[str, int], Buffer | EncodedClip] = {}
        clips = clips or {}
        whole = [name for name in wanted if name not in clips]

        async def fetch(row: int) -> None:
            spans = [index.payload_range(row, name) for name in whole]
            start, end = min(span.start for span in spans), max(span.end for span in spans)

            def check(data: memoryview) -> None:
                for name, span in zip(whole, spans, strict=True):
                    value = data[span.start - start : span.end - start]
                    index.check_value(name, row, value)
                    payload[name, row] = bytes(value)

            try:
                await reader.cache.read(entry, start, end, check)
            except StorageError as error:
                error.locate(shard=entry.key, sample=reader.live.sample(shard, row))
                raise

        async def fetch_clips(name: str) -> None:
            payload.update(
                {(name, row): clip for row, clip in (await clips[name].fetch(reader, shard, rows, name)).items()}
            )

        if wanted:
            try:
                async with asyncio.TaskGroup() as group:
                    for row in rows.tolist() if whole else ():
                        group.create_task(fetch(row))
                    for name in clips:
                        group.create_task(fetch_clips(name))
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from errors.exceptions[0].__cause__
        return cls(index, entry.key, payload)

    @classmethod
    async def fetch(
        cls, fetcher: ShardFetcher, index: ShardIndex, entry: ShardEntry, rows: Indices, wanted: Sequence[str]
    ) -> Self | None:
        """Fetches some samples of a shard, neighbours with one request, and stores none of them.

        Args:
            fetcher: Fetcher of the shard's bytes.
            index: Index of the shard.
            entry: Entry of the shard.
            rows: (n,) int64, rows of the samples, at least one.
            wanted: Payload columns, at least one.

        Returns:
            None if the shard has no digests of its values.

        Raises:
            StorageError: A request failed, or bytes are damaged.
        """
        if not index.has_digests:
            return None
        starts = np.min([index.payload_starts(name)[rows] for name in wanted], axis=0)
        ends = np.max([index.payload_ends(name)[rows] for name in wanted], axis=0)
        order = np.argsort(starts, kind="stable")
        reach = np.maximum.accumulate(ends[order])
        cuts = np.flatnonzero(starts[order][1:] > reach[:-1] + _REQUEST_BYTES) + 1
        payload: dict[tuple[str, int], Buffer | EncodedClip] = {}

        async def fetch(places: Indices) -> None:
            start, end = int(starts[places[0]]), int(ends[places].max())
            data = await fetcher.fetch(entry, start, end) if start < end else memoryview(b"")
            for row in rows[places].tolist():
                for name in wanted:
                    span = index.payload_range(row, name)
                    payload[name, row] = value = data[span.start - start : span.end - start]
                    index.check_value(name, row, value)

        await map_concurrently(fetch, np.split(order, cuts))
        return cls(index, entry.key, payload)

    def encoding(self, column: str) -> str:
        """Returns the encoding of a column's stored values; empty for this project's own."""
        return self._index.schema[column].encoding

    def payload(self, column: str, rows: Indices) -> list[Any]:
        """Returns the stored bytes of a column for some rows, or the clips; None for nulls. Text is UTF-8."""
        if self._index.schema[column].kind is ColumnKind.SMALL:
            return list(self._index.encoded(column, rows))
        valid = self._index.valid(column)
        return [self._payload[column, row] if valid is None or valid[row] else None for row in rows.tolist()]

    def values(self, column: str, rows: Indices) -> npt.NDArray[Any] | list[Any]:
        """Returns the values of a column for some rows; see `concurrent_loader.storage.cache.OpenShard.values`."""
        spec = self._index.schema[column]
        if spec.kind is ColumnKind.PAYLOAD:
            return [None if data is None else spec.decode(data) for data in self.payload(column, rows)]
        return self._index.values(column, rows)
