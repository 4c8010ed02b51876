"""Builds the bytes of one shard from samples; `concurrent_loader.storage.shards.format.index` reads them. No I/O.

The same samples give the same bytes; compressed columns also need the same zstd library for that.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.storage.errors import SchemaError
from concurrent_loader.storage.shards.format.layout import (
    CHUNK_BYTES,
    FOOTER_BYTES,
    HEADER,
    HEADER_BYTES,
    MAX_SMALL_COLUMN_BYTES,
    NULLS_VERSION,
    VERSION,
    Block,
    Footer,
    encode_descriptor,
    encode_footer,
    pad,
    padded,
)
from concurrent_loader.storage.shards.format.nulls import masked, null_rows, pack_validity
from concurrent_loader.storage.shards.format.schema import Column, ColumnKind, Schema
from concurrent_loader.storage.shards.format.small_column import encode_column
from concurrent_loader.storage.stores.objects import Buffer

__all__ = ["FinishedShard", "ShardBuilder", "TailBlock", "append_tail", "column_blocks", "little_endian"]

TailBlock = tuple[str, str, str, Buffer]
"""Kind, column, codec and data of a block."""


@dataclass(frozen=True, slots=True)
class FinishedShard:
    """The bytes of a shard, and the facts for its manifest.

    Attributes:
        data: Bytes of the file.
        size: Size of the file in bytes.
        num_samples: Number of samples in the shard.
        tail_start: Position at which the payload and its padding end.
        payload_bytes: Sum of the lengths of the payload values.
        chunk_digests: xxh3_64 of each chunk of 8 MiB; the last chunk may be shorter.
        digest: xxh3_128 of the file, as 32 hex digits.
    """

    data: memoryview
    size: int
    num_samples: int
    tail_start: int
    payload_bytes: int
    chunk_digests: tuple[int, ...]
    digest: str

    def tobytes(self) -> bytes:
        """Returns a copy of the file."""
        return bytes(self.data)


class ShardBuilder:
    """Lays out samples in memory; each value is copied once, to its place in the file.

    Thread-safety: Not thread-safe.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._keys = frozenset(schema.names)
        self._num_samples = 0
        self._file = bytearray(HEADER)  # then the payload so far, and after `finish` the rest
        self._payload_bytes = 0
        self._payload_ends = array("Q")
        self._payload_digests = array("Q")
        self._fixed: dict[str, bytearray] = {column.name: bytearray() for column in schema.fixed}
        self._small: dict[str, list[bytes]] = {column.name: [] for column in schema.small}
        self._small_bytes = dict.fromkeys(self._small, 0)
        self._nulls: dict[str, list[int]] = {column.name: [] for column in schema if column.optional}
        # Asked before every sample: what the size does not owe to the lengths of values, once and for each sample.
        num_blocks = len(schema) + len(self._nulls) + 2
        self._base_bytes = HEADER_BYTES + 4 * len(self._small) + 256 * num_blocks + FOOTER_BYTES
        self._row_bytes = sum(column.min_tail_bytes for column in schema)
        self._encoders = [(column.name, column.kind, column.pieces) for column in schema]

    @property
    def schema(self) -> Schema:
        """Columns of every sample."""
        return self._schema

    @property
    def num_samples(self) -> int:
        """Number of samples added so far."""
        return self._num_samples

    @property
    def payload_bytes(self) -> int:
        """Sum of the lengths of the payload values added so far."""
        return self._payload_bytes

    @property
    def estimated_bytes(self) -> int:
        """Upper estimate of the shard's size if it were finished now, before compression."""
        small_bytes = sum(self._small_bytes.values())
        bitmap_bytes = (self._num_samples + 7) // 8 * len(self._nulls)
        return self._base_bytes + self._payload_bytes + small_bytes + bitmap_bytes + self._row_bytes * self._num_samples

    def add(self, sample: Mapping[str, object]) -> None:
        """Adds one sample; an invalid sample leaves the builder unchanged.

        Args:
            sample: Values by column name, one for every column. The builder keeps no reference to them.

        Raises:
            SchemaError: A value is unsuitable; the error names the column, the expected type and the value.
        """
        if not (type(sample) is dict or isinstance(sample, Mapping)) or sample.keys() != self._keys:
            self._schema.check_sample_keys(sample)
        encoded = [(name, kind, encode(sample[name])) for name, kind, encode in self._encoders]
        if self._small:
            self._check_room(encoded)
        if self._is_finished:
            self._file = self._file[: HEADER_BYTES + self._payload_bytes]  # the finished shard keeps its memory
        # No call below can fail.
        for name, kind, pieces in encoded:
            if kind is ColumnKind.PAYLOAD:
                self._add_payload(pieces)
            elif kind is ColumnKind.FIXED:
                self._fixed[name] += pieces[0]
            else:
                self._small[name].append(bytes(pieces[0]))
                self._small_bytes[name] += len(pieces[0])
        for name, rows in self._nulls.items():
            if sample[name] is None:
                rows.append(self._num_samples)
        self._num_samples += 1

    def _add_payload(self, pieces: Sequence[Buffer]) -> None:
        if len(pieces) == 1:
            digest = xxhash.xxh3_64_intdigest(pieces[0])
        else:
            hashed = xxhash.xxh3_64()
            for piece in pieces:
                hashed.update(piece)
            digest = hashed.intdigest()
        for piece in pieces:
            self._file += piece
            self._payload_bytes += len(piece)
        self._payload_ends.append(HEADER_BYTES + self._payload_bytes)
        self._payload_digests.append(digest)

    def extend(
        self,
        fixed: Mapping[str, npt.NDArray[np.uint8]],
        values: Mapping[str, Sequence[bytes]],
        nulls: Mapping[str, Sequence[int]],
        rows: range,
    ) -> None:
        """Adds many samples that are encoded already.

        Args:
            fixed: (n, width) uint8 of each FIXED column.
            values: Bytes of each value of SMALL and PAYLOAD columns, n each.
            nulls: Rows of the nulls of each optional column, ascending.
            rows: Consecutive rows of these columns to add.

        Raises:
            SchemaError: The values of a SMALL column do not fit into one shard; the builder is unchanged.
        """
        chosen = slice(rows.start, rows.stop)
        texts = {name: values[name][chosen] for name in self._small}
        for name, each in texts.items():
            self._check_small(name, sum(map(len, each)))
        if self._is_finished:
            self._file = self._file[: HEADER_BYTES + self._payload_bytes]
        for name, block in self._fixed.items():
            block += fixed[name][chosen].tobytes()
        for name, each in texts.items():
            self._small[name] += each
            self._small_bytes[name] += sum(map(len, each))
        if self._schema.payload:
            columns = [values[column.name][chosen] for column in self._schema.payload]
            payload = columns[0] if len(columns) == 1 else [each for row in zip(*columns, strict=True) for each in row]
            self._payload_digests.extend(map(xxhash.xxh3_64_intdigest, payload))
            ends = np.cumsum(np.fromiter(map(len, payload), np.uint64, len(payload)))
            self._payload_ends.frombytes((ends + np.uint64(HEADER_BYTES + self._payload_bytes)).tobytes())
            self._payload_bytes += int(ends[-1]) if len(ends) else 0
            self._file += b"".join(payload)
        for name, found in self._nulls.items():
            first, last = (bisect_left(nulls[name], row) for row in (rows.start, rows.stop))
            found += [self._num_samples + row - rows.start for row in nulls[name][first:last]]
        self._num_samples += len(rows)

    def extend_fixed(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Adds many samples at once, for a schema that has only fixed columns.

        Args:
            arrays: An array (n, *shape) per column, of the column's dtype in any byte order. Masked rows are nulls.

        Raises:
            SchemaError: Columns, dtypes, shapes or lengths do not fit, or a masked array is for a column that is not
                optional, or masks a part of a row; the builder is unchanged.
        """
        if arrays.keys() != self._fixed.keys() or len(arrays) != len(self._schema.columns):
            raise SchemaError(
                "extend_fixed needs a schema of fixed columns only, and an array for each", got=sorted(arrays)
            )
        num_samples = len(next(iter(arrays.values())))
        for name, values in arrays.items():
            column = self._schema[name]
            expected = (num_samples, *(column.shape or ()))
            if values.dtype.newbyteorder("<") != column.dtype or values.shape != expected:
                raise SchemaError(
                    "an array does not fit its column", column=name,
                    expected=f"{column.dtype}{list(expected)}", got=f"{values.dtype}{list(values.shape)}",
                )  # fmt: skip
            num_masked = int(np.count_nonzero(np.ma.getmaskarray(values)))
            if num_masked and (
                not column.optional or num_masked * len(values) != values.size * int(null_rows(values).sum())
            ):
                raise SchemaError(
                    "only whole values of an optional column may be masked", column=name,
                    expected=f"{column.base_type}?", got=column.type,
                )  # fmt: skip
        for name, values in arrays.items():
            nulls = null_rows(values)
            data = np.ma.getdata(values).astype(values.dtype.newbyteorder("<"), copy=False)
            if nulls.any():
                self._nulls[name] += (self._num_samples + np.flatnonzero(nulls)).tolist()
                data = data.copy()
                data[nulls] = 0
            self._fixed[name] += data.tobytes()
        self._num_samples += num_samples

    def _check_room(self, encoded: Sequence[tuple[str, ColumnKind, Sequence[Buffer]]]) -> None:
        for name, kind, pieces in encoded:
            if kind is ColumnKind.SMALL:
                self._check_small(name, len(pieces[0]))

    def _check_small(self, name: str, num_bytes: int) -> None:
        if self._small_bytes[name] + num_bytes > MAX_SMALL_COLUMN_BYTES:
            expected = f"<= {MAX_SMALL_COLUMN_BYTES}"
            raise SchemaError("the column's values do not fit into one shard", column=name, expected=expected)

    def fixed_values(self, name: str) -> npt.NDArray[Any]:
        """Returns a copy of a fixed column of all samples so far: (n, *shape), masked if the column is optional.

        Raises:
            SchemaError: The column does not exist or is not fixed.
        """
        column = self._schema[name]
        if column.dtype is None or column.shape is None or column.kind is not ColumnKind.FIXED:
            raise SchemaError("not a fixed-width column", column=name, got=column.type)
        values = np.frombuffer(bytes(self._fixed[name]), column.dtype).reshape(self._num_samples, *column.shape)
        if not column.optional:
            return values
        valid = np.ones(self._num_samples, np.bool_)
        valid[self._nulls[name]] = False
        return masked(values, valid)  # type: ignore[no-any-return]

    def finish(self) -> FinishedShard:
        """Returns the finished shard. More samples may be added afterwards, to a copy of the payload."""
        file = self._file[: HEADER_BYTES + self._payload_bytes] if self._is_finished else self._file
        self._file = file
        tail_start = padded(HEADER_BYTES + self._payload_bytes)
        file += pad(self._payload_bytes)
        schema = self._stored_schema()
        version = NULLS_VERSION if any(column.optional for column in schema) else VERSION
        size = append_tail(file, schema, self._num_samples, self._blocks(), tail_start=tail_start, version=version)
        whole = memoryview(file).toreadonly()
        return FinishedShard(
            data=whole,
            size=size,
            num_samples=self._num_samples,
            tail_start=tail_start,
            payload_bytes=self._payload_bytes,
            chunk_digests=tuple(
                xxhash.xxh3_64_intdigest(whole[start : start + CHUNK_BYTES]) for start in range(0, size, CHUNK_BYTES)
            ),
            digest=xxhash.xxh3_128_hexdigest(whole),
        )

    @property
    def _is_finished(self) -> bool:
        return len(self._file) > HEADER_BYTES + self._payload_bytes

    def _blocks(self) -> Iterator[TailBlock]:
        yield from column_blocks(self._fixed, self._small)
        if self._schema.payload:
            yield "payload_ends", "", "raw", little_endian(self._payload_ends)
            yield "payload_digests", "", "raw", little_endian(self._payload_digests)
        for name, rows in self._nulls.items():
            if rows:
                yield "validity", name, "raw", pack_validity(rows, self._num_samples)

    def _stored_schema(self) -> Schema:
        """Returns the schema of the file, in which only columns with a null are optional.

        So a shard without nulls has the bytes that it has in a dataset without optional columns.
        """
        if not self._nulls:
            return self._schema
        return Schema(
            tuple(
                Column(column.name, column.type if self._nulls.get(column.name) else column.base_type)
                for column in self._schema
            )
        )


def column_blocks(fixed: Mapping[str, Buffer], small: Mapping[str, Sequence[bytes]]) -> Iterator[TailBlock]:
    """Yields the blocks of FIXED and SMALL columns, in the order of the file.

    Args:
        fixed: Stored values of each FIXED column.
        small: Encoded values of each SMALL column.
    """
    for name, values in fixed.items():
        yield "fixed", name, "raw", values
    for name, texts in small.items():
        encoded = encode_column(texts)
        if encoded.dictionary is not None:
            yield "dictionary", name, "raw", encoded.dictionary
        yield "small", name, encoded.codec, encoded.data


def append_tail(
    file: bytearray,
    schema: Schema,
    num_samples: int,
    blocks: Iterable[TailBlock],
    *,
    tail_start: int,
    version: int = VERSION,
) -> int:
    """Appends blocks, descriptor and footer.

    Args:
        file: Bytes of the shard so far, or empty to get the tail alone.
        schema: Columns.
        num_samples: Number of samples.
        blocks: Kind, column, codec and data of every block.
        tail_start: Position of the tail in the shard.
        version: Version of the tail.

    Returns:
        Size of the whole shard in bytes.
    """
    base = tail_start - len(file)
    table: list[Block] = []
    for kind, name, codec, data in blocks:
        start = len(file)
        file += data
        file += pad(len(data))
        table.append(Block(kind, name, codec, base + start, len(data), _digest(file, start)))
    start = len(file)
    descriptor = encode_descriptor(schema, num_samples, table)
    file += descriptor
    file += pad(len(descriptor))
    digest = _digest(file, start)
    size = base + len(file) + FOOTER_BYTES
    file += encode_footer(Footer(tail_start, base + start, len(descriptor), digest, num_samples, size, version))
    return size


def little_endian(numbers: array[int]) -> bytes:
    """Returns 64-bit numbers as little-endian bytes."""
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def _digest(file: bytearray, start: int) -> int:
    with memoryview(file) as whole, whole[start:] as part:
        return xxhash.xxh3_64_intdigest(part)
