"""Random access to one snapshot of a dataset: reads single samples, or one column of all samples.

The loader reads whole shards through `concurrent_loader.storage.cache` directly.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import cast

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.cache.shard_cache import ShardCache
from concurrent_loader.storage.cache.single_flight import SingleFlight
from concurrent_loader.storage.errors import CorruptData, SchemaError, StorageError
from concurrent_loader.storage.fetch.engine import FetchEngine
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.shards.format.foreign_codecs import BARE_ARRAY
from concurrent_loader.storage.shards.format.index import ShardIndex
from concurrent_loader.storage.shards.format.nulls import joined
from concurrent_loader.storage.shards.format.schema import Column, ColumnKind, Schema
from concurrent_loader.storage.shards.manifest.live_rows import LiveRows
from concurrent_loader.storage.shards.manifest.manifest import BundleEntry, Manifest, ShardEntry

__all__ = ["DatasetReader"]

_ROW_HEADER_BYTES = 16  # of an array of any shape with one dimension; see `RaggedArrayCodec`
_MAX_INDEXES = 256  # parsed shard indexes kept for random access


class DatasetReader:
    """Random access to one snapshot.

    Args:
        manifest: Snapshot to read.
        engine: Engine over the dataset's store.
        cache: Cache of shards and of parts of shards.

    Attributes:
        first_samples: (num_shards + 1,) int64: number of each shard's first sample, then the number of samples. Deleted
            rows do not count, so a shard may have none.
        live: Places of the samples.
        entry: Function that returns a shard's entry, given its place in the manifest. A few hundred entries are kept,
            because creating one takes a Python integer per chunk.

    Usable from one event loop, by any number of tasks.
    """

    def __init__(self, manifest: Manifest, engine: FetchEngine, cache: ShardCache) -> None:
        self.manifest = manifest
        self.schema = Schema.parse(manifest.schema)
        self.engine = engine
        self.cache = cache
        cache.fetcher.snapshot = manifest.snapshot
        if str(adopted := manifest.metadata.get("adopted", "")).isidentifier():
            cache.fetcher.adopted = str(adopted)
        self.live = LiveRows(manifest)
        self.first_samples = self.live.first_samples
        self.entry: Callable[[int], ShardEntry] = lru_cache(_MAX_INDEXES)(manifest.shards.__getitem__)
        self._indexes: OrderedDict[int, ShardIndex] = OrderedDict()
        self._flight: SingleFlight[int, ShardIndex] = SingleFlight()

    def __len__(self) -> int:
        return int(self.first_samples[-1])

    def locate(self, sample: int) -> tuple[int, int]:
        """Returns the (shard, row) of a sample.

        Raises:
            IndexError: The sample does not exist; negative numbers do not count from the end.
        """
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} is out of range for a dataset of {len(self)} samples")
        shard = int(np.searchsorted(self.first_samples, sample, side="right")) - 1
        return shard, int(self.live.rows(shard, sample))

    def place(self, column: str) -> tuple[DatasetReader, str]:
        """Returns the reader of the files that store a column, and the column's name there."""
        return self, column

    async def read(self, sample: int, columns: Sequence[str] | None = None) -> dict[str, object]:
        """Reads one sample, by at most one range of its shard's tail and one of its payload, which are both cached.

        Args:
            sample: Number of the sample, from 0, in the order of writing.
            columns: Names of the columns to read; by default all but the indexes of videos.

        Returns:
            Decoded values by column name.

        Raises:
            SchemaError: A column does not exist.
            StorageError: The sample could not be fetched or is damaged; the error names shard, sample and column.
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
        """Reads several samples concurrently; the engine limits the requests in flight."""
        return await map_concurrently(lambda sample: self.read(sample, columns), samples)

    async def column(
        self, name: str, samples: npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[np.generic] | list[object]:
        """Reads one column of all samples, or of given samples.

        FIXED columns come from the snapshot's bundles: all labels of 1.2 million samples take two or three GETs. SMALL
        columns come from the tails of the shards that hold the samples.

        Args:
            name: Name of a FIXED or SMALL column.
            samples: (n,) int64: sample numbers in ascending order; all samples by default.

        Returns:
            An array (n, *shape) of the column's dtype for a FIXED column, a masked array if the column is optional; a
            list of n values for a SMALL column, with None for nulls.

        Raises:
            SchemaError: The column does not exist, or is a payload column, which is read by sample.
        """
        (name,) = self.check_columns([name])
        column = self.schema[name]
        if column.kind is ColumnKind.PAYLOAD:
            raise SchemaError("a payload column is not read as a whole; read samples, or use a loader", column=name)
        firsts = self.live.first_rows
        if not self.live.all_live:
            samples = self.live.stored(np.arange(len(self)) if samples is None else samples)
        index_of: Callable[[int], Awaitable[ShardIndex]] = self.index
        # Bundles neither overlap nor exceed the last sample, so equal counts mean that they cover every sample.
        bundles = self.manifest.bundles
        if column.kind is ColumnKind.FIXED and sum(bundle.num_samples for bundle in bundles) == firsts[-1]:
            firsts = np.array([*(bundle.first_sample for bundle in bundles), firsts[-1]], np.int64)
            index_of = self._bundle
        bounds = firsts if samples is None else np.searchsorted(samples, firsts)

        async def part_of(place: int) -> npt.NDArray[np.generic] | list[object]:
            index = await index_of(place)
            if samples is None:
                return index.column(name)
            return index.values(name, samples[bounds[place] : bounds[place + 1]] - firsts[place])

        parts = await map_concurrently(part_of, np.flatnonzero(np.diff(bounds)).tolist())
        if column.kind is ColumnKind.FIXED:
            none = np.empty((0, *(column.shape or ())), column.dtype)
            found: npt.NDArray[np.generic] = joined(
                [none, *(np.asanyarray(part) for part in parts)], optional=column.optional
            )
            return found
        return [value for part in parts for value in part]

    async def lengths(
        self, name: str, samples: npt.NDArray[np.int64] | None = None, *, exact: bool = False
    ) -> npt.NDArray[np.int64]:
        """Returns the lengths of a column's values, from the shards' indexes, without reading payload.

        Args:
            name: Name of the column. Integers are lengths themselves. The length of an array of any shape is its number
                of items (exact for one dimension), of a string of characters, and of other payload its bytes. A null
                has length 0.
            samples: (n,) int64: sample numbers in ascending order; all samples by default.
            exact: Whether to refuse adopted arrays whose length is not known from their size, False by default. The
                number of items that their size allows is returned otherwise.

        Returns:
            (n,) int64.

        Raises:
            SchemaError: The column does not exist, or its values have no (exact) lengths.
        """
        (name,) = self.check_columns([name])
        column = self.schema[name]
        if column.kind is not ColumnKind.PAYLOAD:
            values = await self.column(name, samples)
            if column.base_type == "str":
                return np.fromiter((len(each or "") for each in cast("list[str]", values)), np.int64, len(values))
            if column.shape == () and column.dtype is not None and column.dtype.kind in "iu":
                return np.ma.filled(values, 0).astype(np.int64)  # type: ignore[arg-type]
            raise SchemaError("a column of this type has no lengths", column=name, got=column.type)
        bounds = self.first_samples if samples is None else np.searchsorted(samples, self.first_samples)

        async def part_of(shard: int) -> npt.NDArray[np.int64]:
            index = await self.index(shard)
            if samples is None:
                rows = self.live.rows_of_shard(shard)
            else:
                rows = self.live.rows(shard, samples[bounds[shard] : bounds[shard + 1]])
            num_bytes = (index.payload_ends(name) - index.payload_starts(name))[rows].astype(np.int64)
            return _num_items(index.schema[name], num_bytes, exact=exact)

        parts = await map_concurrently(part_of, np.flatnonzero(np.diff(bounds)).tolist())
        return np.concatenate([np.empty(0, np.int64), *parts])

    async def index(self, shard: int) -> ShardIndex:
        """Returns a shard's parsed index; a few hundred are cached."""
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
        """Returns the requested columns in the requested order; for None all but the indexes of videos.

        Raises:
            SchemaError: A column does not exist.
        """
        if columns is None:
            return self.schema.sample_names
        for name in columns:
            if name not in self.schema.names:
                raise SchemaError("no such column", column=name, expected=list(self.schema.names))
        return tuple(columns)

    async def _fetch_index(self, entry: ShardEntry | BundleEntry) -> ShardIndex:
        def parse(tail: memoryview) -> ShardIndex:
            index = ShardIndex.parse(tail, tail_start=entry.tail_start, size=entry.size, shard=entry.key)
            if index.num_samples != entry.num_samples:
                raise CorruptData(
                    "the shard does not have the number of samples that its manifest states",
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
        # The values of one sample are adjacent, so one range covers them.
        spans = [index.payload_range(row, name) for name in payload]
        start, end = min(span.start for span in spans), max(span.end for span in spans)

        def decoded(data: memoryview) -> dict[str, object]:
            return {
                name: index.decode_value(name, row, data[span.start - start : span.end - start])
                for name, span in zip(payload, spans, strict=True)
            }

        return await self.cache.read(entry, start, end, decoded)


def _num_items(column: Column, num_bytes: npt.NDArray[np.int64], *, exact: bool) -> npt.NDArray[np.int64]:
    """Returns the number of items of stored arrays of the given sizes; other values are counted in bytes.

    Args:
        column: The column as this shard stores it.
        num_bytes: (n,) int64, sizes of the stored values.
        exact: Whether to refuse encodings with headers of unknown sizes.
    """
    if column.dtype is None:
        return num_bytes
    if exact and column.encoding not in ("", BARE_ARRAY):
        raise SchemaError(
            "the lengths of arrays in this encoding are not known without reading them: convert the dataset",
            column=column.name, expected=BARE_ARRAY, got=column.encoding,
        )  # fmt: skip
    header_bytes = _ROW_HEADER_BYTES if column.shape is None and column.encoding != BARE_ARRAY else 0
    items: npt.NDArray[np.int64] = np.maximum(num_bytes - header_bytes, 0) // column.dtype.itemsize
    return items
