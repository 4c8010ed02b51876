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
import numpy.typing as npt
import xxhash

from concurrent_loader.storage.adopt.stores import open_both
from concurrent_loader.storage.errors import AlreadyExists, StorageError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.fetch.upload import Uploader
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.shards.editing.shard_samples import fetch_file, shard_samples
from concurrent_loader.storage.shards.format.builder import FinishedShard, ShardBuilder
from concurrent_loader.storage.shards.format.index import ShardIndex
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.shards.manifest.live_rows import LiveRows
from concurrent_loader.storage.shards.manifest.manifest import SAME_SAMPLES_AS, Manifest
from concurrent_loader.storage.shards.manifest.shard_table import ShardEntry
from concurrent_loader.storage.shards.manifest.snapshots import SnapshotName, commit, latest_snapshot, load_manifest
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
    snapshot: SnapshotName | None = None,
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
        snapshot: Number of the snapshot to convert, a tag, or a time; the newest by default.
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

    async def run(self, snapshot: SnapshotName | None) -> Manifest:
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
            same = {"digest": manifest.samples_digest, "snapshot": 1}
            made = written.manifest(
                None, append=False, metadata={**manifest.metadata, SAME_SAMPLES_AS: same}, token=None
            )
            await self._uploader.confirm_replaced()
            await commit(self._target, made)
            with suppress(StorageError):  # they are small, and no reader looks at them
                await records.delete()
            return made
        finally:
            await self._fetcher.close()

    async def _convert(self, manifest: Manifest, records: Records, written: WrittenShards) -> None:
        ahead: deque[tuple[list[ShardEntry], asyncio.Task[DoneShard]]] = deque()
        live = LiveRows(manifest)  # deleted rows are not copied; a shard without any other becomes an empty one
        num_bytes, total = 0, sum(part.num_bytes for part in manifest.parts)

        async def take() -> None:
            nonlocal num_bytes
            entries, task = ahead.popleft()
            done = await task
            written.add_entry(done.entry, done.fixed, done.statistics, self._keep_bundle)
            await self._put_bundles()
            num_bytes += sum(entry.size for entry in entries)
            if self._on_progress is not None:
                self._on_progress(ConvertProgress(num_bytes=num_bytes, num_bytes_total=total))

        async with asyncio.TaskGroup() as group:
            for number, parts in enumerate(zip(*(part.shards for part in manifest.parts), strict=True)):
                if len(ahead) >= _SHARDS_IN_FLIGHT:
                    await take()
                entries, rows = list(parts), live.rows_of_shard(number)
                ahead.append((entries, group.create_task(self._one(manifest, entries, records, rows))))
            while ahead:
                await take()
        written.flush(self._keep_bundle)
        await self._put_bundles()

    async def _one(
        self, manifest: Manifest, entries: list[ShardEntry], records: Records, rows: npt.NDArray[np.int64]
    ) -> DoneShard:
        """Converts some rows of one shard, given its entry in each part of the snapshot."""
        # One shard may be in the snapshot twice, with other deleted rows or other added columns.
        hashed = xxhash.xxh3_128("".join(entry.digest for entry in entries).encode())
        hashed.update(rows.astype("<i8").tobytes())
        name = hashed.hexdigest()
        known = await records.load(name)
        if known is not None:
            return known[0]
        files = [await fetch_file(self._fetcher, entry) for entry in entries]
        done, file = await asyncio.to_thread(_rebuild, manifest, entries, files, rows)
        await self._uploader.put_content_addressed(done.entry.key, file)
        await records.save(name, [done.entry])
        return done

    def _keep_bundle(self, key: str, data: Any) -> None:
        self._bundles.append((key, data))

    async def _put_bundles(self) -> None:
        bundles, self._bundles = self._bundles, []
        for key, data in bundles:
            await self._uploader.put_content_addressed(key, data)


def _rebuild(
    manifest: Manifest, entries: list[ShardEntry], files: list[memoryview], rows: npt.NDArray[np.int64]
) -> tuple[DoneShard, memoryview]:
    """Returns a shard of the project's own format with some rows of any shard, and its bytes."""
    builder = ShardBuilder(Schema.parse(manifest.schema))
    for sample in shard_samples(manifest, entries, files, rows):
        builder.add(sample)
    shard: FinishedShard = builder.finish()
    made = ShardIndex.parse(shard.data[shard.tail_start :], tail_start=shard.tail_start, size=shard.size)
    fixed = {column.name: np.asanyarray(made.column(column.name)) for column in made.schema.fixed}
    return DoneShard(shard_entry(shard), fixed, shard_statistics(made)), shard.data
