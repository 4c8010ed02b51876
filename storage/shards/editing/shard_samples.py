"""Fetches a whole shard, and reads some of its samples, in order to write them into another shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.ranges import ByteRange, split
from concurrent_loader.storage.shards.format.index import ShardIndex
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES
from concurrent_loader.storage.shards.format.schema import ColumnKind, Schema
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.shard_table import BundleEntry, ShardEntry
from concurrent_loader.storage.shards.shard_fetcher import ShardFetcher

__all__ = ["fetch_file", "fetch_index", "shard_samples"]


async def fetch_file(fetcher: ShardFetcher, entry: ShardEntry) -> memoryview:
    """Fetches the bytes of a shard, virtual or not, and compares each chunk with its digest.

    Raises:
        StorageError: A chunk could not be fetched, or is not the one that the manifest pins.
    """
    chunks = list(split(ByteRange(0, entry.size), chunk_bytes=CHUNK_BYTES))
    parts = await map_concurrently(
        lambda at: fetcher.fetch(entry, chunks[at].start, chunks[at].end, digest=entry.chunk_digests[at]),
        range(len(chunks)),
    )
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


async def fetch_index(fetcher: ShardFetcher, entry: ShardEntry | BundleEntry) -> ShardIndex:
    """Fetches and parses the tail of a shard or bundle; the digests of its blocks are compared.

    Raises:
        StorageError: The tail could not be fetched, or is damaged.
    """
    tail = await fetcher.fetch(entry, entry.tail_start, entry.size)
    return ShardIndex.parse(tail, tail_start=entry.tail_start, size=entry.size, shard=entry.key)


def shard_samples(
    manifest: Manifest, entries: Sequence[ShardEntry], files: Sequence[memoryview], rows: npt.NDArray[np.int64]
) -> Iterator[dict[str, Any]]:
    """Yields the decoded samples at some rows of a shard. Every value is verified.

    Args:
        manifest: Snapshot.
        entries: Entry of the shard in each part of the snapshot: its own, then those of added columns.
        files: Bytes of each of them.
        rows: (n,) int64: rows of the shard.

    Raises:
        CorruptData: The shard is damaged.
    """
    indexes = [
        ShardIndex.parse(file[entry.tail_start :], tail_start=entry.tail_start, size=entry.size, shard=entry.key)
        for entry, file in zip(entries, files, strict=True)
    ]
    places = [(column.name, column.kind, manifest.place_of(column.name)) for column in Schema.parse(manifest.schema)]
    for row in rows.tolist():
        yield {name: _value(indexes[at.part], at.name, kind, row, files[at.part]) for name, kind, at in places}


def _value(index: ShardIndex, name: str, kind: ColumnKind, row: int, file: memoryview) -> object:
    if kind is not ColumnKind.PAYLOAD:
        return index.value(name, row)
    place = index.payload_range(row, name)
    return index.decode_value(name, row, file[place.start : place.end])
