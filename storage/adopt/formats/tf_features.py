"""Maps the features of ``tf.train.Example`` to columns: derives types, and finds or parses values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from concurrent_loader.storage.adopt.formats.foreign_values import (
    BYTE_TYPES,
    IMPORT_INSTEAD,
    array_type,
    column_names,
    image_type,
    is_small,
    is_text,
    parsed_column,
)
from concurrent_loader.storage.adopt.formats.tf_example import Feature
from concurrent_loader.storage.adopt.protocol import ForeignColumn
from concurrent_loader.storage.errors import FormatError, SchemaError
from concurrent_loader.storage.images import COLUMN_FORMATS
from concurrent_loader.storage.ranges import ByteRange
from concurrent_loader.storage.shards.format.foreign_codecs import BARE_ARRAY
from concurrent_loader.storage.shards.format.protobuf_lists import decode_floats, decode_ints, split_bytes
from concurrent_loader.storage.shards.format.schema import Column, ColumnKind

__all__ = ["ReadFeature", "derive_columns", "feature_reader", "retype"]

ReadFeature = Callable[[memoryview, Feature, int], Any]
"""Function of a record, a feature and the position of the record in the object, which returns a range or a value."""

_ENCODINGS = {"float": "tfrecord/floats", "int64": "tfrecord/ints", "bytes": "tfrecord/bytes"}
_KINDS = {encoding: kind for kind, encoding in _ENCODINGS.items()}
_DTYPES = {"float": "float32", "int64": "int64"}
_MAGIC_BYTES = 12


@dataclass(slots=True)
class _Statistics:
    kinds: set[str] = field(default_factory=set)
    counts: set[int] = field(default_factory=set)
    starts: set[bytes] = field(default_factory=set)
    text: bool = True
    num_samples: int = 0


def derive_columns(
    records: Iterable[tuple[memoryview, Mapping[str, Feature]]], *, key: str
) -> dict[str, ForeignColumn]:
    """Derives the columns from the features of the first records.

    Raises:
        FormatError: A feature has different kinds in different records, or a list is damaged.
    """
    statistics: dict[str, _Statistics] = {}
    num_samples = 0
    for sample, (record, features) in enumerate(records):
        num_samples += 1
        for name, feature in features.items():
            try:
                _count(statistics.setdefault(name, _Statistics()), record, feature)
            except FormatError as error:
                error.locate(key=key, sample=sample, column=name)
                raise
    columns = {}
    for name, column in column_names(sorted(statistics), key=key).items():
        found = statistics[name]
        if found.num_samples < num_samples:
            found.counts.add(0)
        if len(found.kinds) > 1:
            raise FormatError(
                f"a feature has different kinds in different records: {IMPORT_INSTEAD}", key=key, column=column,
                got="|".join(sorted(found.kinds)),
            )  # fmt: skip
        if found.kinds:  # a feature that never had a value has no type
            columns[column] = _derive(found.kinds.pop(), found)
    if num_samples and not columns:
        raise FormatError(f"the records have no features: they are no tf.train.Example: {IMPORT_INSTEAD}", key=key)
    return columns


def _count(statistics: _Statistics, record: memoryview, feature: Feature) -> None:
    message = record[feature.start : feature.end]
    statistics.num_samples += 1
    if not feature.kind:
        statistics.counts.add(0)
        return
    statistics.kinds.add(feature.kind)
    if feature.kind != "bytes":
        statistics.counts.add(len(_numbers(feature.kind, message)))
        return
    values = split_bytes(message)
    statistics.counts.add(len(values))
    statistics.starts.update(bytes(value[:_MAGIC_BYTES]) for value in values)
    statistics.text = statistics.text and all(map(is_text, values))


def _derive(kind: str, statistics: _Statistics) -> ForeignColumn:
    counts = statistics.counts
    if kind != "bytes":
        dtype = _DTYPES[kind]
        if counts == {1}:
            return ForeignColumn(type=dtype)
        if len(counts) == 1 and is_small(dtype, (count := min(counts),)):
            return ForeignColumn(type=array_type(dtype, (count,)))
        return ForeignColumn(type=f"{dtype}[...]", encoding=_ENCODINGS[kind])
    if counts == {1}:
        return ForeignColumn(type=image_type(statistics.starts) or ("str" if statistics.text else "bytes"))
    if statistics.text:
        return ForeignColumn(type="json")
    return ForeignColumn(type="bytes", encoding="" if counts == {0, 1} else _ENCODINGS["bytes"])


def retype(column: str, type_: str) -> ForeignColumn:
    """Returns the column of a type that a user asks for; the walk finds out whether the features have it.

    Raises:
        FormatError: The type is invalid.
    """
    try:
        parsed = parsed_column(type_)
    except SchemaError as error:
        raise FormatError(error.what, column=column, expected=error.expected, got=type_[:80]) from error
    encoding = ""
    if parsed.dtype is not None and parsed.shape is None:
        encodings = {_DTYPES[kind]: _ENCODINGS[kind] for kind in _DTYPES}
        encoding = encodings.get(parsed.dtype.name, BARE_ARRAY)
    return ForeignColumn(type=parsed.type, encoding=encoding)


def feature_reader(column: ForeignColumn) -> ReadFeature:
    """Returns the function that reads a feature for a column; it raises `FormatError` if the feature does not fit."""
    target = parsed_column(column.type)
    if column.encoding == BARE_ARRAY:
        assert target.dtype is not None
        itemsize = target.dtype.itemsize
        return lambda record, feature, base: _raw_array(_single(record, feature), base, itemsize)
    if column.encoding:
        kind = _KINDS.get(column.encoding)
        if kind is None:
            raise FormatError("a column has an unknown encoding", expected="|".join(_KINDS), got=column.encoding)
        return lambda record, feature, base: _message(record, feature, base, kind)
    if column.type == "json":
        return lambda record, feature, _: _texts(record, feature)
    if column.type in BYTE_TYPES:
        required = column.type == "str" or column.type in COLUMN_FORMATS
        return lambda record, feature, base: _value(record, feature, base, required=required)
    if target.kind is ColumnKind.FIXED:
        return lambda record, feature, base: _fixed(record, feature, base, target)
    if target.shape is None:
        raise FormatError(
            "the column's values need an encoding", expected="|".join(_ENCODINGS.values()), got=column.type
        )
    return lambda record, feature, base: _large_array(record, feature, base, target)


def _numbers(kind: str, message: memoryview) -> np.ndarray[Any, Any]:
    return decode_floats(message) if kind == "float" else decode_ints(message)


def _message(record: memoryview, feature: Feature, base: int, kind: str) -> ByteRange:
    """Returns the range of a whole list, after checking it."""
    if feature.kind not in (kind, ""):
        raise FormatError("a feature has another kind than its column", expected=kind, got=feature.kind)
    message = record[feature.start : feature.end]
    if kind == "bytes":
        split_bytes(message)
    else:
        _numbers(kind, message)
    return ByteRange(base + feature.start, base + feature.end)


def _single(record: memoryview, feature: Feature, *, required: bool = True) -> tuple[int, int]:
    """Returns start and end, in the record, of the only value of a list of bytes."""
    if feature.kind not in ("bytes", ""):
        raise FormatError("a feature has another kind than its column", expected="bytes", got=feature.kind)
    values = split_bytes(record[feature.start : feature.end])
    if len(values) != 1:
        if not values and not required:
            return feature.start, feature.start
        raise FormatError("a feature does not have exactly one value", expected=1, got=len(values))
    return feature.end - len(values[0]), feature.end


def _value(record: memoryview, feature: Feature, base: int, *, required: bool) -> ByteRange:
    start, end = _single(record, feature, required=required)
    return ByteRange(base + start, base + end)


def _raw_array(span: tuple[int, int], base: int, itemsize: int) -> ByteRange:
    start, end = span
    if (end - start) % itemsize:
        raise FormatError("an array has part of an element", expected=f"{itemsize} bytes each", got=end - start)
    return ByteRange(base + start, base + end)


def _texts(record: memoryview, feature: Feature) -> list[str]:
    if feature.kind not in ("bytes", ""):
        raise FormatError("a feature has another kind than its column", expected="bytes", got=feature.kind)
    try:
        return [str(value, "utf-8") for value in split_bytes(record[feature.start : feature.end])]
    except UnicodeDecodeError as error:
        raise FormatError("a text of a feature is not UTF-8: pass the type bytes for it") from error


def _fixed(record: memoryview, feature: Feature, base: int, target: Column) -> object:
    """Returns a number, a bool or a small array, or the range of its bytes if the feature holds bytes."""
    assert target.dtype is not None
    assert target.shape is not None
    count = math.prod(target.shape)
    if feature.kind == "bytes":
        start, end = _single(record, feature)
        return ByteRange(base + start, base + end)  # `parse` checks the length
    numbers = _numbers(feature.kind, record[feature.start : feature.end]) if feature.kind else np.empty(0)
    if len(numbers) != count:
        raise FormatError(
            "a feature has another number of values than its column: pass the type DTYPE[...] for it",
            expected=count, got=len(numbers),
        )  # fmt: skip
    if target.dtype.kind == "b" and feature.kind == "int64" and bool(((numbers == 0) | (numbers == 1)).all()):
        numbers = numbers != 0
    if target.shape == ():
        return numbers[0].item()
    array = numbers.reshape(target.shape)
    return array if array.dtype.kind == "f" else array.tolist()


def _large_array(record: memoryview, feature: Feature, base: int, target: Column) -> ByteRange:
    """Returns the range of the elements of an array that is payload: packed floats, or a value of bytes."""
    assert target.dtype is not None
    assert target.shape is not None
    num_bytes = target.dtype.itemsize * math.prod(target.shape)
    if feature.kind == "float" and target.dtype.name == "float32":
        packed = len(decode_floats(record[feature.start : feature.end])) * 4
        # One packed chunk is a tag, a length and the elements; the elements are its end.
        whole = packed == num_bytes and feature.end - feature.start == packed + 1 + -(-packed.bit_length() // 7)
        start, end = feature.end - packed, feature.end
    else:
        start, end = _single(record, feature)
        whole = end - start == num_bytes
    if not whole:
        raise FormatError(
            "a feature does not have the length of its column, or is not packed: pass the type DTYPE[...] for it",
            expected=num_bytes, got=end - start,
        )  # fmt: skip
    return ByteRange(base + start, base + end)
