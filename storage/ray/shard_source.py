"""Reads a dataset as a Ray Data source."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from concurrent_loader.storage.errors import SchemaError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.importers.part_processes import PartTarget
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.ranges import ByteRange, split
from concurrent_loader.storage.ray.ray_library import BlockAccessor, BlockMetadata, Datasource, ReadTask
from concurrent_loader.storage.shards.format.index import ShardIndex
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES
from concurrent_loader.storage.shards.format.schema import ColumnKind
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.shard_table import ShardEntry
from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
from concurrent_loader.storage.shards.shard_fetcher import OpenSource, ShardFetcher, check_source
from concurrent_loader.storage.stores.backends.open_store import open_for

__all__ = ["ShardSource"]


class ShardSource(Datasource):  # type: ignore[misc]
    """A source for `ray.data.read_datasource`: the samples of one snapshot, verified.

    Payload values are bytes as they are stored, such as encoded JPEGs. Columns of numbers and arrays are numbers and
    tensors, and ``json`` values are JSON text. A block has the samples of one shard. The snapshot is chosen when the
    source is made, so later commits do not change it.

    Args:
        url: URL of the dataset, which every machine of the cluster must reach.
        columns: Names of the columns to read; all by default.
        snapshot: Number of the snapshot, the newest by default.
        client: Client library of the dataset's store.
        storage_options: Options of the dataset's store.

    Raises:
        NotFound: There is no such dataset or snapshot.
        SchemaError: A column does not exist.

    Example:
        >>> from concurrent_loader.storage.ray import ShardSource
        >>> ShardSource("photos").estimate_inmemory_data_size() > 0
        True
    """

    @hides_secrets
    def __init__(
        self,
        url: str,
        *,
        columns: Sequence[str] | None = None,
        snapshot: int | None = None,
        client: str = "auto",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._target = PartTarget(url, client, dict(storage_options or {}))
        self._manifest = asyncio.run(_load(self._target, snapshot))
        self._columns = list(self._manifest.schema) if columns is None else list(columns)
        unknown = [name for name in self._columns if name not in self._manifest.schema]
        if unknown:
            raise SchemaError("no such column", column=unknown[0], expected=", ".join(self._manifest.schema))

    def estimate_inmemory_data_size(self) -> int:
        """Returns the size of all shards in bytes."""
        return self._manifest.num_bytes

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[Any]:
        """Returns one task for each of at most ``parallelism`` runs of shards of about the same number."""
        del data_context
        entries = list(self._manifest.shards)
        bounds = np.linspace(0, len(entries), min(max(1, parallelism), max(1, len(entries))) + 1).astype(int)
        tasks = []
        for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            run = entries[start:end]
            metadata = BlockMetadata(
                num_rows=sum(entry.num_samples for entry in run), size_bytes=sum(entry.size for entry in run),
                input_files=None, exec_stats=None,
            )  # fmt: skip
            tasks.append(ReadTask(_reader(run, self._columns, self._target), metadata, None, per_task_row_limit))
        return tasks


def _reader(entries: list[ShardEntry], columns: list[str], target: PartTarget) -> Callable[[], Iterator[Any]]:
    def read() -> Iterator[Any]:
        for entry in entries:
            yield BlockAccessor.batch_to_block(asyncio.run(_read_shard(entry, columns, target)))

    return read


async def _load(target: PartTarget, snapshot: int | None) -> Manifest:
    async with target.open() as store:
        return await load_manifest(store, snapshot)


async def _read_shard(entry: ShardEntry, columns: list[str], target: PartTarget) -> dict[str, np.ndarray[Any, Any]]:
    """Fetches a shard, verifies it, and returns its columns as arrays (n, …)."""
    async with target.open() as store:
        engine = FetchEngine(store)
        fetcher = ShardFetcher(engine, _source_opener(store.url, target))
        try:
            chunks = list(split(ByteRange(0, entry.size), chunk_bytes=CHUNK_BYTES))
            parts = await map_concurrently(
                lambda at: fetcher.fetch(entry, chunks[at].start, chunks[at].end, digest=entry.chunk_digests[at]),
                range(len(chunks)),
            )
        finally:
            await fetcher.close()
    data = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
    index = ShardIndex.parse(data[entry.tail_start :], tail_start=entry.tail_start, size=entry.size, shard=entry.key)
    return {name: _column(index, name, data) for name in columns}


def _source_opener(url: str, target: PartTarget) -> OpenSource:
    def open_source(source: str) -> FetchEngine:
        check_source(url, source)
        return FetchEngine(open_for(source, target.client, target.storage_options))

    return open_source


def _column(index: ShardIndex, name: str, data: memoryview) -> np.ndarray[Any, Any]:
    column = index.schema[name]
    if column.kind is ColumnKind.FIXED and not column.optional:
        return np.asarray(index.column(name))
    values = np.empty(index.num_samples, object)
    for row in range(index.num_samples):
        if column.kind is ColumnKind.PAYLOAD:
            place = index.payload_range(row, name)
            value = index.decode_value(name, row, data[place.start : place.end])
        else:
            value = index.value(name, row)
        is_json = column.base_type == "json" and not (value is None and column.optional)
        values[row] = msgspec.json.encode(value) if is_json else _owned(value)
    return values


def _owned(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value
