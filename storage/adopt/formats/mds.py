"""Reads MDS, the format of MosaicML Streaming, in place.

A source has an ``index.json`` (version 2) and shards. A shard is little-endian::

    u32 n, u32 offsets[n + 1]    offsets of the samples
    header                       JSON with the names, encodings and sizes of the columns
    samples                      u32 per column without a fixed size, then the values, in the order of the columns

A compressed shard (``shard.00000.mds.zstd``) is such a file in one compressed piece. The walk reads the decompressed
bytes. ``SourceObject.info`` has the name of the algorithm (``compression``), the length of the decompressed bytes
(``raw_bytes``), and the hashes of the object that the index states (``hashes``).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from concurrent_loader.storage.adopt.formats.foreign_values import (
    IMPORT_INSTEAD,
    MAX_INDEX_BYTES,
    array_type,
    column_names,
    decode_index,
    parse_value,
    safe_key,
)
from concurrent_loader.storage.adopt.formats.offset_table import num_samples, sample_ranges
from concurrent_loader.storage.adopt.formats.source_values import (
    LaidOutSample,
    SourceValue,
    ValueKind,
    derive_columns,
    walk_columns,
)
from concurrent_loader.storage.adopt.protocol import (
    ForeignColumn,
    FoundSample,
    ObjectReader,
    SmallObjects,
    SourceObject,
)
from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.listing import ObjectEntry
from concurrent_loader.storage.shards.format.array_codecs import MAX_DIMS

__all__ = ["MdsFormat"]

_INDEX = "index.json"
_COMPRESSIONS = ("br", "bz2", "gz", "snappy", "zstd")
_MAX_HEADER_BYTES = 1 << 20
_SPLITS = frozenset({"train", "training", "val", "valid", "validation", "dev", "eval", "test", "testing"})


class _File(msgspec.Struct):
    basename: str
    bytes: int
    hashes: dict[str, str] = {}


class _Columns(msgspec.Struct):
    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[int | None]


class _Shard(_Columns):
    version: int
    format: str
    samples: int
    raw_data: _File
    zip_data: _File | None = None
    compression: str | None = None


class _Index(msgspec.Struct):
    version: int
    shards: list[_Shard]


class MdsFormat:
    """Finds the samples of MDS shards, and the place of each value.

    Example:
        >>> from concurrent_loader.storage.adopt.formats.mds import MdsFormat
        >>> MdsFormat().parse("label", "int64", memoryview((7).to_bytes(8, "little")))
        7
    """

    name = "mds"

    def objects(self, entries: Sequence[ObjectEntry], small: SmallObjects) -> list[SourceObject]:
        """Returns the shards in the order of the index; without an index at the top, those of all folders in order.

        Raises:
            FormatError: There is no index, it is invalid, or a shard is missing or has another size.
        """
        by_key = {entry.key: entry for entry in entries}
        found: list[SourceObject] = []
        for key in _index_keys(by_key):
            data = small.get(key, max_bytes=MAX_INDEX_BYTES)
            if data is None:
                raise FormatError("the index disappeared after the objects were listed", key=key)
            index = decode_index(data, _Index, key=key)
            if index.version != 2:
                raise FormatError("the index has another version", key=key, expected=2, got=index.version)
            for shard in filter(_has_samples, index.shards):
                source = _source_object(shard, key, by_key)
                found.append(_with_shared_columns(source, found[0]) if found else source)
        return found

    def columns(self, source: SourceObject, reader: ObjectReader) -> dict[str, ForeignColumn]:
        """Derives the columns from the index, and from the first samples where the index leaves the type open."""
        layout = _Layout(source, reader)
        return derive_columns(layout.encodings, layout.samples(), reader)

    def retype(self, source: SourceObject, column: str, type_: str) -> ForeignColumn:
        """Returns the column that a user asked for with ``--column NAME=TYPE``.

        Raises:
            FormatError: The values cannot be read as this type.
        """
        return _encodings(source)[column].retype(column, type_)

    def walk(
        self, source: SourceObject, reader: ObjectReader, columns: Mapping[str, ForeignColumn]
    ) -> Iterator[FoundSample]:
        """Yields the samples of one shard.

        Raises:
            FormatError: The shard is damaged, or does not fit the index or the columns.
        """
        layout = _Layout(source, reader)
        yield from walk_columns(layout.encodings, layout.samples(), reader, columns)

    def parse(self, column: str, type_: str, data: memoryview) -> object:
        """Returns a number, bool, small array, text or JSON value; all are stored like in our own shards."""
        return parse_value(type_, data)


class _Layout:
    """The structure of one shard, checked against the index."""

    def __init__(self, source: SourceObject, reader: ObjectReader) -> None:
        self.encodings = _encodings(source)
        self._reader = reader
        self._sizes = [encoding.size for encoding in self.encodings.values()]
        self._num_open = self._sizes.count(None)
        self._lengths = struct.Struct(f"<{self._num_open}I")
        self._count = num_samples(reader, source.info["samples"])
        self._check_header(source)

    def _check_header(self, source: SourceObject) -> None:
        start = 4 * (self._count + 2)
        (end,) = struct.unpack("<I", self._reader.read(4, 8))
        if not start <= end <= min(self._reader.size, start + _MAX_HEADER_BYTES):
            raise FormatError(
                "a shard's header has an impossible length", key=self._reader.name,
                expected=f"<= {_MAX_HEADER_BYTES}", got=end - start,
            )  # fmt: skip
        if start == end:
            return
        header = decode_index(bytes(self._reader.read(start, end)), _Columns, key=self._reader.name)
        if _column_rows(header, self._reader.name) != source.info["columns"]:
            raise FormatError("a shard's header has other columns than the index", key=self._reader.name)

    def samples(self) -> Iterator[LaidOutSample]:
        """Yields start and end of each sample, and the ranges of its values."""
        lengths_bytes = self._lengths.size
        min_bytes = lengths_bytes + sum(size for size in self._sizes if size is not None)
        for index, (start, end) in enumerate(sample_ranges(self._reader, self._count, min_bytes)):
            lengths = iter(self._lengths.unpack(self._reader.read(start, start + lengths_bytes)))
            position = start + lengths_bytes
            ranges = []
            for size in self._sizes:
                stop = position + (next(lengths) if size is None else size)
                ranges.append((position, stop))
                position = stop
            if position != end:
                raise FormatError(
                    "the lengths of a sample's values contradict its own length", key=self._reader.name, sample=index,
                    start=start, end=end, expected=end, got=position,
                )  # fmt: skip
            yield start, end, ranges


def _index_keys(by_key: Mapping[str, ObjectEntry]) -> list[str]:
    """Returns the index at the top; without one, the indexes of the folders that several writers wrote."""
    if _INDEX in by_key:
        return [_INDEX]
    nested = sorted(key for key in by_key if key.endswith("/" + _INDEX))
    if not nested:
        raise FormatError("there is no index.json: name the folder that MDSWriter wrote", key=_INDEX)
    # An index above others merges them.
    known = set(nested)
    nested = [key for key in nested if not any(f"{folder}/{_INDEX}" in known for folder in _folders_above(key))]
    splits = sorted(key for key in nested if _SPLITS & set(key.lower().split("/")[:-1]))
    if len(nested) > 1 and splits:
        raise FormatError(
            "the folders are different splits of a dataset: adopt one, such as SOURCE/" + splits[0].rsplit("/", 1)[0],
            got=", ".join(nested)[:200],
        )  # fmt: skip
    return nested


def _folders_above(index: str) -> Iterator[str]:
    """Yields the folders that the folder of an index lies in."""
    folder = index[: -len(_INDEX) - 1]
    while "/" in folder:
        folder = folder.rpartition("/")[0]
        yield folder


def _source_object(shard: _Shard, index: str, by_key: Mapping[str, ObjectEntry]) -> SourceObject:
    folder = index[: -len(_INDEX)]
    if (shard.version, shard.format) != (2, "mds"):
        raise FormatError(
            f"a shard has another format: {IMPORT_INSTEAD}", key=index, expected=(2, "mds"),
            got=(shard.version, shard.format[:80]),
        )  # fmt: skip
    info: dict[str, Any] = {"samples": shard.samples, "columns": _column_rows(shard, index)}
    raw = by_key.get(safe_key(folder, shard.raw_data.basename, index=index))
    if raw is not None and raw.size == shard.raw_data.bytes:
        return SourceObject(entry=raw, info=info | {"hashes": dict(shard.raw_data.hashes)})
    stored = shard.raw_data if shard.zip_data is None else shard.zip_data
    key = safe_key(folder, stored.basename, index=index)
    if key not in by_key:
        raise FormatError("a shard of the index is missing", key=key)
    if by_key[key].size != stored.bytes:
        raise FormatError(
            "a shard has another size than the index says", key=key, expected=stored.bytes, got=by_key[key].size
        )
    compression = (shard.compression or "").split(":")[0]
    if compression not in _COMPRESSIONS:
        raise FormatError("a shard has an unknown compression", key=key, expected="|".join(_COMPRESSIONS),
                          got=compression[:80])  # fmt: skip
    info |= {"compression": compression, "raw_bytes": shard.raw_data.bytes}
    return SourceObject(entry=by_key[key], info=info | {"hashes": dict(stored.hashes)})


def _has_samples(shard: _Shard) -> bool:
    """Returns whether a shard has samples; MDSWriter begins with an empty one if the first sample is large."""
    return shard.samples != 0


def _with_shared_columns(source: SourceObject, first: SourceObject) -> SourceObject:
    """Checks that a shard has the columns of the first one, and shares them, because there may be very many shards."""
    expected, got = first.info["columns"], source.info["columns"]
    if got != expected:
        raise FormatError(
            f"a shard has other columns than the first one: {IMPORT_INSTEAD}", key=source.entry.key,
            expected=", ".join(f"{name}={encoding}" for name, encoding, _ in expected),
            got=", ".join(f"{name}={encoding}" for name, encoding, _ in got),
        )  # fmt: skip
    return replace(source, info={**source.info, "columns": expected})


def _column_rows(columns: _Columns, key: str) -> list[list[Any]]:
    rows = (columns.column_names, columns.column_encodings, columns.column_sizes)
    if len({len(row) for row in rows}) != 1 or not rows[0]:
        raise FormatError("the lists of column names, encodings and sizes have different lengths, or none", key=key,
                          got=[len(row) for row in rows])  # fmt: skip
    return [list(row) for row in zip(*rows, strict=True)]


def _encodings(source: SourceObject) -> dict[str, SourceValue]:
    key = source.entry.key
    rows = source.info["columns"]
    columns = column_names([name for name, _, _ in rows], key=key)
    values = {}
    for name, encoding, size in rows:
        value = values[columns[name]] = _source_value(encoding, key, columns[name])
        if value.size != size:
            raise FormatError(
                "a column's size contradicts its encoding", key=key, column=name, expected=value.size, got=size
            )
    return values


def _source_value(encoding: str, key: str, column: str) -> SourceValue:
    name, _, parameters = encoding.partition(":")
    if name == "pkl":
        raise FormatError(
            "a column is pickled, and loading a pickle runs its code: write the dataset again with other encodings, or "
            + IMPORT_INSTEAD, key=key, column=column, got=encoding,
        )  # fmt: skip
    if name == "ndarray" and parameters:
        return _array(encoding, parameters, key, column)
    value = _ENCODINGS.get(encoding)
    if value is None:
        raise FormatError(
            f"a column has an unknown encoding: {IMPORT_INSTEAD}", key=key, column=column,
            expected="|".join(_ENCODINGS), got=encoding[:80],
        )  # fmt: skip
    return value


def _array(encoding: str, parameters: str, key: str, column: str) -> SourceValue:
    dtype, _, dims = parameters.partition(":")
    shape = tuple(map(int, dims.split(","))) if _SHAPE.fullmatch(dims) else ()
    if dtype not in _ARRAY_DTYPES or (dims and (not shape or len(shape) > MAX_DIMS or 0 in shape)):
        raise FormatError("an array column has an invalid encoding", key=key, column=column, got=encoding[:80])
    if not dims:
        return SourceValue(encoding, ValueKind.ARRAY, type=dtype, header="mds/shaped")
    size = _ARRAY_DTYPES[dtype] * math.prod(shape)
    return SourceValue(encoding, ValueKind.STORED, type=array_type(dtype, shape), size=size)


_SHAPE = re.compile(r"[1-9][0-9]{0,12}(,[1-9][0-9]{0,12}){0,63}")
_ARRAY_DTYPES = {
    name: np.dtype(name).itemsize
    for name in (
        *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    )
}
_ENCODINGS: dict[str, SourceValue] = {
    value.name: value
    for value in (
        *(SourceValue(name, ValueKind.BYTES) for name in ("bytes", "jpeg", "png")),
        *(SourceValue(name, ValueKind.TEXT) for name in ("str", "str_decimal")),
        SourceValue("json", ValueKind.JSON),
        SourceValue("int", ValueKind.STORED, type="int64", size=8),
        *(SourceValue(name, ValueKind.STORED, type=name, size=size) for name, size in _ARRAY_DTYPES.items()),
        SourceValue("str_int", ValueKind.INTEGER_TEXT),
        SourceValue("str_float", ValueKind.FLOAT_TEXT),
        SourceValue("ndarray", ValueKind.ARRAY, header="mds/ndarray"),
        SourceValue("pil", ValueKind.IMAGE, header="pil"),
        *(SourceValue(name, ValueKind.LIST) for name in ("list[pil]", "list[jpeg]", "list[png]")),
        *(SourceValue(name, ValueKind.LIST) for name in ("jpeg_array", "jpegarray")),
    )
}
