"""Writes chosen shards again without their deleted rows, and makes a snapshot with the result.

Live rows keep their order, so sample numbers stay. Runs of chosen shards are joined and cut anew. Bundles without
removed rows are kept, at another place; the others are written again. If columns were added, all shards are written
again, with the added columns in them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.fetch.upload import Uploader
from concurrent_loader.storage.shards.editing.shard_samples import fetch_file, fetch_index, shard_samples
from concurrent_loader.storage.shards.format.builder import FinishedShard, ShardBuilder
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.shards.manifest.deleted_rows import DeletedRows
from concurrent_loader.storage.shards.manifest.live_rows import LiveRows
from concurrent_loader.storage.shards.manifest.manifest import BundleEntry, Manifest, ShardEntry, bundle_key
from concurrent_loader.storage.shards.shard_fetcher import ShardFetcher
from concurrent_loader.storage.shards.writing.shard_sizing import ShardSplitter
from concurrent_loader.storage.shards.writing.written_shards import shard_entry

__all__ = ["RewriteProgress", "Rewriter", "live_shares"]

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_SHARDS_AHEAD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteProgress:
    """The progress of writing shards again.

    Attributes:
        num_bytes: Size of the shards that are done, in bytes.
        num_bytes_total: Size of all shards that are written again.
    """

    num_bytes: int
    num_bytes_total: int


def live_shares(manifest: Manifest) -> npt.NDArray[np.float64]:
    """Returns the share of live rows of each shard, from 0 to 1: (num_shards,) float64; 1 for a shard without rows."""
    stored = manifest.table.num_samples
    live = np.diff(LiveRows(manifest).first_samples)
    return np.where(stored > 0, live / np.maximum(1, stored), 1.0)


class Rewriter:
    """Writes shards of a dataset again. One instance remembers what it has written, for another attempt.

    Args:
        engine: Engine over the dataset's store.
        fetcher: Fetcher of the dataset's shards.
        shard_bytes: Upper bound of a new shard.
        on_progress: Callback after each shard.

    Attributes:
        num_bytes_written: Size of the new shards and bundles in bytes.
        keys: Keys of the new shards and bundles, those of attempts that met a conflict included.
    """

    def __init__(
        self,
        engine: FetchEngine,
        fetcher: ShardFetcher,
        *,
        shard_bytes: int,
        on_progress: Callable[[RewriteProgress], None] | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._shard_bytes = shard_bytes
        self._uploader = Uploader(store=engine.store, retry=engine.policy)
        self._on_progress = on_progress
        self._done: dict[str, list[ShardEntry]] = {}
        self._num_bytes = 0
        self.num_bytes_written = 0
        self.keys: set[str] = set()

    async def rewrite(self, manifest: Manifest, chosen: Mask) -> Manifest:
        """Writes the chosen shards without their deleted rows.

        Args:
            manifest: Snapshot with deleted rows.
            chosen: (num_shards,) bool: which shards to write again.

        Returns:
            The same samples in the new shards. Number, parent and statistics are those of ``manifest``.

        Raises:
            StorageError: A shard could not be read, is damaged, or could not be written.
        """
        self._num_bytes = 0
        if manifest.places:
            chosen = np.ones_like(chosen)
        total = int(sum(part.table.sizes[chosen].sum() for part in manifest.parts))
        live = LiveRows(manifest)
        shards: list[ShardEntry] = []
        for start, end in _runs(chosen):
            if chosen[start]:
                shards += await self._run(manifest, live, range(start, end), total)
            else:
                shards += manifest.shards[start:end]
        if manifest.places:
            await self._uploader.confirm_replaced()
            # Without bundles, which hold the columns of one part: a whole column is then read from the shards.
            return replace(manifest, shards=tuple(shards), bundles=(), deleted=None, column_sets=(), places={})
        removed, kept = _divide(manifest, live, chosen)
        bundles = [made for bundle in manifest.bundles for made in await self._bundle(manifest, bundle, removed)]
        await self._uploader.confirm_replaced()
        return replace(manifest, shards=tuple(shards), bundles=tuple(bundles), deleted=kept)

    async def _run(self, manifest: Manifest, live: LiveRows, run: range, total: int) -> Sequence[ShardEntry]:
        """Writes the live rows of consecutive shards as new shards."""
        # Columns that were renamed or dropped since the last attempt change what is written, but no shard.
        hashed = xxhash.xxh3_128(repr((manifest.schema, manifest.places)).encode())
        for number in run:
            for part in manifest.parts:
                hashed.update(part.table.digest(number).encode())
            hashed.update(live.rows_of_shard(number).astype("<i8").tobytes())
        name = hashed.hexdigest()
        if name in self._done:
            return self._done[name]
        splitter = ShardSplitter(Schema.parse(manifest.schema), shard_bytes=self._shard_bytes)
        entries: list[ShardEntry] = []
        ahead: deque[tuple[list[ShardEntry], Indices, asyncio.Task[list[memoryview]] | None]] = deque()

        async def take() -> None:
            files, chosen, task = ahead.popleft()
            if task is not None:
                samples = shard_samples(manifest, files, await task, chosen)
                full = await asyncio.to_thread(_add, splitter, samples)
                entries.extend([await self._put(finished) for finished in full])
            self._report(sum(entry.size for entry in files), total)

        try:
            async with asyncio.TaskGroup() as group:
                for number in run:
                    if len(ahead) >= _SHARDS_AHEAD:
                        await take()
                    files = [part.shards[number] for part in manifest.parts]
                    rows = live.rows_of_shard(number)
                    # A shard without live rows is not even fetched.
                    task = group.create_task(self._fetch(files)) if len(rows) else None
                    ahead.append((files, rows, task))
                while ahead:
                    await take()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors.exceptions[0].__cause__
        rest = splitter.take_rest()
        if rest is not None:
            entries.append(await self._put(await asyncio.to_thread(rest.finish)))
        self._done[name] = entries
        return entries

    async def _fetch(self, entries: list[ShardEntry]) -> list[memoryview]:
        return [await fetch_file(self._fetcher, entry) for entry in entries]

    async def _put(self, shard: FinishedShard) -> ShardEntry:
        entry = shard_entry(shard)
        await self._upload(entry.key, shard)
        return entry

    async def _upload(self, key: str, file: FinishedShard) -> None:
        self.keys.add(key)
        await self._uploader.put_content_addressed(key, file.data)
        self.num_bytes_written += file.size

    async def _bundle(self, manifest: Manifest, bundle: BundleEntry, removed: DeletedRows | None) -> list[BundleEntry]:
        """Returns the bundle as it is without the removed rows: at most one."""
        if removed is None:
            return [bundle]
        rows = removed.live_rows(bundle.first_sample, bundle.first_sample + bundle.num_samples)
        first = int(removed.num_live_before(bundle.first_sample))
        if not len(rows):
            return []
        if len(rows) == bundle.num_samples:
            return [replace(bundle, first_sample=first)]
        index = await fetch_index(self._fetcher, bundle)
        builder = ShardBuilder(Schema(Schema.parse(manifest.schema).fixed))
        builder.extend_fixed(
            {name: np.asanyarray(index.values(name, rows - bundle.first_sample)) for name in builder.schema.names}
        )
        made = builder.finish()
        key = bundle_key(made.digest)
        await self._upload(key, made)
        return [
            BundleEntry(
                key=key, size=made.size, tail_start=made.tail_start, digest=made.digest,
                chunk_digests=made.chunk_digests, first_sample=first, num_samples=made.num_samples,
            )
        ]  # fmt: skip

    def _report(self, num_bytes: int, total: int) -> None:
        self._num_bytes += num_bytes
        if self._on_progress is not None:
            self._on_progress(RewriteProgress(num_bytes=self._num_bytes, num_bytes_total=total))


def _add(splitter: ShardSplitter, samples: Iterator[dict[str, Any]]) -> list[FinishedShard]:
    """Adds samples to the splitter; returns the shards that are full."""
    full = (splitter.add(sample) for sample in samples)
    return [builder.finish() for builder in full if builder is not None]


def _runs(chosen: Mask) -> Iterator[tuple[int, int]]:
    """Yields start and end of each run of shards that are all chosen, or all not."""
    changes = np.flatnonzero(np.diff(chosen)) + 1
    yield from pairwise([0, *changes.tolist(), len(chosen)] if len(chosen) else [])


def _divide(manifest: Manifest, live: LiveRows, chosen: Mask) -> tuple[DeletedRows | None, DeletedRows | None]:
    """Returns the deleted rows that are removed with the chosen shards, and those that are left, in new numbers."""
    deleted = manifest.deleted
    if deleted is None:
        return None, None
    bounds = np.unique(np.concatenate([deleted.starts, deleted.ends, live.first_rows]))
    starts, ends = bounds[:-1], bounds[1:]
    is_deleted = deleted.contains(starts)
    is_chosen = chosen[np.searchsorted(live.first_rows, starts, side="right") - 1] if len(starts) else is_deleted
    gone, stays = is_deleted & is_chosen, is_deleted & ~is_chosen
    removed = DeletedRows.of_runs(starts[gone], ends[gone]) if gone.any() else None
    starts, ends = starts[stays], ends[stays]
    if removed is not None:
        starts, ends = removed.num_live_before(starts), removed.num_live_before(ends)
    return removed, DeletedRows.of_runs(starts, ends) if stays.any() else None
