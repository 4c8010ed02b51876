"""The columns of a dataset: their types, and where a shard stores the values of each type.

Types are strings, which users and manifests write: ``bytes``, ``str``, ``json``, ``jpeg``, ``png``, ``webp``,
``avif``, ``gif``, ``image`` (any of the five), ``image/lossless`` (docs/how-to/lossless.md), ``wav``, ``flac``,
``mp3``, ``opus``, ``audio`` (any of the four), ``mp4``, ``webm``, ``video`` (either), ``bool``, ``int8`` … ``uint64``,
``float16``, ``float32``, ``float64``, arrays of one shape ``float32[3,4]``, arrays of any shape ``float32[...]``. With
``?`` at its end, a type is *optional*: its values may be None.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from concurrent_loader.storage.errors import FormatError, SchemaError
from concurrent_loader.storage.images import COLUMN_FORMATS, FORMATS
from concurrent_loader.storage.media import MEDIA_COLUMNS, MEDIA_FORMATS, is_hidden_column
from concurrent_loader.storage.shards.format.array_codecs import MAX_DIMS, FixedArrayCodec, RaggedArrayCodec
from concurrent_loader.storage.shards.format.foreign_codecs import foreign_codec
from concurrent_loader.storage.shards.format.value_codecs import (
    BoolCodec,
    BytesCodec,
    Codec,
    FloatCodec,
    ImageCodec,
    IntegerCodec,
    JsonCodec,
    MediaCodec,
    StrCodec,
)
from concurrent_loader.storage.stores.objects import Buffer

__all__ = ["MAX_COLUMNS", "MAX_FIXED_VALUE_BYTES", "Column", "ColumnKind", "Schema"]

MAX_COLUMNS = 256
MAX_FIXED_VALUE_BYTES = 1024
"""Larger arrays are payload, so that all labels of a shard stay one small range."""

_SMALL_OFFSET_BYTES = 4
_PAYLOAD_INDEX_BYTES = 16

_MAX_ARRAY_BYTES = 1 << 40
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ARRAY = re.compile(r"([a-z]+[0-9]*)\[([0-9, ]+|\.\.\.)\]")


class ColumnKind(enum.Enum):
    """The place of a column's values in a shard.

    Example:
        >>> from concurrent_loader.storage import Column, ColumnKind
        >>> Column("label", "int64").kind is ColumnKind.FIXED
        True
    """

    PAYLOAD = "payload"
    """Concatenated sample by sample, each value with its range and digest: bytes, images, large or ragged arrays."""
    FIXED = "fixed"
    """One contiguous array per shard: bools, numbers, small arrays of one shape."""
    SMALL = "small"
    """Offsets and data per shard, compressed if that saves space: str, json."""


class _Type(NamedTuple):
    name: str
    kind: ColumnKind
    codec: Codec
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """One field of every sample.

    Attributes:
        name: Name of 1 to 64 characters from ``A-Z a-z 0-9 _ . -``.
        type: Type in canonical form, such as ``"jpeg"``, ``"int64"``, ``"float32[3,4]"``; docs/reference/format.md
            lists them. With ``?`` at its end, values may be None.
        encoding: Encoding of the values in a virtual shard, such as ``"npy"``; empty (default) for the stored form of
            this project.
        kind: Place of the values in a shard.
        dtype: Little-endian dtype of numbers and arrays; None for other types.
        shape: Shape of one value: ``()`` for numbers and bools; None for ragged arrays and for other types.

    Raises:
        SchemaError: The name, the type or the encoding is invalid.

    Example:
        >>> from concurrent_loader.storage import Column
        >>> Column("box", "float32[ 2, 2 ]").type
        'float32[2,2]'
    """

    name: str
    type: str
    encoding: str = ""
    kind: ColumnKind = field(init=False, repr=False, compare=False)
    dtype: np.dtype[Any] | None = field(init=False, repr=False, compare=False)
    shape: tuple[int, ...] | None = field(init=False, repr=False, compare=False)
    _codec: Codec = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise SchemaError(
                "a column's name must have 1 to 64 characters from A-Z a-z 0-9 _ . -", got=str(self.name)[:80]
            )
        if not isinstance(self.type, str):
            raise SchemaError("a column's type must be a string", column=self.name, got=type(self.type).__name__)
        try:
            parsed = _parse_type(self.type)
        except SchemaError as error:
            error.locate(column=self.name)
            raise
        for name, value in zip(("type", "kind", "_codec", "dtype", "shape"), _in_field_order(parsed), strict=True):
            object.__setattr__(self, name, value)
        if self.encoding:
            if parsed.kind is not ColumnKind.PAYLOAD or self.optional:
                raise SchemaError(
                    "only payload values that are not optional may have an encoding", column=self.name, got=self.type
                )
            object.__setattr__(self, "_codec", foreign_codec(self.encoding, parsed.name))

    def __reduce__(self) -> tuple[object, ...]:
        return Column, (self.name, self.type, self.encoding)

    @property
    def optional(self) -> bool:
        """Whether values may be None."""
        return self.type.endswith("?")

    @property
    def base_type(self) -> str:
        """Type of the values that are not None."""
        return self.type.removesuffix("?")

    @property
    def min_tail_bytes(self) -> int:
        """Smallest number of bytes per sample after ``tail_start``: the value, its offset, or its end and digest."""
        if self.kind is ColumnKind.FIXED and self.dtype is not None and self.shape is not None:
            return self.dtype.itemsize * math.prod(self.shape)
        return _SMALL_OFFSET_BYTES if self.kind is ColumnKind.SMALL else _PAYLOAD_INDEX_BYTES

    @property
    def placeholder(self) -> Any:
        """Value for a row that nobody reads: None in an optional column, otherwise as few bytes as the type allows."""
        if self.optional or self.type == "json":
            return None
        if self.dtype is not None:
            return np.zeros((0,) if self.shape is None else self.shape, self.dtype)
        if self.type in COLUMN_FORMATS:
            return FORMATS[COLUMN_FORMATS[self.type][0]].start
        if self.type in MEDIA_COLUMNS:
            return MEDIA_FORMATS[MEDIA_COLUMNS[self.type][0]].start
        return "" if self.type == "str" else b""

    def encode(self, value: object) -> bytes:
        """Returns the stored bytes of a value. None in an optional column is stored as zeros, or as no byte.

        Raises:
            SchemaError: The value does not have this type, or would not be read back equal.
        """
        return b"".join(self.pieces(value))

    def pieces(self, value: object) -> Sequence[Buffer]:
        """Returns the bytes of `encode` in pieces, which may be the value's own memory to avoid a copy.

        Raises:
            SchemaError: The value does not have this type, or would not be read back equal.
        """
        if value is None and self.optional:
            return (bytes(self.min_tail_bytes) if self.kind is ColumnKind.FIXED else b"",)
        try:
            return self._codec.pieces(value)
        except SchemaError as error:
            if value is None and self.base_type != "json":
                error.what = f'{error.what}; only an optional column, such as "{self.type}?", may have None'
            error.locate(column=self.name, expected=self.type)
            raise

    def decode(self, data: Buffer) -> Any:
        """Returns the encoded value; arrays are read-only, and copied only if the memory is not aligned.

        Raises:
            FormatError: The bytes are not a value of this type.
        """
        try:
            return self._codec.decode(data)
        except FormatError as error:
            error.locate(column=self.name)
            raise

    def decode_many(self, data: Iterable[Buffer]) -> list[Any]:
        """Returns encoded values, as `decode` does one by one.

        Raises:
            FormatError: One of them is not a value of this type; the error does not say which one.
        """
        return self._codec.decode_many(data)


def _in_field_order(parsed: _Type) -> tuple[object, ...]:
    return parsed.name, parsed.kind, parsed.codec, parsed.dtype, parsed.shape


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a dataset, in order.

    Raises:
        SchemaError: There is no column, there are more than 256, or two have the same name.

    Example:
        >>> from concurrent_loader.storage import Schema
        >>> schema = Schema.parse({"image": "jpeg", "label": "int64"})
        >>> schema.names, schema["label"].shape
        (('image', 'label'), ())
    """

    columns: tuple[Column, ...]
    payload: tuple[Column, ...] = field(init=False, repr=False, compare=False)
    fixed: tuple[Column, ...] = field(init=False, repr=False, compare=False)
    small: tuple[Column, ...] = field(init=False, repr=False, compare=False)
    _by_name: dict[str, Column] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.columns) <= MAX_COLUMNS:
            raise SchemaError("a schema must have 1 to 256 columns", got=len(self.columns))
        by_name: dict[str, Column] = {}
        for column in self.columns:
            if column.name in by_name:
                raise SchemaError("two columns have the same name", column=column.name)
            by_name[column.name] = column
        object.__setattr__(self, "_by_name", by_name)
        for kind in ColumnKind:
            object.__setattr__(self, kind.value, tuple(column for column in self.columns if column.kind is kind))

    def __reduce__(self) -> tuple[object, ...]:
        return Schema, (self.columns,)

    @classmethod
    def parse(cls, columns: Mapping[str, str]) -> Schema:
        """Creates a schema from names and types, in their order.

        Raises:
            SchemaError: The argument is not a mapping, or a name or type is invalid.
        """
        if not isinstance(columns, Mapping):
            raise SchemaError("columns must be a mapping of names to types", got=type(columns).__name__)
        return cls(tuple(Column(name, type_) for name, type_ in columns.items()))

    def to_dict(self) -> dict[str, str]:
        """Returns the names and canonical types, in their order."""
        return {column.name: column.type for column in self.columns}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in their order."""
        return tuple(self._by_name)

    @property
    def sample_names(self) -> tuple[str, ...]:
        """Names of the columns that samples have unless others are asked for: all but the indexes of videos."""
        return tuple(name for name in self._by_name if not is_hidden_column(name)) or self.names

    def __len__(self) -> int:
        return len(self.columns)

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Column:
        """Returns a column by its name.

        Raises:
            SchemaError: No column has this name.
        """
        try:
            return self._by_name[name]
        except KeyError:
            raise SchemaError("no such column", column=name, expected=", ".join(self.names)) from None

    def check_sample_keys(self, sample: Mapping[str, object]) -> None:
        """Checks that a sample has exactly the columns of the schema.

        Raises:
            SchemaError: Columns are missing or unknown; the error names them.
        """
        if not isinstance(sample, Mapping):
            raise SchemaError(
                "a sample must be a dict of column names to values",
                expected=", ".join(self.names),
                got=type(sample).__name__,
            )
        if sample.keys() == self._by_name.keys():
            return
        missing = [name for name in self.names if name not in sample]
        surplus = [str(name) for name in sample if name not in self._by_name]
        facts = [f"missing {', '.join(missing)}"] if missing else []
        facts += [f"not in the schema: {', '.join(surplus)[:200]}"] if surplus else []
        raise SchemaError(
            "the sample does not have the schema's columns", expected=", ".join(self.names), got="; ".join(facts)
        )


@lru_cache(maxsize=1024)
def _parse_type(text: str) -> _Type:
    name = text.strip()
    if name.endswith("?") and not name[:-1].rstrip().endswith("?"):
        base = _parse_type(name[:-1])
        return base._replace(name=f"{base.name}?")
    if name in _TYPES:
        return _TYPES[name]
    array = _ARRAY.fullmatch(name)
    if array is None or array[1] not in _DTYPES:
        raise SchemaError(
            "unknown column type", expected="bytes, str, json, jpeg, int64, float32[3,4], float32[...] …", got=text[:80]
        )
    return _parse_array_type(_DTYPES[array[1]], array[2])


def _parse_array_type(dtype: np.dtype[Any], dims: str) -> _Type:
    if dims == "...":
        return _Type(f"{dtype.name}[...]", ColumnKind.PAYLOAD, RaggedArrayCodec(dtype), dtype)
    try:
        shape = tuple(int(dim) for dim in dims.split(","))
    except ValueError:
        raise SchemaError("an array's shape must be integers separated by commas", got=dims[:80]) from None
    # No dimension may be zero, so that every sample has at least a byte and a file's size bounds its sample count.
    if len(shape) > MAX_DIMS or min(shape) < 1 or math.prod(shape) * dtype.itemsize > _MAX_ARRAY_BYTES:
        raise SchemaError("an array must have 1 to 32 dimensions of at least 1, and at most 1 TiB", got=dims[:80])
    num_bytes = math.prod(shape) * dtype.itemsize
    kind = ColumnKind.FIXED if num_bytes <= MAX_FIXED_VALUE_BYTES else ColumnKind.PAYLOAD
    name = f"{dtype.name}[{','.join(map(str, shape))}]"
    return _Type(name, kind, FixedArrayCodec(dtype, shape), dtype, shape)


_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}


def _scalar_codec(dtype: np.dtype[Any]) -> Codec:
    if dtype.kind == "b":
        return BoolCodec()
    return FloatCodec(dtype) if dtype.kind == "f" else IntegerCodec(dtype)


# Every type except arrays. A new type is one entry here and one codec; see "Add a column type" in CONTRIBUTING.md.
_TYPES: dict[str, _Type] = {
    parsed.name: parsed
    for parsed in (
        _Type("bytes", ColumnKind.PAYLOAD, BytesCodec()),
        *(_Type(name, ColumnKind.PAYLOAD, ImageCodec(formats)) for name, formats in COLUMN_FORMATS.items()),
        *(_Type(name, ColumnKind.PAYLOAD, MediaCodec(formats)) for name, formats in MEDIA_COLUMNS.items()),
        _Type("str", ColumnKind.SMALL, StrCodec()),
        _Type("json", ColumnKind.SMALL, JsonCodec()),
        *(_Type(name, ColumnKind.FIXED, _scalar_codec(dtype), dtype, ()) for name, dtype in _DTYPES.items()),
    )
}
