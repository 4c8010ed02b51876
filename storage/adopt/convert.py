"""Converts an adopted dataset: each virtual shard becomes a shard of the project's own format, sample by sample."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from concurrent_loader.storage.adopt.stores import open_both
from concurrent_loader.storage.errors import AlreadyExists, StorageError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.fetch.upload import Uploader
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.ranges import ByteRange, split
from concurrent_loader.storage.shards.format.builder import FinishedShard, ShardBuilder
from concurrent_loader.storage.shards.format.index import ShardIndex
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES
from concurrent_loader.storage.shards.format.schema import ColumnKind, Schema
from concurrent_loader.storage.shards.manifest.manifest import SAME_SAMPLES_AS, Manifest
from concurrent_loader.storage.shards.manifest.shard_table import ShardEntry
from concurrent_loader.storage.shards.manifest.snapshots import commit, latest_snapshot, load_manifest
from concurrent_loader.storage.shards.shard_fetcher import OpenSource, ShardFetcher, check_source
from concurrent_loader.storage.shards.writing.records import Records, run_name
from concurrent_loader.storage.shards.writing.written_shards import (
    DoneShard,
    WrittenShards,
    shard_entry,
    shard_statistics,
)
from concurrent_loader.storage.stores.backends.open_store import open_for

__all__ = ["ConvertProgress", "convert"]

_SHARDS_IN_FLIGHT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertProgress:
    """The progress of a conversion.

    Attributes:
        num_bytes: Number of bytes of the shards that are done.
        num_bytes_total: Number of bytes of all shards.
    """

    num_bytes: int
    num_bytes_total: int


@hides_secrets
def convert(
    index: str | os.PathLike[str],
    url: str | os.PathLike[str],
    *,
    snapshot: int | None = None,
    client: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[ConvertProgress], None] | None = None,
) -> Manifest:
    """Writes the samples of an adopted dataset as a dataset of the project's own format.

    Each virtual shard becomes one shard with the same samples. So sample numbers and the order of every epoch stay the
    same, and a loader's state of one dataset fits the other. A run that was interrupted continues.

    Args:
        index: URL of the adopted dataset.
        url: URL of the dataset to make, which must not exist.
        snapshot: Number of the snapshot to convert, the newest by default.
        client: Client library, as for `concurrent_loader.storage.open_store`.
        storage_options: Options of the stores of ``index`` and ``url``; local folders ignore them.
        source_options: Options of the store of the adopted data; by default ``storage_options``.
        on_progress: Callback for progress, called on another thread.

    Returns:
        Manifest of the new dataset.

    Raises:
        AlreadyExists: There is a dataset at ``url``.
        DatasetChanged: An adopted object was replaced or deleted.
        StorageError: A store failed, or bytes are damaged.

    Example:
        >>> from concurrent_loader.storage.adopt import convert
        >>> convert("photos", "converted").num_samples
        20
    """
    options = (storage_options if source_options is None else source_options) or {}
    with open_both(index, url, client, storage_options, None) as (loop, data, target):

        def open_source(source: str) -> FetchEngine:
            if source_options is None:
                check_source(data.store.url, source)
            return FetchEngine(open_for(source, client, options))

        run = _Conversion(data, target, open_source, on_progress)
        return loop.run(run.run(snapshot))


class _Conversion:
    """The steps of one conversion, on one event loop."""

    def __init__(
        self,
        data: FetchEngine,
        target: FetchEngine,
        open_source: OpenSource,
        on_progress: Callable[[ConvertProgress], None] | None,
    ) -> None:
        self._data = data
        self._target = target
        self._fetcher = ShardFetcher(data, open_source)
        self._uploader = Uploader(store=target.store, retry=target.policy)
        self._on_progress = on_progress
        self._bundles: list[tuple[str, Any]] = []

    async def run(self, snapshot: int | None) -> Manifest:
        """Converts a snapshot, and commits the result."""
        try:
            existing = await latest_snapshot(self._target)
            if existing is not None:
                raise AlreadyExists(
                    "there is a dataset already; choose another place", url=self._target.store.url, got=existing
                )
            manifest = await load_manifest(self._data, snapshot)
            records = Records(self._target, run_name({"converted": manifest.digest}))
            await records.open()
            written = WrittenShards(Schema.parse(manifest.schema))
            try:
                await self._convert(manifest, records, written)
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from errors.exceptions[0].__cause__
            same = {"digest": manifest.digest, "snapshot": 1}
            made = written.manifest(
                None, append=False, metadata={**manifest.metadata, SAME_SAMPLES_AS: same}, token=None
            )
            await commit(self._target, made)
            with suppress(StorageError):  # they are small, and no reader looks at them
                await records.delete()
            return made
        finally:
            await self._fetcher.close()

    async def _convert(self, manifest: Manifest, records: Records, written: WrittenShards) -> None:
        ahead: deque[tuple[ShardEntry, asyncio.Task[DoneShard]]] = deque()
        num_bytes = 0

        async def take() -> None:
            nonlocal num_bytes
            entry, task = ahead.popleft()
            done = await task
            written.add_entry(done.entry, done.fixed, done.statistics, self._keep_bundle)
            await self._put_bundles()
            num_bytes += entry.size
            if self._on_progress is not None:
                self._on_progress(ConvertProgress(num_bytes=num_bytes, num_bytes_total=manifest.num_bytes))

        async with asyncio.TaskGroup() as group:
            for entry in manifest.shards:
                if len(ahead) >= _SHARDS_IN_FLIGHT:
                    await take()
                ahead.append((entry, group.create_task(self._one(entry, records))))
            while ahead:
                await take()
        written.flush(self._keep_bundle)
        await self._put_bundles()

    async def _one(self, entry: ShardEntry, records: Records) -> DoneShard:
        known = await records.load(entry.digest)
        if known is not None:
            return known[0]
        chunks = list(split(ByteRange(0, entry.size), chunk_bytes=CHUNK_BYTES))
        parts = await map_concurrently(
            lambda at: self._fetcher.fetch(entry, chunks[at].start, chunks[at].end, digest=entry.chunk_digests[at]),
            range(len(chunks)),
        )
        done, file = await asyncio.to_thread(_rebuild, entry, parts)
        await self._uploader.put_content_addressed(done.entry.key, file)
        await records.save(entry.digest, [done.entry])
        return done

    def _keep_bundle(self, key: str, data: Any) -> None:
        self._bundles.append((key, data))

    async def _put_bundles(self) -> None:
        bundles, self._bundles = self._bundles, []
        for key, data in bundles:
            await self._uploader.put_content_addressed(key, data)


def _rebuild(entry: ShardEntry, parts: list[memoryview]) -> tuple[DoneShard, memoryview]:
    """Returns a shard of the project's own format with the samples of any shard, and its bytes."""
    data = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
    tail = data[entry.tail_start :]
    index = ShardIndex.parse(tail, tail_start=entry.tail_start, size=entry.size, shard=entry.key)
    builder = ShardBuilder(Schema.parse(index.schema.to_dict()))
    for row in range(index.num_samples):
        builder.add({column.name: _value(index, column.name, column.kind, row, data) for column in index.schema})
    shard: FinishedShard = builder.finish()
    made = ShardIndex.parse(shard.data[shard.tail_start :], tail_start=shard.tail_start, size=shard.size)
    fixed = {column.name: np.asarray(made.column(column.name)) for column in made.schema.fixed}
    return DoneShard(shard_entry(shard), fixed, shard_statistics(made)), shard.data


def _value(index: ShardIndex, name: str, kind: ColumnKind, row: int, data: memoryview) -> object:
    if kind is not ColumnKind.PAYLOAD:
        return index.value(name, row)
    place = index.payload_range(row, name)
    return index.decode_value(name, row, data[place.start : place.end])
