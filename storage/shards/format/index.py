"""Reads a shard: the verified tail locates every value, and holds the small values itself. No I/O.

A reader fetches the tail (everything after the payload) in one range and parses it once. Then every sample, every field
and every fixed column is one range or one array. All sizes are checked against the file's size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import CorruptData, FormatError, SchemaError
from concurrent_loader.storage.ranges import ByteRange
from concurrent_loader.storage.shards.format.layout import (
    FOOTER_BYTES,
    HEADER_BYTES,
    VIRTUAL_VERSION,
    Block,
    Descriptor,
    Footer,
    check_digest,
    padded,
    parse_descriptor,
    parse_footer,
    parse_header,
)
from concurrent_loader.storage.shards.format.nulls import masked, parse_validity
from concurrent_loader.storage.shards.format.schema import Column, ColumnKind, Schema
from concurrent_loader.storage.shards.format.small_column import SmallColumn
from concurrent_loader.storage.stores.objects import Buffer

__all__ = ["ShardIndex", "verify_shard"]

_U64 = np.dtype("<u8")
_U64s = npt.NDArray[np.uint64]


class ShardIndex:
    """The contents of a shard and their places. Rows count from 0 within the shard.

    `parse` creates an index. The index may keep a view of the tail's memory, so the caller must not change it.

    Thread-safety: Immutable.

    Attributes:
        schema: Columns of the shard. Only those with a null are optional.
        num_samples: Number of samples in the shard.
        tail_start: Position at which the payload and its padding end.
        size: Size of the file in bytes.
        shard: Name of the shard for errors.
        has_digests: Whether payload values have digests. Only a virtual shard may be without, if it was adopted by its
            headers only.
        is_virtual: Whether the payload is a range of an adopted object, in which other bytes lie between the values.
    """

    __slots__ = (
        "_blocks",
        "_digests",
        "_ends",
        "_fixed",
        "_position",
        "_small",
        "_starts",
        "_valid",
        "has_digests",
        "is_virtual",
        "num_samples",
        "schema",
        "shard",
        "size",
        "tail_start",
    )

    def __init__(self, descriptor: Descriptor, footer: Footer, tail: memoryview, shard: str | None) -> None:
        self.schema: Schema = descriptor.schema
        self.num_samples: int = footer.num_samples
        self.tail_start: int = footer.tail_start
        self.size: int = footer.size
        self.shard: str | None = shard
        self.is_virtual: bool = footer.version == VIRTUAL_VERSION
        self.has_digests: bool = not self.schema.payload or descriptor.block("payload_digests") is not None
        self._blocks = {(block.kind, block.column): block for block in descriptor.blocks}
        self._position = {column.name: place for place, column in enumerate(self.schema.payload)}
        data = {key: self._block_data(block, tail) for key, block in self._blocks.items()}
        self._valid = {
            name: parse_validity(block, self.num_samples, shard=shard, column=name)
            for (kind, name), block in data.items()
            if kind == "validity"
        }
        self._fixed = {column.name: self._read_fixed(column, data) for column in self.schema.fixed}
        self._small = {column.name: self._read_small(column, data) for column in self.schema.small}
        self._starts, self._ends, self._digests = self._read_payload_index(data)
        for column in self.schema.payload:
            nulls = slice(0) if (valid := self.valid(column.name)) is None else ~valid
            if (self.payload_starts(column.name)[nulls] != self.payload_ends(column.name)[nulls]).any():
                raise FormatError("a null has bytes", shard=shard, column=column.name)

    @classmethod
    def parse(cls, tail: Buffer, *, tail_start: int, size: int, shard: str | None = None) -> ShardIndex:
        """Verifies and parses the tail of a shard, with a few array operations for all samples.

        Args:
            tail: Bytes from ``tail_start`` to the end of the file.
            tail_start: Position from the manifest or from `parse_footer`.
            size: Size of the whole file in bytes.
            shard: Key of the shard, for errors.

        Raises:
            DigestMismatch: Bytes of the tail are damaged.
            FormatError: The bytes are not the tail of a valid shard of this version.
        """
        if len(tail) != size - tail_start or len(tail) < FOOTER_BYTES:
            raise FormatError("the tail has the wrong length", shard=shard, expected=size - tail_start, got=len(tail))
        aligned = _aligned(tail)
        footer = parse_footer(aligned[-FOOTER_BYTES:], size=size, shard=shard)
        if footer.tail_start != tail_start:
            raise FormatError("the tail starts elsewhere", shard=shard, expected=tail_start, got=footer.tail_start)
        descriptor = aligned[footer.descriptor_start - tail_start : size - FOOTER_BYTES - tail_start]
        check_digest(descriptor, footer.descriptor_digest, "the descriptor's digest disagrees", shard=shard)
        return cls(parse_descriptor(descriptor, footer, shard=shard), footer, aligned, shard)

    def __repr__(self) -> str:
        return f"ShardIndex({self.shard!r}, num_samples={self.num_samples}, size={self.size})"

    def valid(self, name: str) -> npt.NDArray[np.bool_] | None:
        """Returns whether each sample has a value, (n,) bool, or None for a column without nulls."""
        return self._valid.get(name)

    # -- payload -------------------------------------------------------------------------------------------------------

    def payload_range(self, row: int, name: str) -> ByteRange:
        """Returns the range of a payload value in the file."""
        place = self._payload_position(name)
        self._check_row(row)
        return ByteRange(int(self._starts[row, place]), int(self._ends[row, place]))

    def sample_range(self, row: int) -> ByteRange:
        """Returns the range of all payload values of a sample, in the schema's order; empty without payload columns."""
        self._check_row(row)
        if not self._position:
            return ByteRange(HEADER_BYTES, HEADER_BYTES)
        return ByteRange(int(self._starts[row].min()), int(self._ends[row].max()))

    def payload_digest(self, row: int, name: str) -> int:
        """Returns the xxh3_64 digest of a payload value's bytes; raises like `payload_digests`."""
        self._check_row(row)
        return int(self.payload_digests(name)[row])

    def payload_starts(self, name: str) -> npt.NDArray[np.uint64]:
        """Returns the first byte of every value of a column: shape (n,), read-only."""
        return self._starts[:, self._payload_position(name)]

    def payload_ends(self, name: str) -> npt.NDArray[np.uint64]:
        """Returns one past the last byte of every value of a column: shape (n,), read-only."""
        return self._ends[:, self._payload_position(name)]

    def payload_digests(self, name: str) -> npt.NDArray[np.uint64]:
        """Returns the digest of every value of a column: shape (n,), read-only.

        Raises:
            FormatError: The shard has no digests.
        """
        place = self._payload_position(name)
        if not self.has_digests:
            raise FormatError("the values have no digests, because only headers were adopted", shard=self.shard)
        return self._digests[:, place]

    def check_value(self, name: str, row: int, data: Buffer) -> None:
        """Compares a payload value's bytes with their digest, if there is one, without decoding them.

        Raises:
            DigestMismatch: The bytes differ from what was written.
        """
        if self.has_digests:
            expected = self.payload_digest(row, name)
            check_digest(data, expected, "a value's digest disagrees", shard=self.shard, sample=row, column=name)

    def decode_value(self, name: str, row: int, data: Buffer) -> Any:
        """Verifies a payload value's bytes and decodes them; None for a null.

        Raises:
            DigestMismatch: The bytes differ from what was written.
            FormatError: They are, but no encoder writes such.
        """
        self.check_value(name, row, data)
        if name in self._valid and not self._valid[name][row]:
            return None
        try:
            return self.schema[name].decode(data)
        except CorruptData as error:
            error.locate(shard=self.shard, sample=row)
            raise

    # -- fixed and small columns ---------------------------------------------------------------------------------------

    def column(self, name: str) -> npt.NDArray[Any] | list[Any]:
        """Returns a whole column: a read-only array (n, *shape) for a fixed column, a new list for a small one.

        Nulls are masked in an array, and None in a list.
        """
        if name in self._fixed:
            return self._fixed[name]
        with self._small_column(name) as column:
            return column.values()

    def values(self, name: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any] | list[Any]:
        """Returns a column's values for given rows, at a cost that does not depend on the size of the shard.

        Args:
            name: Name of a fixed or small column.
            rows: (n,) int64: row numbers in any order.

        Returns:
            An array (n, *shape) for a fixed column, a list of n values for a small one. Nulls are as in `column`.
        """
        if name in self._fixed:
            return self._fixed[name][rows]
        with self._small_column(name) as column:
            return column.values(rows)

    def encoded(self, name: str, rows: npt.NDArray[np.int64]) -> Sequence[bytes | memoryview]:
        """Returns the UTF-8 text of a small column's values for given rows; a null has no bytes."""
        with self._small_column(name) as column:
            return column.encoded(rows)

    def value(self, name: str, row: int) -> Any:
        """Returns one value of a fixed column (a Python number or a read-only array) or of a small column, or None."""
        self._check_row(row)
        if name in self._valid and not self._valid[name][row]:
            return None
        if name in self._fixed:
            values = self._fixed[name]
            return values[row].item() if values.ndim == 1 else np.ma.getdata(values)[row]
        with self._small_column(name) as column:
            return column.value(row)

    def column_block(self, name: str) -> ByteRange:
        """Returns the range of a fixed or small column in the file, without padding."""
        column = self.schema[name]
        if column.kind is ColumnKind.PAYLOAD:
            raise SchemaError("a payload column has no block", column=name, got=column.type)
        block = self._blocks[column.kind.value, name]
        return ByteRange(block.start, block.start + block.length)

    # -- decoding of the tail ------------------------------------------------------------------------------------------

    def _block_data(self, block: Block, tail: memoryview) -> memoryview:
        start = block.start - self.tail_start
        stored = tail[start : start + padded(block.length)]
        column = block.column or None
        check_digest(
            stored, block.digest, f"the digest of a {block.kind} block disagrees", shard=self.shard, column=column
        )
        if any(stored[block.length :]):
            raise FormatError("padding is not zero", shard=self.shard, column=column)
        return stored[: block.length]

    def _read_fixed(self, column: Column, data: Mapping[tuple[str, str], memoryview]) -> npt.NDArray[Any]:
        block = data["fixed", column.name]
        dtype, shape = column.dtype, column.shape
        if dtype is None or shape is None:
            raise FormatError("not a fixed-width column", shard=self.shard, column=column.name)
        self._check_length(block, self.num_samples * math.prod(shape) * dtype.itemsize, column.name)
        if dtype.kind == "b" and self.num_samples and np.frombuffer(block, np.uint8).max() > 1:
            raise FormatError("a bool is one byte, 0 or 1", shard=self.shard, column=column.name)
        values = _read_only(np.frombuffer(block, dtype).reshape(self.num_samples, *shape))
        if (valid := self.valid(column.name)) is None:
            return values
        if self.num_samples and np.frombuffer(block, np.uint8).reshape(self.num_samples, -1)[~valid].any():
            raise FormatError("a null is not stored as zeros", shard=self.shard, column=column.name)
        return masked(values, valid)  # type: ignore[no-any-return]

    def _read_small(self, column: Column, data: Mapping[tuple[str, str], memoryview]) -> SmallColumn:
        try:
            return SmallColumn(
                column,
                codec=self._blocks["small", column.name].codec,
                data=data["small", column.name],
                dictionary=data.get(("dictionary", column.name)),
                num_samples=self.num_samples,
                valid=self.valid(column.name),
            )
        except FormatError as error:
            error.locate(shard=self.shard, column=column.name)
            raise

    def _read_payload_index(self, data: Mapping[tuple[str, str], memoryview]) -> tuple[_U64s, _U64s, _U64s]:
        """Returns starts, ends and digests of all payload values, each of shape (n, number of payload columns)."""
        shape = self.num_samples, len(self._position)
        count = self.num_samples * len(self._position)
        ends = np.empty(0, _U64)
        digests = ends
        if self._position:
            for kind in ("payload_ends", "payload_digests")[: 1 + self.has_digests]:
                self._check_length(data[kind, ""], count * _U64.itemsize, None)
            ends = np.frombuffer(data["payload_ends", ""], _U64)
            digests = np.frombuffer(data["payload_digests", ""], _U64) if self.has_digests else np.zeros(count, _U64)
        if self.is_virtual:
            stated = data.get(("payload_starts", ""), memoryview(b""))
            self._check_length(stated, count * _U64.itemsize, None)
            starts = np.frombuffer(stated, _U64)
            self._check_places(starts, ends)
        else:
            starts = np.empty(count, _U64)
            starts[:1] = HEADER_BYTES
            starts[1:] = ends[:-1]
            self._check_contiguous(starts, ends)
        starts, ends, digests = (_read_only(array.reshape(shape)) for array in (starts, ends, digests))
        return starts, ends, digests

    def _check_contiguous(self, starts: _U64s, ends: _U64s) -> None:
        if bool((starts > ends).any()):
            raise FormatError("payload values overlap", shard=self.shard)
        end = int(ends[-1]) if len(ends) else HEADER_BYTES
        if end > self.tail_start or padded(end) != self.tail_start:
            raise FormatError(
                "the payload does not end where the tail starts", shard=self.shard, expected=self.tail_start, got=end
            )

    def _check_places(self, starts: _U64s, ends: _U64s) -> None:
        """Checks the values of a virtual shard, which are anywhere in front of the tail."""
        if bool(((starts < HEADER_BYTES) | (starts > ends) | (ends > self.tail_start)).any()):
            raise FormatError("a payload value is outside the payload", shard=self.shard)

    # -- checks --------------------------------------------------------------------------------------------------------

    def _check_length(self, block: memoryview, expected: int, column: str | None) -> None:
        if len(block) != expected:
            raise FormatError(
                "a block does not have the length of its samples",
                shard=self.shard, column=column, expected=expected, got=len(block),
            )  # fmt: skip

    def _payload_position(self, name: str) -> int:
        try:
            return self._position[name]
        except KeyError:
            raise SchemaError("not a payload column", column=name, got=self.schema[name].type) from None

    @contextmanager
    def _small_column(self, name: str) -> Iterator[SmallColumn]:
        """Gives a small column; an error of the block names the shard."""
        if name not in self._small:
            raise SchemaError("a payload column's values are not in the tail", column=name, got=self.schema[name].type)
        try:
            yield self._small[name]
        except FormatError as error:
            error.locate(shard=self.shard)
            raise

    def _check_row(self, row: int) -> None:
        if not 0 <= row < self.num_samples:
            raise IndexError(f"row {row} of a shard of {self.num_samples} samples")


