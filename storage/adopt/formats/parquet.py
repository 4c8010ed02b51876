"""Reads Parquet files in place, such as those of Hugging Face datasets: each row group is one virtual shard.

Values of Parquet are compressed in pages of many rows, so no value is a range of the file. The payload columns of a row
group are fetched with one request and decoded by pyarrow; all other columns are in the index.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, repeat
from typing import Any

import numpy as np

from concurrent_loader.storage.adopt.formats.parquet_columns import (
    derive_type,
    features_of,
    image_type,
    index_values,
    payload_type,
)
from concurrent_loader.storage.adopt.protocol import (
    ForeignColumn,
    FoundSample,
    ObjectReader,
    SmallObjects,
    SourceObject,
    Unit,
)
from concurrent_loader.storage.adopt.range_reader import MemoryLimit
from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.listing import ObjectEntry
from concurrent_loader.storage.ranges import ByteRange
from concurrent_loader.storage.shards.format.parquet_arrays import byte_values
from concurrent_loader.storage.shards.format.parquet_file import (
    FOOTER_GUESS_BYTES,
    MAX_ROW_GROUP_BYTES,
    ParquetFooter,
    RowGroup,
    footer_bytes,
    load_pyarrow,
    too_large,
)
from concurrent_loader.storage.shards.format.parquet_payload import PayloadField, in_row, read_payload
from concurrent_loader.storage.shards.format.schema import Column, ColumnKind
from concurrent_loader.storage.shards.format.transforms import parquet_transform

__all__ = ["Parquet"]

_SUFFIXES = (".parquet", ".parq", ".pq")
_COLUMN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SPLIT = re.compile(r"(?:.*/)?([A-Za-z0-9_.]+)-\d{5}-of-\d{5}[^/]*")
_SEEN_ROWS = 64
_HEAD_BYTES = 64
_MAX_GAP_BYTES = 256 << 10
_COPIES = 4  # compressed bytes, and those bytes again as a page, as an Arrow array, and as payload
_DECODING_BYTES = 96 << 20
_DECODING = MemoryLimit(_DECODING_BYTES)
"""Memory of the row groups that all scans of this process decode at the same time."""


class Parquet:
    """The format of ``*.parquet`` files; other objects are ignored.

    Needs pyarrow, the extra ``parquet``.

    Example:
        >>> from concurrent_loader.storage.adopt.formats.parquet import Parquet
        >>> from concurrent_loader.storage.adopt.protocol import ForeignColumn
        >>> Parquet().transform({"text": ForeignColumn(type="bytes")})
        'parquet1:[["text","","bytes"]]'
    """

    name = "parquet"

    def objects(self, entries: Sequence[ObjectEntry], small: SmallObjects) -> list[SourceObject]:
        """Returns the Parquet files; see `ForeignFormat`.

        Raises:
            FormatError: There is none, or they belong to several splits.
        """
        load_pyarrow()
        files = [entry for entry in entries if entry.key.lower().endswith(_SUFFIXES)]
        if not files:
            raise FormatError(
                "the source has no Parquet file", expected="*.parquet", got=[entry.key for entry in entries[:8]]
            )
        splits = {split[1]: entry.key for entry in files if (split := _SPLIT.fullmatch(entry.key))}
        if len(splits) > 1:
            example = next(iter(splits.values()))
            raise FormatError(
                "the files belong to several splits; choose one with --match (match=...), such as "
                f"{example[: example.rindex('-of-') - 5] + '*'!r}, or adopt one after the other with --append",
                got=sorted(splits)[:8],
            )
        return [SourceObject(entry=entry) for entry in files]

    def columns(self, source: SourceObject, reader: ObjectReader) -> dict[str, ForeignColumn]:
        """Derives the columns from the schema, and the types of images from the first rows; see `ForeignFormat`."""
        footer = _read_footer(reader)
        features = features_of(footer.schema)
        names = footer.schema.names
        if len(set(names)) < len(names):
            raise FormatError("two columns have the same name", key=reader.name, got=names[:16])
        columns = {
            field.name: derive_type(field.name, field.type, features.get(field.name))
            for field in footer.schema
            if _COLUMN_NAME.fullmatch(field.name)
        }
        if not columns:
            raise FormatError(
                "the file has no column whose name can be a column's name", key=reader.name, got=names[:8]
            )
        binary = [name for name, column in columns.items() if column.type == "bytes"]
        for name in binary:
            columns[name] = replace(columns[name], type=_derive_image(footer, reader, name, columns[name].field))
        return columns

    def transform(self, columns: Mapping[str, ForeignColumn]) -> str:
        """Returns the name of the transform, with the payload columns; see `UnitFormat`."""
        return parquet_transform(_fields(columns))

    def max_threads(self, reader: ObjectReader) -> int:
        """Returns how many row groups like the largest one of a file fit into the memory for decoding, at least one."""
        return max(1, _DECODING_BYTES // max(1, _COPIES * _read_footer(reader).largest_group_bytes))

    def retype(self, source: SourceObject, column: str, type_: str) -> ForeignColumn:
        """Returns the column that a user asked for; `walk` checks whether the file's column can be read so.

        Raises:
            SchemaError: The type is invalid.
        """
        return ForeignColumn(type=Column(column, type_).type)

    def walk(
        self, source: SourceObject, reader: ObjectReader, columns: Mapping[str, ForeignColumn]
    ) -> Iterator[FoundSample]:
        """Yields the rows of a Parquet file, row group by row group; see `ForeignFormat`.

        Raises:
            FormatError: The file is damaged, a row group is too large, or a value does not fit its column.
            SchemaError: A column of the file has a type that does not fit.
        """
        footer = _read_footer(reader)
        fields, features = _fields(columns), features_of(footer.schema)
        for name, column in columns.items():
            at = footer.schema.get_field_index(name)
            if at < 0:
                raise FormatError(
                    "the file lacks a column, or has two of its name", column=name, got=footer.schema.names
                )
            kind = footer.schema.field(at).type
            payload_type(name, kind, column)
            classes = derive_type(name, kind, features.get(name)).classes if column.classes else ()
            if classes and classes != column.classes:
                raise FormatError(
                    "the file numbers its classes differently from the first file: adopt it into an index of its own",
                    column=name, expected=column.classes[:5], got=classes[:5],
                )  # fmt: skip
        surplus = {name: None for name in footer.schema.names if name not in columns}
        for number in range(footer.num_row_groups):
            yield from _walk_group(footer, number, reader, columns, fields, surplus)

    def parse(self, column: str, type_: str, data: memoryview) -> object:
        """Raises an error: values in the index are given as values, not as ranges."""
        raise ValueError("a value of a Parquet file is no range of it")


def _fields(columns: Mapping[str, ForeignColumn]) -> list[PayloadField]:
    """Returns the payload columns, in their order."""
    fields = []
    for name, column in columns.items():
        if Column(name, column.type).kind is ColumnKind.PAYLOAD:
            fields.append(PayloadField(name, column.field, column.type if "[" in column.type else "bytes"))
    return fields


def _read_footer(reader: ObjectReader) -> ParquetFooter:
    size = reader.size
    last = reader.read(max(0, size - FOOTER_GUESS_BYTES), size)
    num_bytes = footer_bytes(last, size)
    return ParquetFooter(reader.read(size - num_bytes, size), size)


def _read_chunks(reader: ObjectReader, group: RowGroup) -> dict[ByteRange, memoryview]:
    """Returns the chunks of columns by their place; chunks that are near each other are read at once."""
    runs: list[list[ByteRange]] = []
    for place in sorted(group.chunks):
        if runs and place.start <= runs[-1][-1].end + _MAX_GAP_BYTES:
            runs[-1].append(place)
        else:
            runs.append([place])
    found: dict[ByteRange, memoryview] = {}
    for run in runs:
        start = run[0].start
        data = reader.read(start, max(each.end for each in run))
        found |= {each: data[each.start - start : each.end - start] for each in run}
    return {place: found[place] for place in group.chunks}


def _derive_image(footer: ParquetFooter, reader: ObjectReader, name: str, field: str) -> str:
    path = f"{name}.{field}" if field else name
    for number in range(footer.num_row_groups):
        if not footer.num_rows(number):
            continue
        group = footer.row_group(number, [path])
        for batch in footer.batches(group, [path], list(_read_chunks(reader, group).values())):
            with in_row(number, 0):
                data, offsets = byte_values(batch.column(0).slice(0, _SEEN_ROWS), name, field)
            bounds = offsets.tolist()
            return image_type([bytes(data[at : min(at + _HEAD_BYTES, end)]) for at, end in pairwise(bounds)])
    return "bytes"


def _walk_group(
    footer: ParquetFooter,
    number: int,
    reader: ObjectReader,
    columns: Mapping[str, ForeignColumn],
    fields: Sequence[PayloadField],
    surplus: Mapping[str, Any],
) -> Iterator[FoundSample]:
    num_rows = footer.num_rows(number)
    if not num_rows:
        return
    names = [field.name for field in fields]
    inline = [name for name in columns if name not in names]
    paths = [field.path for field in fields]
    group = footer.row_group(number, [*paths, *inline])
    span = footer.row_group(number, paths).span if fields else ByteRange(0, 0)
    if len(span) > MAX_ROW_GROUP_BYTES:
        raise too_large(number, None, f"<= {MAX_ROW_GROUP_BYTES} bytes", len(span))
    with _DECODING.hold(_COPIES * group.num_bytes):
        chunks = _read_chunks(reader, group)
        rows = _index_rows(footer, number, chunks, columns, inline) if inline else repeat({})
        payload, lengths = bytearray(), np.empty((num_rows, 0), np.int64)
        if fields:
            own = footer.row_group(number, paths)
            payload, lengths = read_payload(footer, own, fields, [chunks[at] for at in own.chunks], MAX_ROW_GROUP_BYTES)
        unit = Unit(start=span.start, end=span.end, payload=memoryview(payload).toreadonly(), num_samples=num_rows)
        del payload
        at = 0
        for row in range(num_rows):
            values: dict[str, Any] = {**surplus, **next(rows)}
            start = at
            for name, length in zip(names, lengths[row].tolist(), strict=True):
                values[name] = ByteRange(at, at + length)
                at += length
            yield FoundSample(f"row group {number}, row {row}", start, at, values, unit)


def _index_rows(
    footer: ParquetFooter,
    number: int,
    chunks: Mapping[ByteRange, memoryview],
    columns: Mapping[str, ForeignColumn],
    names: list[str],
) -> Iterator[dict[str, Any]]:
    """Yields the values of the columns that go into the index, row by row."""
    group = footer.row_group(number, names)
    first = 0
    for batch in footer.batches(group, names, [chunks[each] for each in group.chunks]):
        with in_row(number, first):
            lists = [index_values(batch.column(batch.schema.get_field_index(name)), name, columns[name].type)
                     for name in names]  # fmt: skip
        for values in zip(*lists, strict=True):
            yield dict(zip(names, values, strict=True))
        first += batch.num_rows
