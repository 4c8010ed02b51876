"""Reads the chunks of LitData (Lightning) in place.

A source has an ``index.json`` and chunks. A chunk is little-endian::

    u32 n, u32 offsets[n + 1]    offsets of the items
    items                        u32 size of each leaf, then the leaves

An item is a tree of dicts, lists and tuples, whose leaves are columns: ``{"a": {"b": [x, y]}}`` has the columns
``a.b.0`` and ``a.b.1``. Chunks of tokens (``TokensLoader``) have items without sizes.

Compressed chunks are read whole, and the walk reads the decompressed bytes. ``SourceObject.info["compression"]`` is
``"zstd"`` (the whole file), ``"litdata/batch"`` or ``"litdata/sample"``
(`concurrent_loader.storage.shards.format.litdata_frames`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from concurrent_loader.storage.adopt.formats.foreign_values import (
    IMPORT_INSTEAD,
    MAX_INDEX_BYTES,
    column_names,
    decode_index,
    parse_value,
    parsed_column,
    safe_key,
)
from concurrent_loader.storage.adopt.formats.litdata_tree import leaf_names
from concurrent_loader.storage.adopt.formats.litdata_values import source_value
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

__all__ = ["LitDataFormat"]

_INDEX = "index.json"
_ARROW_FOOTER = b"LDARW01\0"
_LOADERS = ("PyTreeLoader", "TokensLoader")
_LEVELS = {None: "zstd", "": "zstd", "chunk": "zstd", "batch": "litdata/batch", "sample": "litdata/sample"}
_TOKENS = "tokens"


class _Chunk(msgspec.Struct):
    filename: str
    chunk_size: int
    chunk_bytes: int
    dim: int | None = None


class _Config(msgspec.Struct):
    data_format: list[str]
    data_spec: str | None = None
    compression: str | None = None
    compression_level: str | None = None
    encryption: dict[str, Any] | None = None
    item_loader: str = "PyTreeLoader"
    format: str = "litdata"


class _Index(msgspec.Struct):
    chunks: list[_Chunk]
    config: _Config


class LitDataFormat:
    """Finds the samples of LitData chunks, and the place of each value.

    Args:
        block_size: Number of tokens of a sample, for chunks that ``TokensLoader`` reads. By default each item that was
            written is a sample, of its own length. As in LitData, tokens after the last whole block of a chunk are left
            out.

    Example:
        >>> from concurrent_loader.storage.adopt.formats.litdata import LitDataFormat
        >>> LitDataFormat().parse("weight", "float64", memoryview(bytes(8)))
        0.0
    """

    name = "litdata"

    def __init__(self, *, block_size: int | None = None) -> None:
        if block_size is not None and block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        self._block_size = block_size

    def objects(self, entries: Sequence[ObjectEntry], small: SmallObjects) -> list[SourceObject]:
        """Returns the chunks in the order of the index.

        Raises:
            FormatError: There is no index, it is invalid, a chunk is missing, or the data cannot be read in place.
        """
        data = small.get(_INDEX, max_bytes=MAX_INDEX_BYTES)
        if data is None:
            raise FormatError("there is no index.json: name the folder that litdata.optimize wrote", key=_INDEX)
        index = decode_index(data, _Index, key=_INDEX)
        config = index.config
        compression = _compression(config)
        info: dict[str, Any] = {"loader": config.item_loader, "leaves": _leaves(config)}
        by_key = {entry.key: entry for entry in entries}
        found = []
        for chunk in index.chunks:
            if not chunk.chunk_size:
                continue
            key = safe_key("", chunk.filename, index=_INDEX)
            entry = by_key.get(key)
            if entry is None:
                raise FormatError("a chunk of the index is missing", key=key)
            facts = info | {"samples": chunk.chunk_size, "tokens": chunk.dim}
            if compression:
                facts["compression"] = compression
            if compression == "zstd":
                # An upper bound: older releases count the items only, newer ones the whole chunk.
                facts["raw_bytes"] = chunk.chunk_bytes + 4 * (chunk.chunk_size + 2)
            found.append(SourceObject(entry=entry, info=facts))
        return found

    def columns(self, source: SourceObject, reader: ObjectReader) -> dict[str, ForeignColumn]:
        """Derives the columns from the index, and from the first samples where the index leaves the type open."""
        return derive_columns(self._values(source), self._samples(source, reader), reader)

    def retype(self, source: SourceObject, column: str, type_: str) -> ForeignColumn:
        """Returns the column that a user asked for with ``--column NAME=TYPE``.

        Raises:
            FormatError: The values cannot be read as this type.
        """
        return self._values(source)[column].retype(column, type_)

    def walk(
        self, source: SourceObject, reader: ObjectReader, columns: Mapping[str, ForeignColumn]
    ) -> Iterator[FoundSample]:
        """Yields the samples of one chunk.

        Raises:
            FormatError: The chunk is damaged, or does not fit the index or the columns.
        """
        yield from walk_columns(self._values(source), self._samples(source, reader), reader, columns)

    def parse(self, column: str, type_: str, data: memoryview) -> object:
        """Returns a number, bool, small array or text; all are stored like in our own shards."""
        return parse_value(type_, data)

    def _values(self, source: SourceObject) -> dict[str, SourceValue]:
        key = source.entry.key
        leaves = source.info["leaves"]
        columns = column_names([name for name, _ in leaves], key=_INDEX)
        values = {columns[name]: source_value(form, key=_INDEX, column=columns[name]) for name, form in leaves}
        if source.info["loader"] != "TokensLoader":
            return values
        (value,) = values.values() if len(values) == 1 else (None,)
        if value is None or value.kind is not ValueKind.FLAT:
            raise FormatError(
                "chunks of tokens must have one leaf, an array of one dimension", key=key,
                got=", ".join(form for _, form in leaves)[:200],
            )  # fmt: skip
        if self._block_size is None:
            return {_TOKENS: value}
        type_ = parsed_column(f"{value.type}[{self._block_size}]").type
        return {_TOKENS: SourceValue(value.name, ValueKind.STORED, type=type_)}

    def _samples(self, source: SourceObject, reader: ObjectReader) -> Iterator[LaidOutSample]:
        count = num_samples(reader, source.info["samples"])
        _refuse_arrow(reader, count)
        if source.info["loader"] != "TokensLoader":
            yield from _items(reader, count, len(source.info["leaves"]))
        elif self._block_size is None:
            for start, end in sample_ranges(reader, count, 0):
                yield start, end, [(start, end)]
        else:
            yield from self._blocks(source, reader, count)

    def _blocks(self, source: SourceObject, reader: ObjectReader, count: int) -> Iterator[LaidOutSample]:
        (value,) = self._values(source).values()
        dtype, shape = parsed_column(value.type).dtype, parsed_column(value.type).shape
        assert dtype is not None
        assert shape is not None
        first = 4 * (count + 2)
        num_bytes = reader.size - first
        tokens = source.info["tokens"]
        if tokens is not None and tokens * dtype.itemsize != num_bytes:
            raise FormatError(
                "a chunk does not have the number of tokens that the index says", key=reader.name, expected=tokens,
                got=f"{num_bytes} bytes",
            )  # fmt: skip
        block_bytes = dtype.itemsize * math.prod(shape)
        for start in range(first, reader.size - block_bytes + 1, block_bytes):
            end = start + block_bytes
            yield start, end, [(start, end)]


def _items(reader: ObjectReader, count: int, num_leaves: int) -> Iterator[LaidOutSample]:
    sizes = struct.Struct(f"<{num_leaves}I")
    for index, (start, end) in enumerate(sample_ranges(reader, count, sizes.size)):
        position = start + sizes.size
        ranges = []
        for size in sizes.unpack(reader.read(start, position)):
            ranges.append((position, position + size))
            position += size
        if position != end:
            raise FormatError(
                "the sizes of an item's leaves contradict its own length", key=reader.name, sample=index, start=start,
                end=end, expected=end, got=position,
            )  # fmt: skip
        yield start, end, ranges


def _refuse_arrow(reader: ObjectReader, count: int) -> None:
    """Refuses chunks whose rows are in an Arrow table at the end, with or without a copy in LitData's own form.

    The two copies may differ: optional fields have defaults in one and are null in the other.
    """
    if count and reader.size >= 16 and bytes(reader.read(reader.size - 8, reader.size)) == _ARROW_FOOTER:
        raise FormatError(
            f"a chunk stores its rows as an Arrow table, which cannot be read in place: {IMPORT_INSTEAD}",
            key=reader.name,
        )


def _compression(config: _Config) -> str:
    if config.encryption is not None:
        raise FormatError(f"the chunks are encrypted: decrypt them with LitData, or {IMPORT_INSTEAD}", key=_INDEX)
    if config.item_loader not in _LOADERS:
        hint = "adopt parquet" if config.item_loader == "ParquetLoader" else IMPORT_INSTEAD
        raise FormatError(
            f"chunks of this loader cannot be read in place: {hint}", key=_INDEX, expected="|".join(_LOADERS),
            got=config.item_loader[:80],
        )  # fmt: skip
    if config.format != "litdata":
        raise FormatError("the index describes another format: adopt mds", key=_INDEX, got=config.format[:80])
    if not config.compression:
        return ""
    if config.compression.split(":")[0] != "zstd" or config.compression_level not in _LEVELS:
        raise FormatError(
            f"the chunks have an unknown compression: {IMPORT_INSTEAD}", key=_INDEX, expected="zstd",
            got=(config.compression[:80], config.compression_level),
        )  # fmt: skip
    return _LEVELS[config.compression_level]


def _leaves(config: _Config) -> list[list[str]]:
    names = ["value"] if config.data_spec is None else leaf_names(config.data_spec, key=_INDEX)
    if len(names) != len(config.data_format) or not names:
        raise FormatError(
            "the index has another number of formats than leaves", key=_INDEX, expected=len(names),
            got=len(config.data_format),
        )  # fmt: skip
    leaves = [list(leaf) for leaf in zip(names, config.data_format, strict=True)]
    columns = column_names(names, key=_INDEX)
    for name, form in leaves:  # refuses pickles before anything is read
        source_value(form, key=_INDEX, column=columns[name])
    return leaves
