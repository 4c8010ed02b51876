"""Remembers which objects of a source were scanned, so that an adoption continues where a kill stopped it.

A record is a small object below ``adopting/IDENTITY/`` in the index. It holds the entries of one scanned object; the
tails, which hold the rest, are in the index already. Records are deleted after the commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import xxhash

from concurrent_loader.storage.adopt.protocol import ForeignColumn, SourceObject
from concurrent_loader.storage.adopt.scan import ScannedObject, ScannedShard
from concurrent_loader.storage.errors import FormatError, NotFound, StorageError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.fetch.upload import Uploader
from concurrent_loader.storage.shards.format.index import ShardIndex
from concurrent_loader.storage.shards.manifest.shard_table import ShardEntry
from concurrent_loader.storage.shards.manifest.source_ranges import SourceFile, SourceRange
from concurrent_loader.storage.shards.manifest.statistics import fixed_facts, payload_facts

__all__ = ["Records"]

_FOLDER = "adopting"
_MAX_BYTES = 64 << 20


class _ShardRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    start: int
    end: int
    tail_key: str
    tail_offset: int
    size: int
    num_samples: int
    tail_start: int
    digest: str
    chunk_digests: list[str]
    payload_bytes: int


class Records:
    """The records of one adoption in its index.

    Args:
        engine: Engine over the index.
        identity: Everything that decides what a scan finds: format, source, columns, shard size.
    """

    def __init__(self, engine: FetchEngine, identity: Mapping[str, Any]) -> None:
        self._engine = engine
        self._uploader = Uploader(store=engine.store, retry=engine.policy)
        name = xxhash.xxh3_128_hexdigest(msgspec.json.encode(identity, order="deterministic"))
        self._prefix = f"{_FOLDER}/{name}/"
        self._known: set[str] = set()

    @staticmethod
    def identity(
        format_name: str, url: str, columns: Mapping[str, ForeignColumn], shard_bytes: int, *, chosen: bool
    ) -> dict[str, Any]:
        """Returns what decides the result of a scan."""
        kinds = [[name, column.type, column.encoding] for name, column in columns.items()]
        return {
            "version": 1,
            "format": format_name,
            "url": url,
            "columns": kinds,
            "bytes": shard_bytes,
            "chosen": chosen,
        }

    async def open(self) -> None:
        """Lists the records of an earlier, unfinished run."""
        self._known = {meta.key async for meta in self._engine.store.list(self._prefix)}

    async def load(self, source: SourceObject, file: SourceFile) -> ScannedObject | None:
        """Returns what an earlier run found in an object; None if it has to be scanned."""
        key = self._key(source)
        if key not in self._known:
            return None
        try:
            data = (await self._engine.fetch_object(key)).data
            records = msgspec.json.decode(data, type=list[_ShardRecord])
            return [await self._restore(record, file) for record in records]
        except (NotFound, FormatError, msgspec.MsgspecError, ValueError):
            return None  # scanned again

    async def save(self, source: SourceObject, scanned: ScannedObject) -> None:
        """Keeps what was found in an object."""
        records = [_record(shard.entry) for shard in scanned]
        key = self._key(source)
        await self._uploader.put_content_addressed(key, msgspec.json.encode(records))
        self._known.add(key)

    async def delete(self) -> None:
        """Deletes all records, after the commit."""
        for key in sorted(self._known):
            await self._engine.call_with_retries(lambda key=key: self._engine.store.delete(key), key)  # type: ignore[misc]

    def _key(self, source: SourceObject) -> str:
        return f"{self._prefix}{source.entry.digest}.json"

    async def _restore(self, record: _ShardRecord, file: SourceFile) -> ScannedShard:
        source = SourceRange(
            file=file, start=record.start, end=record.end, tail_key=record.tail_key, tail_offset=record.tail_offset
        )
        num_bytes = record.size - record.tail_start
        fetched = await self._engine.fetch(record.tail_key, record.tail_offset, record.tail_offset + num_bytes)
        index = ShardIndex.parse(fetched.data, tail_start=record.tail_start, size=record.size, shard=source.name)
        fixed = {column.name: np.asarray(index.column(column.name)) for column in index.schema.fixed}
        statistics = {name: fixed_facts(values) for name, values in fixed.items()}
        for column in index.schema.payload:
            lengths = index.payload_ends(column.name) - index.payload_starts(column.name)
            statistics[column.name] = payload_facts(lengths.astype(np.int64))
        entry = ShardEntry(
            key=source.name,
            size=record.size,
            num_samples=record.num_samples,
            tail_start=record.tail_start,
            digest=record.digest,
            chunk_digests=tuple(int(digest, 16) for digest in record.chunk_digests),
            payload_bytes=record.payload_bytes,
            source=source,
        )
        if index.num_samples != entry.num_samples:
            raise FormatError("a record does not fit its tail", shard=source.name)
        return ScannedShard(entry, fixed, statistics)


def _record(entry: ShardEntry) -> _ShardRecord:
    source = entry.source
    if source is None:
        raise StorageError("only virtual shards are recorded", shard=entry.key)
    return _ShardRecord(
        start=source.start,
        end=source.end,
        tail_key=source.tail_key,
        tail_offset=source.tail_offset,
        size=entry.size,
        num_samples=entry.num_samples,
        tail_start=entry.tail_start,
        digest=entry.digest,
        chunk_digests=[f"{digest:016x}" for digest in entry.chunk_digests],
        payload_bytes=entry.payload_bytes,
    )
