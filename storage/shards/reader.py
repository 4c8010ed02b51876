"""From a sample's number to its verified bytes: reads one snapshot of a data set, sparsely or a column at a time.

The loader's dense reading of whole shards goes through `storage.cache` directly; this is the random access beside it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from storage.cache.shard_cache import ShardCache
from storage.cache.single_flight import SingleFlight
from storage.errors import CorruptData, SchemaError, StorageError
from storage.fetch.engine import FetchEngine
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

    Usable from one event loop, by any number of tasks.
    """

    def __init__(self, manifest: Manifest, engine: FetchEngine, cache: ShardCache) -> None:
        self.manifest = manifest
        self.schema = Schema.parse(manifest.schema)
        self.engine = engine
        self.cache = cache
        self.first_samples: npt.NDArray[np.int64] = np.concatenate(
            [np.zeros(1, np.int64), np.cumsum([shard.num_samples for shard in manifest.shards], dtype=np.int64)]
        )
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
        entry = self.manifest.shards[shard]
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
        tasks: list[asyncio.Task[dict[str, object]]] = []
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.read(sample, columns)) for sample in samples]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors.exceptions[0].__cause__
        return [task.result() for task in tasks]

    async def column(self, name: str) -> npt.NDArray[np.generic] | list[object]:
        """Reads one column of all samples.

        FIXED columns come from the snapshot's bundles (all labels of 1.2 M samples are two or three GETs), SMALL ones
        from each shard's tail.

        Returns:
            FIXED: an array (len, *shape) of the column's dtype. SMALL: a list.

        Raises:
            SchemaError: No such column, or one of payload (read those by sample).
        """
        (name,) = self.check_columns([name])
        column = self.schema[name]
        if column.kind is ColumnKind.PAYLOAD:
            raise SchemaError("a payload column is not read as a whole; read samples, or use a loader", column=name)
        if column.kind is ColumnKind.FIXED:
            bundles = [await self._bundle(bundle, name) for bundle in self.manifest.bundles]
            if sum(len(part) for part in bundles) == len(self):
                return np.concatenate(bundles) if bundles else np.empty((0, *(column.shape or ())), column.dtype)
        indexes: list[asyncio.Task[ShardIndex]] = []
        try:
            async with asyncio.TaskGroup() as group:
                indexes = [group.create_task(self.index(shard)) for shard in range(len(self.manifest.shards))]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors.exceptions[0].__cause__
        parts = [task.result().column(name) for task in indexes]
        if column.kind is ColumnKind.FIXED:
            arrays = [np.asarray(part) for part in parts]
            return np.concatenate(arrays) if arrays else np.empty((0, *(column.shape or ())), column.dtype)
        return [value for part in parts for value in part]

    async def index(self, shard: int) -> ShardIndex:
        """Returns a shard's parsed index; a few hundred are kept."""
        index = self._indexes.get(shard)
        if index is None:
            index = await self._flight.run(shard, lambda: self._fetch_index(self.manifest.shards[shard]))
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

    async def _bundle(self, bundle: BundleEntry, name: str) -> npt.NDArray[np.generic]:
        index = await self._fetch_index(bundle)
        return np.asarray(index.column(name))

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