def verify_shard(data: Buffer, *, shard: str | None = None) -> ShardIndex:
    """Verifies every byte of a whole shard in memory: frame, padding, tail, each value's digest and structure.

    Args:
        data: Bytes of the file, for example a memory map.
        shard: Name of the shard for errors.

    Returns:
        Index of the shard.

    Raises:
        DigestMismatch: Bytes are damaged; the error names sample and column if a single value is concerned.
        FormatError: The bytes are not a valid shard of this version.
    """
    whole = memoryview(data).cast("B")
    parse_header(whole[:HEADER_BYTES], shard=shard)
    footer = parse_footer(whole[-FOOTER_BYTES:], size=len(whole), shard=shard)
    index = ShardIndex.parse(whole[footer.tail_start :], tail_start=footer.tail_start, size=len(whole), shard=shard)
    at = HEADER_BYTES
    for row in range(index.num_samples):
        for column in index.schema.payload:
            at = index.payload_range(row, column.name).end
            index.decode_value(column.name, row, whole[index.payload_range(row, column.name).start : at])
    if not index.is_virtual and any(whole[at : footer.tail_start]):
        raise FormatError("padding is not zero", shard=shard)
    for column in index.schema.small:
        index.column(column.name)
    return index


def _aligned(data: Buffer) -> memoryview:
    """Returns the bytes at an address aligned for every dtype, copied only if necessary."""
    view = memoryview(data).cast("B")
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return view if address % 8 == 0 else memoryview(bytes(view))


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array
