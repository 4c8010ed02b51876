"""Scans one object of a source into virtual shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

import msgspec
import xxhash

from concurrent_loader.storage.adopt.header_reader import HeaderReader
from concurrent_loader.storage.adopt.object_reader import FetchingReader, Runner, fetch_unchanged
from concurrent_loader.storage.adopt.protocol import (
    BytesReader,
    ForeignColumn,
    ForeignFormat,
    FoundSample,
    ObjectReader,
    SourceObject,
    Unit,
    UnitFormat,
)
from concurrent_loader.storage.adopt.range_reader import RangeReader
from concurrent_loader.storage.adopt.virtual_shard import VirtualShard, VirtualShardBuilder
from concurrent_loader.storage.errors import ConfigurationError, FormatError, StorageError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.shards.format.schema import Column, Schema
from concurrent_loader.storage.shards.format.transforms import MAX_UNIT_BYTES, transform
from concurrent_loader.storage.shards.manifest.shard_table import ShardEntry
from concurrent_loader.storage.shards.manifest.source_ranges import SourceFile, SourceRange
from concurrent_loader.storage.shards.writing.written_shards import DoneShard

__all__ = ["ScannedObject", "Scanner"]

_TAIL_OBJECT_BYTES = 1 << 20

Upload = Callable[[str, bytes], None]


ScannedObject = list[DoneShard]


def tail_key(data: bytes) -> str:
    """Returns the key of an object that holds tails."""
    return f"tails/{xxhash.xxh3_128_hexdigest(data)}.clt"


@dataclass(frozen=True, kw_only=True)
class Scanner:
    """Scans objects of one source.

    Attributes:
        format: Format of the objects.
        columns: Columns of the dataset, with their encodings.
        chosen: Whether the user chose the columns, so that other fields are left out.
        shard_bytes: Target size of a virtual shard.
        engine: Engine over the source's store.
        loop: Event loop of the engine.
        pins_etags: Whether the ETags of the source outlive a copy or a move.
        headers_only: Whether to leave out the payload, so that there are no digests. ETags are pinned in any case.

    Thread-safety: `scan` may be called from several threads.
    """

    format: ForeignFormat
    columns: Mapping[str, ForeignColumn]
    chosen: bool
    shard_bytes: int
    engine: FetchEngine
    loop: Runner
    pins_etags: bool
    headers_only: bool = False

    def open(self, source: SourceObject) -> FetchingReader | HeaderReader | RangeReader | BytesReader:
        """Returns a reader of an object; a compressed object is decompressed in memory.

        Raises:
            ConfigurationError: A compressed object is too large for that, or only its headers were to be read.
        """
        compression = source.info.get("compression")
        if self.headers_only and compression:
            raise ConfigurationError(
                "the headers of a compressed object cannot be read alone; adopt without headers_only (--headers-only)",
                url=self.engine.store.url, key=source.entry.key,
            )  # fmt: skip
        if self.headers_only:
            return HeaderReader(source.entry, self.engine, self.loop)
        if isinstance(self.format, UnitFormat):
            return RangeReader(source.entry, self.engine, self.loop)
        if not compression:
            return FetchingReader(source.entry, self.engine, self.loop)
        most = int(source.info.get("raw_bytes") or MAX_UNIT_BYTES)
        if most > MAX_UNIT_BYTES:
            raise ConfigurationError(
                "a compressed object is too large to be read in place; convert it with `concurrent-loader ingest`",
                key=source.entry.key, expected=f"<= {MAX_UNIT_BYTES} bytes", got=most,
            )  # fmt: skip
        data = self.loop.run(fetch_unchanged(self.engine, source.entry, 0, source.entry.size))
        return BytesReader(transform(str(compression), data, max_bytes=most), source.entry.key)

    def scan(self, source: SourceObject, upload: Upload) -> ScannedObject:
        """Scans an object.

        Args:
            source: The object.
            upload: Function that puts an object into the index, and returns when it is there.

        Raises:
            FormatError: The object is damaged or does not fit the columns; the error names the sample.
            StorageError: Source or index failed.
        """
        tails, file = _Tails(upload), self.source_file(source)
        scanned: list[tuple[VirtualShard, int, int]] = []
        with closing(self.open(source)) as reader:
            try:
                for shard in self._shards(source, reader):
                    number, offset = tails.add(shard.tail)
                    scanned.append(
                        (replace(shard, tail=b"", digest=shard.digest or _name(file, shard)), number, offset)
                    )
            except StorageError as error:
                error.locate(url=self.engine.store.url, key=source.entry.key)
                raise
        tails.flush()
        return [
            DoneShard(_entry(shard, file, tails.keys[number], offset), shard.fixed, shard.statistics)
            for shard, number, offset in scanned
        ]

    def source_file(self, source: SourceObject) -> SourceFile:
        """Returns the object as the manifest pins it."""
        entry = source.entry
        return SourceFile(
            url=self.engine.store.url,
            key=entry.key,
            size=entry.size,
            etag=entry.etag if self.pins_etags or self.headers_only else None,
            transform=self.format.transform(self.columns)
            if isinstance(self.format, UnitFormat)
            else str(source.info.get("compression") or ""),
        )

    def _shards(self, source: SourceObject, reader: ObjectReader) -> Iterator[VirtualShard]:
        schema = _schema(self.columns)
        by_name = {column.name: column for column in schema}
        builder = VirtualShardBuilder(schema, reader, self.format.parse, digests=not self.headers_only)
        whole: Unit | None = None
        if source.info.get("compression"):
            whole = Unit(start=0, end=source.entry.size, payload=reader.read(0, reader.size))
        unit: Unit | None = None
        end = 0
        for sample in self.format.walk(source, reader, self.columns):
            wanted = sample.unit or whole
            if wanted is not unit:
                if builder.num_samples:
                    yield _finish(builder, unit)
                unit, end = wanted, 0
                payload = reader if unit is None else BytesReader(unit.payload, reader.name)
                builder = VirtualShardBuilder(schema, payload, self.format.parse, is_whole=unit is not None)
            self._check(sample, end, reader.size if unit is None else len(unit.payload))
            end = sample.end
            if builder.num_samples and unit is None:
                num_bytes = sample.end - builder.start + builder.tail_bytes
                if num_bytes > self.shard_bytes:
                    yield builder.finish()
            try:
                builder.add(sample, by_name)
            except FormatError as error:
                _named(error, sample.name)
                raise
            if unit is not None and builder.num_samples == unit.num_samples:
                yield _finish(builder, unit)
                del builder, unit, wanted, payload, sample  # the memory of the payload, before the next one is decoded
                builder, unit = VirtualShardBuilder(schema, reader, self.format.parse), None
        if builder.num_samples:
            yield _finish(builder, unit)

    def _check(self, sample: FoundSample, end: int, size: int) -> None:
        if not end <= sample.start <= sample.end <= size:
            raise _named(
                FormatError("samples overlap, or are out of order", start=sample.start, end=sample.end), sample.name
            )
        missing = self.columns.keys() - sample.values.keys()
        if missing:
            raise _named(
                FormatError(
                    "a sample lacks a field; choose the columns that every sample has with --only",
                    column=min(missing), expected=sorted(self.columns), got=sorted(sample.values),
                ),
                sample.name,
            )  # fmt: skip
        if not self.chosen and len(sample.values) > len(self.columns):
            surplus = sorted(sample.values.keys() - self.columns.keys())
            raise _named(
                FormatError(
                    "a sample has a field that the first samples lack; choose the columns with --only", got=surplus[:8]
                ),
                sample.name,
            )


def _named(error: FormatError, sample: str) -> FormatError:
    error.what = f"sample {sample[:200]!r}: {error.what}"
    return error


def _schema(columns: Mapping[str, ForeignColumn]) -> Schema:
    return Schema(tuple(Column(name, column.type, column.encoding) for name, column in columns.items()))


def _finish(builder: VirtualShardBuilder, unit: Unit | None) -> VirtualShard:
    if unit is None:
        return builder.finish()
    return replace(builder.finish(), start=unit.start, end=unit.end)


def _entry(shard: VirtualShard, file: SourceFile, key: str, offset: int) -> ShardEntry:
    source = SourceRange(file=file, start=shard.start, end=shard.end, tail_key=key, tail_offset=offset)
    return ShardEntry(
        key=source.name,
        size=shard.size,
        num_samples=shard.num_samples,
        tail_start=shard.tail_start,
        digest=shard.digest,
        chunk_digests=shard.chunk_digests,
        payload_bytes=shard.payload_bytes,
        source=source,
    )


def _name(file: SourceFile, shard: VirtualShard) -> str:
    """Returns what stands for the digest of a shard without digests: it differs if the object or the tail does."""
    place = [file.url, file.key, file.size, file.etag, shard.start, shard.end]
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(place) + shard.tail)


class _Tails:
    """Packs tails into objects of about 1 MiB."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._data = bytearray()
        self.keys: list[str] = []

    def add(self, tail: bytes) -> tuple[int, int]:
        """Adds a tail; returns the number of its object and its position there."""
        if self._data and len(self._data) + len(tail) > _TAIL_OBJECT_BYTES:
            self.flush()
        place = len(self.keys), len(self._data)
        self._data += tail
        return place

    def flush(self) -> None:
        """Uploads the object that is being packed."""
        if self._data:
            data = bytes(self._data)
            self._data.clear()
            key = tail_key(data)
            self._upload(key, data)
            self.keys.append(key)
