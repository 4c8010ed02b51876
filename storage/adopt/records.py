"""Remembers which shards are done, so that an adoption or a conversion continues where a kill stopped it.

A record is a small object below ``unfinished/IDENTITY/`` in the new dataset. It holds the entries of some
shards; their tails, which hold the rest, are in the dataset already. Records are deleted after the commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.storage.errors import StorageError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.fetch.upload import Uploader
from concurrent_loader.storage.shards.format.index import ShardIndex
from concurrent_loader.storage.shards.manifest.shard_table import ShardEntry, shard_key
from concurrent_loader.storage.shards.manifest.source_ranges import SourceFile, SourceRange
from concurrent_loader.storage.shards.manifest.statistics import Statistics
from concurrent_loader.storage.shards.writing.written_shards import shard_statistics

__all__ = ["DoneShard", "Records"]

_FOLDER = "unfinished"


@dataclass(frozen=True, slots=True)
class DoneShard:
    """A shard whose tail is in the dataset.

    Attributes:
        entry: Entry for the manifest.
        fixed: FIXED columns, as arrays (n, *shape).
        statistics: Statistics of its columns.
    """

    entry: ShardEntry
    fixed: dict[str, npt.NDArray[Any]]
    statistics: Statistics


class _Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    start: int
    end: int
    tail_key: str
    tail_offset: int


class _ShardRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: int
    num_samples: int
    tail_start: int
    digest: str
    chunk_digests: list[str]
    payload_bytes: int
    place: _Place | None


class Records:
    """The records of one run in the dataset that it makes.

    Args:
        engine: Engine over the dataset.
        identity: Everything that decides the result, such as format, source, columns and shard size.
    """

    def __init__(self, engine: FetchEngine, identity: Mapping[str, Any]) -> None:
        self._engine = engine
        self._uploader = Uploader(store=engine.store, retry=engine.policy)
        name = xxhash.xxh3_128_hexdigest(msgspec.json.encode({"version": 1, **identity}, order="deterministic"))
        self._prefix = f"{_FOLDER}/{name}/"
        self._known: set[str] = set()

    async def open(self) -> None:
        """Lists the records of an earlier, unfinished run.

        If there are any, an empty record is written, too: garbage collection keeps what the records name, however old,
        as long as the newest one is recent.
        """
        self._known = {meta.key async for meta in self._engine.store.list(self._prefix)}
        if self._known:
            key = self._key("resumed")
            await self._uploader.put(key, b"[]")
            self._known.add(key)

    async def load(self, name: str, file: SourceFile | None = None) -> list[DoneShard] | None:
        """Returns the shards of a record; None if there is no such record, or it cannot be used.

        Args:
            name: Name of the record.
            file: Adopted object of its virtual shards; None if they are not virtual.
        """
        key = self._key(name)
        if key not in self._known:
            return None
        try:
            data = (await self._engine.fetch_object(key)).data
            return [await self._restore(each, file) for each in msgspec.json.decode(data, type=list[_ShardRecord])]
        except (StorageError, msgspec.MsgspecError, ValueError):
            return None  # the work is done again

    async def save(self, name: str, entries: Sequence[ShardEntry]) -> None:
        """Writes a record."""
        key = self._key(name)
        await self._uploader.put_content_addressed(key, msgspec.json.encode([_record(entry) for entry in entries]))
        self._known.add(key)

    async def delete(self) -> None:
        """Deletes all records, after the commit."""
        for key in sorted(self._known):
            await self._engine.call_with_retries(lambda key=key: self._engine.store.delete(key), key)  # type: ignore[misc]

    def _key(self, name: str) -> str:
        return f"{self._prefix}{name}.json"

    async def _restore(self, record: _ShardRecord, file: SourceFile | None) -> DoneShard:
        source = None
        if record.place is not None and file is not None:
            place = record.place
            source = SourceRange(
                file=file, start=place.start, end=place.end, tail_key=place.tail_key, tail_offset=place.tail_offset
            )
        entry = ShardEntry(
            key=shard_key(record.digest) if source is None else source.name,
            size=record.size,
            num_samples=record.num_samples,
            tail_start=record.tail_start,
            digest=record.digest,
            chunk_digests=tuple(int(digest, 16) for digest in record.chunk_digests),
            payload_bytes=record.payload_bytes,
            source=source,
        )
        key, start = (entry.key, entry.tail_start) if source is None else (source.tail_key, source.tail_offset)
        tail = (await self._engine.fetch(key, start, start + entry.size - entry.tail_start)).data
        index = ShardIndex.parse(tail, tail_start=entry.tail_start, size=entry.size, shard=entry.key)
        fixed = {column.name: np.asarray(index.column(column.name)) for column in index.schema.fixed}
        return DoneShard(entry, fixed, shard_statistics(index))


def _record(entry: ShardEntry) -> _ShardRecord:
    source = entry.source
    return _ShardRecord(
        size=entry.size,
        num_samples=entry.num_samples,
        tail_start=entry.tail_start,
        digest=entry.digest,
        chunk_digests=[f"{digest:016x}" for digest in entry.chunk_digests],
        payload_bytes=entry.payload_bytes,
        place=None if source is None else _Place(source.start, source.end, source.tail_key, source.tail_offset),
    )
