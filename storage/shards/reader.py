"""From a sample's number to its verified bytes: reads one snapshot of a data set, sparsely or a column at a time.

The loader's dense reading of whole shards goes through `storage.cache` directly; this is the random access beside it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from storage.cache.shard_cache import ShardCache
from storage.cache.single_flight import SingleFlight
from storage.errors import CorruptData, SchemaError, StorageError
from storage.fetch.engine import FetchEngine
from storage.map_concurrently import map_concurrently
from storage.shards.columns import ColumnKind, Schema
from storage.shards.index import ShardIndex
from storage.shards.manifest import BundleEntry, Manifest, ShardEntry

__all__ = ["DatasetReader"]

_MAX_INDEXES = 256  # parsed shard indexes kept for random access


class DatasetReader:
    """Random access to one snapshot.

    Args:
        manifest: The snapshot.
        engine: Fetches from the data set's store.
        cache: Where shards, or parts of them, are, if they are local.

    Attributes:
        first_samples: (num_shards + 1,) int64, where each shard's samples begin, and where the last one's end.
        entry: Returns a shard's entry, given its place in the manifest. A few hundred entries are kept: making one
            costs a Python number per chunk of the shard, which every sample would pay again.

    Usable from one event loop, by any number of tasks.
    """

    def __init__(self, manifest: Manifest, engine: FetchEngine, cache: ShardCache) -> None:
        self.manifest = manifest
        self.schema = Schema.parse(manifest.schema)
        self.engine = engine
        self.cache = cache
        self.first_samples: npt.NDArray[np.int64] = np.concatenate(
            [np.zeros(1, np.int64), np.cumsum(manifest.table.num_samples)]
        )
        self.entry: Callable[[int], ShardEntry] = lru_cache(_MAX_INDEXES)(manifest.shards.__getitem__)
        self._indexes: OrderedDict[int, ShardIndex] = OrderedDict()
        self._flight: SingleFlight[int, ShardIndex] = SingleFlight()

    def __len__(self) -> int:
        return int(self.first_samples[-1])

    def locate(self, sample: int) -> tuple[int, int]:
        """Returns the (shard, row) of a sample.

        Raises:
            IndexError: No such sample; negative numbers are not counted from the end here.
        """
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of a data set of {len(self)}")
        shard = int(np.searchsorted(self.first_samples, sample, side="right")) - 1
        return shard, sample - int(self.first_samples[shard])

    async def read(self, sample: int, columns: Sequence[str] | None = None) -> dict[str, object]:
        """Reads one sample: at most one range of its shard's tail and one range of its payload, both kept locally.

        Args:
            sample: 0 … len - 1, in the order of writing.
            columns: Which; all by default.

        Returns:
            Column name → value, as `Column.decode` gives it.

        Raises:
            SchemaError: No such column.
            StorageError: It could not be fetched or is damaged; names shard, sample and column.
        """
        names = self.check_columns(columns)
        shard, row = self.locate(sample)
        entry = self.entry(shard)
        try:
            index = await self.index(shard)
            values = await self._payload_values(entry, index, row, names)
            for name in names:
                if name not in values:
                    values[name] = index.value(name, row)
        except StorageError as error:
            error.locate(url=self.engine.store.url, shard=entry.key, sample=sample)
            raise
        return {name: values[name] for name in names}

    async def read_many(self, samples: Sequence[int], columns: Sequence[str] | None = None) -> list[dict[str, object]]:
        """Reads several samples at once; the engine bounds how many requests are in flight."""
        return await map_concurrently(lambda sample: self.read(sample, columns), samples)

    async def column(
        self, name: str, samples: npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[np.generic] | list[object]:
        """Reads one column of all samples, or of some.

        FIXED columns come from the snapshot's bundles (all labels of 1.2 M samples are two or three GETs), SMALL ones
        from each shard's tail; tails of shards without any of the samples are not fetched.

        Args:
            name: A FIXED or SMALL column.
            samples: (n,) int64, sample numbers in ascending order; all samples by default.

        Returns:
            FIXED: an array (n, *shape) of the column's dtype. SMALL: a list of n values.

        Raises:
            SchemaError: No such column, or one of payload (read those by sample).
        """
        (name,) = self.check_columns([name])
        column = self.schema[name]
        if column.kind is ColumnKind.PAYLOAD:
            raise SchemaError("a payload column is not read as a whole; read samples, or use a loader", column=name)
        firsts = self.first_samples
        index_of: Callable[[int], Awaitable[ShardIndex]] = self.index
        # Bundles neither overlap nor go beyond the last sample: as many samples as the data set has are all of them.
        bundles = self.manifest.bundles
        if column.kind is ColumnKind.FIXED and sum(bundle.num_samples for bundle in bundles) == len(self):
            firsts = np.array([*(bundle.first_sample for bundle in bundles), len(self)], np.int64)
            index_of = self._bundle
        bounds = firsts if samples is None else np.searchsorted(samples, firsts)

        async def part_of(place: int) -> npt.NDArray[np.generic] | list[object]:
            index = await index_of(place)
            if samples is None:
                return index.column(name)
            return index.values(name, samples[bounds[place] : bounds[place + 1]] - firsts[place])

        parts = await map_concurrently(part_of, np.flatnonzero(np.diff(bounds)).tolist())
        if column.kind is ColumnKind.FIXED:
            arrays = [np.asarray(part) for part in parts]
            return np.concatenate(arrays) if arrays else np.empty((0, *(column.shape or ())), column.dtype)
        return [value for part in parts for value in part]

    async def index(self, shard: int) -> ShardIndex:
        """Returns a shard's parsed index; a few hundred are kept."""
        index = self._indexes.get(shard)
        if index is None:
            index = await self._flight.run(shard, lambda: self._fetch_index(self.entry(shard)))
            self._indexes[shard] = index
            if len(self._indexes) > _MAX_INDEXES:
                self._indexes.popitem(last=False)
        else:
            self._indexes.move_to_end(shard)
        return index

    def check_columns(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        """Returns the columns asked for, in the order asked for.

        Raises:
            SchemaError: One of them does not exist.
        """
        if columns is None:
            return self.schema.names
        for name in columns:
            if name not in self.schema.names:
                raise SchemaError("no such column", column=name, expected=list(self.schema.names))
        return tuple(columns)

    async def _fetch_index(self, entry: ShardEntry | BundleEntry) -> ShardIndex:
        def parse(tail: memoryview) -> ShardIndex:
            index = ShardIndex.parse(tail, tail_start=entry.tail_start, size=entry.size, shard=entry.key)
            if index.num_samples != entry.num_samples:
                raise CorruptData(
                    "the shard does not hold as many samples as its manifest says",
                    shard=entry.key, expected=entry.num_samples, got=index.num_samples,
                )  # fmt: skip
            return index

        return await self.cache.read(entry, entry.tail_start, entry.size, parse)

    async def _bundle(self, number: int) -> ShardIndex:
        return await self._fetch_index(self.manifest.bundles[number])

    async def _payload_values(
        self, entry: ShardEntry, index: ShardIndex, row: int, names: Sequence[str]
    ) -> dict[str, object]:
        payload = [name for name in names if self.schema[name].kind is ColumnKind.PAYLOAD]
        if not payload:
            return {}
        # Values of one sample lie side by side: one range brings them all.
        spans = [index.payload_range(row, name) for name in payload]
        start, end = min(span.start for span in spans), max(span.end for span in spans)

        def decoded(data: memoryview) -> dict[str, object]:
            return {
                name: index.decode_value(name, row, data[span.start - start : span.end - start])
                for name, span in zip(payload, spans, strict=True)
            }

        return await self.cache.read(entry, start, end, decoded)
