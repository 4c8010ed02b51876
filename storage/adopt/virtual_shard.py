"""Builds virtual shards: the tail and the digests of a range of an adopted object. No I/O but the object's reader."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.storage.adopt.protocol import FoundSample, ObjectReader
from concurrent_loader.storage.errors import FormatError, SchemaError
from concurrent_loader.storage.ranges import ByteRange
from concurrent_loader.storage.shards.format.builder import append_tail, column_blocks, little_endian
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES, HEADER, HEADER_BYTES, VIRTUAL_VERSION, padded
from concurrent_loader.storage.shards.format.schema import Column, ColumnKind, Schema
from concurrent_loader.storage.shards.manifest.shard_table import no_digests
from concurrent_loader.storage.shards.manifest.statistics import Statistics, fixed_facts, payload_facts

__all__ = ["VirtualShard", "VirtualShardBuilder"]

_PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualShard:
    """A finished virtual shard.

    Attributes:
        start: First byte of its range in the object.
        end: One past the last byte.
        size: Size of the assembled shard in bytes.
        num_samples: Number of samples.
        tail_start: Position of the tail in the assembled shard.
        tail: Bytes of the tail.
        payload_bytes: Sum of the lengths of the payload values.
        chunk_digests: xxh3_64 of each 8 MiB of the assembled shard; None for each without digests.
        digest: xxh3_128 of the assembled shard, as 32 hex digits; empty without digests.
        fixed: FIXED columns, as arrays (n, *shape).
        statistics: Statistics of the columns.
    """

    start: int
    end: int
    size: int
    num_samples: int
    tail_start: int
    tail: bytes
    payload_bytes: int
    chunk_digests: tuple[int | None, ...]
    digest: str
    fixed: dict[str, npt.NDArray[Any]]
    statistics: Statistics


class VirtualShardBuilder:
    """Collects consecutive samples of one object.

    Args:
        schema: Columns, with the encodings of the object's values.
        reader: Bytes of the object.
        parse: Function that turns the bytes of a FIXED or SMALL value into the value, given column, type and bytes.
        is_whole: Whether the range is the whole object, and not only the samples.
        digests: Whether to read the payload, for digests and to check that it can be decoded.
    """

    def __init__(
        self, schema: Schema, reader: ObjectReader, parse: Any, *, is_whole: bool = False, digests: bool = True
    ) -> None:
        self._is_whole = is_whole
        self._has_digests = digests
        self._schema = schema
        self._reader = reader
        self._parse = parse
        self._payload_names = [column.name for column in schema.payload]
        self._inline = [column for column in schema if column.kind is not ColumnKind.PAYLOAD]
        self._clear()

    def _clear(self) -> None:
        self.start = self.end = 0
        self.num_samples = 0
        self._starts, self._ends, self._digests = array("Q"), array("Q"), array("Q")
        self._fixed: dict[str, bytearray] = {column.name: bytearray() for column in self._schema.fixed}
        self._small: dict[str, list[bytes]] = {column.name: [] for column in self._schema.small}
        self._small_bytes = 0

    @property
    def tail_bytes(self) -> int:
        """Estimated size of the tail in bytes."""
        index = (24 if self._has_digests else 16) * self.num_samples * len(self._payload_names)
        fixed = sum(map(len, self._fixed.values()))
        return index + fixed + self._small_bytes + 4 * self.num_samples * len(self._small) + 1024

    def add(self, sample: FoundSample, columns: Mapping[str, Column]) -> None:
        """Adds the next sample.

        Raises:
            FormatError: A value does not fit its column; the error names the sample.
        """
        values = sample.values
        stored = [(column, self._encode(column, values[column.name])) for column in self._inline]
        places = []
        for name in self._payload_names:
            place = values[name]
            if not isinstance(place, ByteRange) or not sample.start <= place.start <= place.end <= sample.end:
                raise FormatError("a payload value must be a range of its sample", column=name)
            places.append((place, self._check(columns[name], place) if self._has_digests else 0))
        if not self.num_samples and not self._is_whole:
            self.start = sample.start
        self.end = self._reader.size if self._is_whole else sample.end
        shift = HEADER_BYTES - self.start
        for place, digest in places:
            self._starts.append(place.start + shift)
            self._ends.append(place.end + shift)
            self._digests.append(digest)
        for column, data in stored:
            if column.kind is ColumnKind.FIXED:
                self._fixed[column.name] += data
            else:
                self._small[column.name].append(data)
                self._small_bytes += len(data)
        self.num_samples += 1

    def finish(self) -> VirtualShard:
        """Returns the shard of the samples so far, and starts the next one."""
        length = self.end - self.start
        tail_start = padded(HEADER_BYTES + length)
        tail = bytearray()
        size = append_tail(
            tail, self._schema, self.num_samples, self._blocks(), tail_start=tail_start, version=VIRTUAL_VERSION
        )
        chunk_digests: tuple[int | None, ...] = no_digests(size)
        digest = ""
        if self._has_digests:
            hashed = _FileHash()
            hashed.update(HEADER)
            for start in range(self.start, self.end, _PIECE_BYTES):
                hashed.update(self._reader.read(start, min(start + _PIECE_BYTES, self.end)))
            hashed.update(bytes(tail_start - HEADER_BYTES - length))
            hashed.update(tail)
            chunk_digests, digest = hashed.chunk_digests(), hashed.digest()
        lengths = (np.array(self._ends, np.int64) - np.array(self._starts, np.int64)).reshape(self.num_samples, -1)
        fixed = {
            column.name: np.frombuffer(bytes(self._fixed[column.name]), column.dtype).reshape(
                self.num_samples, *(column.shape or ())
            )
            for column in self._schema.fixed
        }
        statistics = {name: fixed_facts(values) for name, values in fixed.items()}
        statistics |= {name: payload_facts(lengths[:, at]) for at, name in enumerate(self._payload_names)}
        shard = VirtualShard(
            start=self.start,
            end=self.end,
            size=size,
            num_samples=self.num_samples,
            tail_start=tail_start,
            tail=bytes(tail),
            payload_bytes=int(lengths.sum()),
            chunk_digests=chunk_digests,
            digest=digest,
            fixed=fixed,
            statistics=statistics,
        )
        self._clear()
        return shard

    def _blocks(self) -> Any:
        yield from column_blocks(self._fixed, self._small)
        if self._payload_names:
            yield "payload_starts", "", "raw", little_endian(self._starts)
            yield "payload_ends", "", "raw", little_endian(self._ends)
            if self._has_digests:
                yield "payload_digests", "", "raw", little_endian(self._digests)

    def _encode(self, column: Column, value: object) -> bytes:
        try:
            if isinstance(value, ByteRange):
                value = self._parse(column.name, column.type, self._reader.read(value.start, value.end))
            return column.encode(value)
        except (ValueError, SchemaError) as error:
            raise FormatError(
                f"a value does not fit its column: {error}; choose another type with --column {column.name}=TYPE",
                column=column.name,
            ) from error

    def _check(self, column: Column, place: ByteRange) -> int:
        """Returns the digest of a payload value, after a check that it can be decoded."""
        if len(place) <= _PIECE_BYTES:
            data = self._reader.read(place.start, place.end)
            column.decode(data)
            self._check_type(column, data)
            return xxhash.xxh3_64_intdigest(data)
        # A larger value is not held in memory as a whole: the loader checks it when it decodes it.
        hashed = xxhash.xxh3_64()
        for start in range(place.start, place.end, _PIECE_BYTES):
            data = self._reader.read(start, min(start + _PIECE_BYTES, place.end))
            if start == place.start:
                self._check_type(column, data)
            hashed.update(data)
        return hashed.intdigest()

    def _check_type(self, column: Column, data: bytes | memoryview) -> None:
        """Checks that an image or other file begins as its column's type says; decoding would end the training."""
        if column.dtype is None and not column.encoding:
            try:
                column.pieces(data)
            except SchemaError as error:
                raise FormatError(
                    f"{error.what}; choose another type with --column {column.name}=TYPE, such as image or bytes",
                    column=column.name, expected=column.type,
                ) from error  # fmt: skip


class _FileHash:
    """The digests of a file that arrives in pieces."""

    def __init__(self) -> None:
        self._whole = xxhash.xxh3_128()
        self._chunk = xxhash.xxh3_64()
        self._chunks: list[int] = []
        self._in_chunk = 0

    def update(self, data: bytes | bytearray | memoryview) -> None:
        self._whole.update(data)
        view = memoryview(data)
        while len(view):
            piece = view[: CHUNK_BYTES - self._in_chunk]
            self._chunk.update(piece)
            self._in_chunk += len(piece)
            if self._in_chunk == CHUNK_BYTES:
                self._end_chunk()
            view = view[len(piece) :]

    def _end_chunk(self) -> None:
        self._chunks.append(self._chunk.intdigest())
        self._chunk.reset()
        self._in_chunk = 0

    def chunk_digests(self) -> tuple[int, ...]:
        if self._in_chunk:
            self._end_chunk()
        return tuple(self._chunks)

    def digest(self) -> str:
        return self._whole.hexdigest()
