"""Columns: what the fields of a sample may be, and where in a shard each kind of them lives.

Types are strings, because manifests and users write them: ``bytes``, ``str``, ``json``, ``jpeg``, ``png``, ``webp``,
``avif``, ``gif``, ``image`` (any of the five), ``image/lossless`` (docs/lossless.md), ``bool``, ``int8`` … ``uint64``,
``float16``, ``float32``, ``float64``, arrays of one shape ``float32[3,4]``, arrays of any shape ``float32[...]``.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from storage.errors import FormatError, SchemaError
from storage.shards.arrays import MAX_DIMS, FixedArrayCodec, RaggedArrayCodec
from storage.shards.values import (
    BoolCodec,
    BytesCodec,
    Codec,
    FloatCodec,
    ImageCodec,
    IntegerCodec,
    JsonCodec,
    StrCodec,
)
from storage.stores.protocol import Buffer

__all__ = ["MAX_COLUMNS", "MAX_FIXED_VALUE_BYTES", "Column", "ColumnKind", "Schema"]

MAX_COLUMNS = 256
MAX_FIXED_VALUE_BYTES = 1024
"""Larger arrays are payload: all labels of a shard are one small range only while what is beside them is small."""

_SMALL_OFFSET_BYTES = 4
_PAYLOAD_INDEX_BYTES = 16

_MAX_ARRAY_BYTES = 1 << 40
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ARRAY = re.compile(r"([a-z]+[0-9]*)\[([0-9, ]+|\.\.\.)\]")
_FORMATS = ("jpeg", "png", "webp", "avif", "gif")
_IMAGE_FORMATS = {**{name: (name,) for name in _FORMATS}, "image": _FORMATS, "image/lossless": ("lossless",)}


class ColumnKind(enum.Enum):
    """Where a column's values live in a shard."""

    PAYLOAD = "payload"
    """Concatenated, sample by sample, each with its range and its digest: bytes, images, large or ragged arrays."""
    FIXED = "fixed"
    """One contiguous array for the whole shard: bools, numbers, small arrays of one shape."""
    SMALL = "small"
    """Offsets and data for the whole shard, compressed where that pays: str, json."""


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
        name: 1 to 64 of ``A-Z a-z 0-9 _ . -``.
        type: As in this module's first lines; made canonical (no blanks).
        kind: Where its values live.
        dtype: Little-endian, of numbers and arrays; None for all else.
        shape: Of one value: ``()`` for numbers and bools; None for ragged arrays and for all that is no array.

    Raises:
        SchemaError: The name or the type is none.
    """

    name: str
    type: str
    kind: ColumnKind = field(init=False, repr=False, compare=False)
    dtype: np.dtype[Any] | None = field(init=False, repr=False, compare=False)
    shape: tuple[int, ...] | None = field(init=False, repr=False, compare=False)
    _codec: Codec = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise SchemaError("a column's name has 1 to 64 of A-Z a-z 0-9 _ . -", got=str(self.name)[:80])
        if not isinstance(self.type, str):
            raise SchemaError("a column's type is a string", column=self.name, got=type(self.type).__name__)
        try:
            parsed = _parse_type(self.type)
        except SchemaError as error:
            error.locate(column=self.name)
            raise
        for name, value in zip(("type", "kind", "_codec", "dtype", "shape"), _in_field_order(parsed), strict=True):
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[object, ...]:
        return Column, (self.name, self.type)

    @property
    def min_tail_bytes(self) -> int:
        """Bytes that each sample takes at least behind ``tail_start``: its value, its offset, or its end and digest."""
        if self.kind is ColumnKind.FIXED and self.dtype is not None and self.shape is not None:
            return self.dtype.itemsize * math.prod(self.shape)
        return _SMALL_OFFSET_BYTES if self.kind is ColumnKind.SMALL else _PAYLOAD_INDEX_BYTES

    def encode(self, value: object) -> bytes:
        """Returns the bytes that are stored for a value.

        Raises:
            SchemaError: The value is not of this type, or would not come back as it is; names column, expected, got.
        """
        return b"".join(self.pieces(value))

    def pieces(self, value: object) -> Sequence[Buffer]:
        """Returns what `encode` does, in pieces that may be the value's own memory: no copy of a large array.

        Raises:
            SchemaError: As `encode`.
        """
        try:
            if isinstance(self._codec, BytesCodec | FixedArrayCodec | RaggedArrayCodec):
                return self._codec.pieces(value)
            return (self._codec.encode(value),)
        except SchemaError as error:
            error.locate(column=self.name, expected=self.type)
            raise

    def decode(self, data: Buffer) -> Any:
        """Returns the value that was encoded; arrays are read-only and copied only where memory is not aligned.

        Raises:
            FormatError: No encoder writes such bytes.
        """
        try:
            return self._codec.decode(data)
        except FormatError as error:
            error.locate(column=self.name)
            raise


def _in_field_order(parsed: _Type) -> tuple[object, ...]:
    return parsed.name, parsed.kind, parsed.codec, parsed.dtype, parsed.shape


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a dataset, in order.

    Raises:
        SchemaError: No column, more than 256, or two of one name.
    """

    columns: tuple[Column, ...]
    payload: tuple[Column, ...] = field(init=False, repr=False, compare=False)
    fixed: tuple[Column, ...] = field(init=False, repr=False, compare=False)
    small: tuple[Column, ...] = field(init=False, repr=False, compare=False)
    _by_name: dict[str, Column] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.columns) <= MAX_COLUMNS:
            raise SchemaError("a schema has 1 to 256 columns", got=len(self.columns))
        by_name: dict[str, Column] = {}
        for column in self.columns:
            if column.name in by_name:
                raise SchemaError("two columns have one name", column=column.name)
            by_name[column.name] = column
        object.__setattr__(self, "_by_name", by_name)
        for kind in ColumnKind:
            object.__setattr__(self, kind.value, tuple(column for column in self.columns if column.kind is kind))

    def __reduce__(self) -> tuple[object, ...]:
        return Schema, (self.columns,)

    @classmethod
    def parse(cls, columns: Mapping[str, str]) -> Schema:
        """Makes a schema of names and types, in their order.

        Raises:
            SchemaError: Not a mapping, or columns that cannot be.
        """
        if not isinstance(columns, Mapping):
            raise SchemaError("columns must be a mapping of names to types", got=type(columns).__name__)
        return cls(tuple(Column(name, type_) for name, type_ in columns.items()))

    def to_dict(self) -> dict[str, str]:
        """Returns names and canonical types, in their order."""
        return {column.name: column.type for column in self.columns}

    @property
    def names(self) -> tuple[str, ...]:
        """Names in their order."""
        return tuple(self._by_name)

    def __len__(self) -> int:
        return len(self.columns)

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Column:
        """Returns a column by its name.

        Raises:
            SchemaError: There is none.
        """
        try:
            return self._by_name[name]
        except KeyError:
            raise SchemaError("no such column", column=name, expected=", ".join(self.names)) from None

    def check_sample_keys(self, sample: Mapping[str, object]) -> None:
        """Checks that a sample has a value for every column and for nothing else.

        Raises:
            SchemaError: Names what is missing and what is too much.
        """
        if not isinstance(sample, Mapping):
            raise SchemaError(
                "a sample is a dict: column name to value", expected=", ".join(self.names), got=type(sample).__name__
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
    if name == "bytes":
        return _Type(name, ColumnKind.PAYLOAD, BytesCodec())
    if name in _IMAGE_FORMATS:
        return _Type(name, ColumnKind.PAYLOAD, ImageCodec(_IMAGE_FORMATS[name]))
    if name == "str":
        return _Type(name, ColumnKind.SMALL, StrCodec())
    if name == "json":
        return _Type(name, ColumnKind.SMALL, JsonCodec())
    if name in _DTYPES:
        dtype = _DTYPES[name]
        codec: Codec = BoolCodec() if dtype.kind == "b" else (FloatCodec if dtype.kind == "f" else IntegerCodec)(dtype)
        return _Type(name, ColumnKind.FIXED, codec, dtype, ())
    array = _ARRAY.fullmatch(name)
    if array is None or array[1] not in _DTYPES:
        raise SchemaError(
            "no such column type", expected="bytes, str, json, jpeg, int64, float32[3,4], float32[...] …", got=text[:80]
        )
    return _parse_array_type(_DTYPES[array[1]], array[2])


def _parse_array_type(dtype: np.dtype[Any], dims: str) -> _Type:
    if dims == "...":
        return _Type(f"{dtype.name}[...]", ColumnKind.PAYLOAD, RaggedArrayCodec(dtype), dtype)
    try:
        shape = tuple(int(dim) for dim in dims.split(","))
    except ValueError:
        raise SchemaError("an array's shape is numbers between commas", got=dims[:80]) from None
    # A dimension of zero is refused: so every sample has at least a byte, and a file's size bounds its sample count.
    if len(shape) > MAX_DIMS or min(shape) < 1 or math.prod(shape) * dtype.itemsize > _MAX_ARRAY_BYTES:
        raise SchemaError("an array has 1 to 32 dimensions, each at least 1, and at most 1 TiB", got=dims[:80])
    num_bytes = math.prod(shape) * dtype.itemsize
    kind = ColumnKind.FIXED if num_bytes <= MAX_FIXED_VALUE_BYTES else ColumnKind.PAYLOAD
    name = f"{dtype.name}[{','.join(map(str, shape))}]"
    return _Type(name, kind, FixedArrayCodec(dtype, shape), dtype, shape)


_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        (
            "bool",
            "int8",
            "int16",
            "int32",
            "int64",
            "uint8",
            "uint16",
            "uint32",
            "uint64",
            "float16",
            "float32",
            "float64",
        )
    )
}
