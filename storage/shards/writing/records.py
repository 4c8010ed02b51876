"""Remembers which shards are done, so that an import, an adoption or a conversion continues where a kill stopped it.

A record is a small object below ``unfinished/RUN/`` in the new dataset. It holds the entries of some shards; their
tails, which hold the rest, are in the dataset already. Records are deleted after the commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import xxhash

from concurrent_loader.storage.errors import StorageError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.fetch.upload import Uploader
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.scan_objects import list_metas
from concurrent_loader.storage.shards.format.index import ShardIndex
from concurrent_loader.storage.shards.manifest.shard_table import ShardEntry, no_digests, shard_key
from concurrent_loader.storage.shards.manifest.source_ranges import SourceFile, SourceRange
from concurrent_loader.storage.shards.writing.written_shards import DoneShard, shard_statistics

__all__ = ["UNFINISHED_FOLDER", "Records", "run_name"]

UNFINISHED_FOLDER = "unfinished"
"""Folder of the records in a dataset. Readers ignore it."""


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


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    shards: list[_ShardRecord]
    facts: dict[str, Any]


def run_name(identity: Mapping[str, Any]) -> str:
    """Returns the name of a run, 32 hex digits.

    Args:
        identity: JSON of everything that decides the result, such as format, source, columns and shard size.
    """
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode({"version": 2, **identity}, order="deterministic"))


class Records:
    """The records of one run in the dataset that it makes.

    Args:
        engine: Engine over the dataset.
        run: Name of the run; see `run_name`.
    """

    def __init__(self, engine: FetchEngine, run: str) -> None:
        self._engine = engine
        self._uploader = Uploader(store=engine.store, retry=engine.policy)
        self._prefix = f"{UNFINISHED_FOLDER}/{run}/"
        self._known: set[str] = set()

    async def open(self) -> None:
        """Lists the records of an earlier, unfinished run.

        If there are any, an empty record is written, too: garbage collection keeps what the records name, however old,
        as long as the newest one is recent.
        """
        self._known = {meta.key for meta in await list_metas(self._engine, self._prefix)}
        if self._known:
            key = self._key("resumed")
            await self._uploader.put(key, b"{}")
            self._known.add(key)

    @property
    def keys(self) -> frozenset[str]:
        """Keys of the known records and of other objects in their folder."""
        return frozenset(self._known)

    def expect(self, name: str) -> None:
        """Makes `load` look for a record that was not listed."""
        self._known.add(self._key(name))

    def has(self, name: str) -> bool:
        """Returns whether there was a record when the records were listed, or this object saved it."""
        return self._key(name) in self._known

    async def load(self, name: str, file: SourceFile | None = None) -> list[DoneShard] | None:
        """Returns the shards of a record; None if there is no such record, or it cannot be used.

        Args:
            name: Name of the record.
            file: Adopted object of its virtual shards; None if they are not virtual.
        """
        found = await self.load_with_facts(name, file)
        return None if found is None else found[0]

    async def load_with_facts(
        self, name: str, file: SourceFile | None = None
    ) -> tuple[list[DoneShard], dict[str, Any]] | None:
        """Returns the shards and the facts of a record, like `load`."""
        if not self.has(name):
            return None
        try:
            data = (await self._engine.fetch_object(self._key(name))).data
            # Not msgspec's parser: a file name that is not UTF-8 holds lone surrogates.
            record = msgspec.convert(json.loads(bytes(data)), _Record)
            return await map_concurrently(lambda each: self._restore(each, file), record.shards), record.facts
        except StorageError as error:
            if error.retryable:
                raise
            return None  # the work is done again
        except (msgspec.MsgspecError, ValueError):
            return None

    async def save(self, name: str, entries: Sequence[ShardEntry], facts: Mapping[str, Any] | None = None) -> None:
        """Writes a record: entries of shards that are in the dataset, and JSON facts about them."""
        record = {"shards": [msgspec.to_builtins(_record(entry)) for entry in entries], "facts": dict(facts or {})}
        await self._uploader.put_content_addressed(self._key(name), json.dumps(record).encode())
        self._known.add(self._key(name))

    async def delete(self) -> None:
        """Deletes all known records."""
        for key in sorted(self._known):
            await self._engine.call_with_retries(lambda key=key: self._engine.store.delete(key), key)  # type: ignore[misc]
        self._known.clear()

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
            chunk_digests=tuple(int(digest, 16) for digest in record.chunk_digests) or no_digests(record.size),
            payload_bytes=record.payload_bytes,
            source=source,
        )
        key, start = (entry.key, entry.tail_start) if source is None else (source.tail_key, source.tail_offset)
        tail = (await self._engine.fetch(key, start, start + entry.size - entry.tail_start)).data
        index = ShardIndex.parse(tail, tail_start=entry.tail_start, size=entry.size, shard=entry.key)
        fixed = {column.name: np.asanyarray(index.column(column.name)) for column in index.schema.fixed}
        return DoneShard(entry, fixed, shard_statistics(index))


def _record(entry: ShardEntry) -> _ShardRecord:
    source = entry.source
    return _ShardRecord(
        size=entry.size,
        num_samples=entry.num_samples,
        tail_start=entry.tail_start,
        digest=entry.digest,
        chunk_digests=[f"{digest:016x}" for digest in entry.chunk_digests if digest is not None],
        payload_bytes=entry.payload_bytes,
        place=None if source is None else _Place(source.start, source.end, source.tail_key, source.tail_offset),
    )
