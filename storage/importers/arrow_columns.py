"""Turns columns of Arrow data (Parquet, Arrow IPC, Lance) into columns of a dataset, with the conventions of datasets.

No I/O. pyarrow is imported when it is needed.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.importers.class_names import merged_classes
from concurrent_loader.storage.importers.column_types import column_names, derive_type
from concurrent_loader.storage.importers.column_values import convert
from concurrent_loader.storage.importers.optional_library import import_library
from concurrent_loader.storage.shards.format.schema import Column, ColumnKind
from concurrent_loader.storage.shards.manifest.manifest import Manifest

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowColumns", "Fault", "arrow"]

_MAX_METADATA_BYTES = 16 << 20


def arrow() -> Any:
    """Returns the module pyarrow.

    Raises:
        ConfigurationError: It is not installed.
    """
    return import_library("pyarrow", extra="parquet")


@dataclass(frozen=True, slots=True)
class Fault:
    """A value that cannot be imported, with the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Field:
    """A column of the source.

    Attributes:
        name: Name in the source.
        column: Name in the dataset.
        type: Column type; empty for bytes, whose type depends on the data.
        values: Function that returns one value, or `Fault`, per row.
    """

    name: str
    column: str
    type: str
    values: Callable[[Any], list[Any]]


@dataclass
class ArrowColumns:
    """The columns of a schema.

    Args:
        schema: Schema of the source.
        nullable: Names of columns that are known to have nulls; they become optional.
    """

    schema: pa.Schema
    nullable: frozenset[str] = frozenset()
    classes: dict[str, list[str]] = field(init=False)
    _fields: list[_Field] = field(init=False)
    _numbers: dict[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        names = column_names(self.schema.names)
        self._fields = [_Field(each.name, names[each.name], *_strategy(each.type)) for each in self.schema]
        features = _features(self.schema)
        self.classes = {
            names[name]: classes for name in self.schema.names if (classes := _class_names(features.get(name)))
        }

    def __getstate__(self) -> dict[str, Any]:
        return {"schema": self.schema, "nullable": self.nullable, "numbers": self._numbers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.schema, self.nullable, self._numbers = state["schema"], state["nullable"], state["numbers"]
        self.__post_init__()  # its functions cannot be pickled

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the dataset's columns."""
        return tuple(each.column for each in self._fields)

    def derive(self, first: pa.RecordBatch | None) -> dict[str, str]:
        """Returns the column types; the first rows show whether bytes are images, and whether there are nulls."""
        types: dict[str, str] = {}
        for each in self._fields:
            array = first.column(each.name) if first is not None and first.num_rows else None
            values = each.values(array) if array is not None and not each.type else []
            values = [value for value in values if isinstance(value, bytes)]
            type_ = each.type or (derive_type(each.column, values) if values else "bytes")
            has_nulls = each.name in self.nullable or (array is not None and array.null_count > 0)
            types[each.column] = f"{type_}?" if has_nulls and type_ != "json" else type_
        return types

    def number_classes(self, onto: Manifest | None, columns: Iterable[str]) -> dict[str, list[str]]:
        """Returns the class names for the manifest; numbers of a dataset to append to are kept."""
        merged = {}
        for column, names in self.classes.items():
            if column in columns:
                merged[column], numbers = merged_classes(onto, column, names)
                self._numbers[column] = None if numbers == list(range(len(numbers))) else np.array(numbers, np.int64)
        return merged

    def number_classes_like(self, other: ArrowColumns, columns: Collection[str]) -> None:
        """Numbers the classes as another file does.

        Args:
            other: Columns of the other file.
            columns: Names of the columns that matter.

        Raises:
            FormatError: The files name their classes differently.
        """
        for column, names in self.classes.items():
            if column in columns and names != other.classes.get(column):
                raise FormatError(
                    "the file numbers its classes differently from the first file: import it by itself, with --append",
                    column=column, expected=other.classes.get(column, [])[:5], got=names[:5],
                )  # fmt: skip
        self._numbers = other._numbers

    def rows(
        self, batch: pa.RecordBatch, columns: Mapping[str, Column], *, conversions: frozenset[str]
    ) -> Iterator[dict[str, Any] | Fault]:
        """Yields the values of each row, or the reason why there are none.

        Args:
            batch: Rows of the source.
            columns: Columns of the dataset.
            conversions: Names of the columns whose values are converted to the column's type.
        """
        fields = [each for each in self._fields if each.column in columns]
        lists = [self._renumbered(each.column, each.values(batch.column(each.name))) for each in fields]
        for row in range(batch.num_rows):
            values: dict[str, Any] = {}
            fault: Fault | None = None
            for each, column in zip(fields, lists, strict=True):
                value = column[row]
                if value is None and not (own := columns[each.column]).optional and own.kind is ColumnKind.PAYLOAD:
                    value = Fault(f"the value is null; choose the type {own.type}?")
                if isinstance(value, Fault):
                    fault = fault or Fault(f"{each.column}: {value.reason}")
                elif each.column in conversions:
                    try:
                        value = convert(value, columns[each.column])
                    except ValueError as error:
                        fault = fault or Fault(f"{each.column} is not {columns[each.column].type}: {error}")
                values[each.column] = value
            yield fault or values

    def _renumbered(self, column: str, values: list[Any]) -> list[Any]:
        numbers = self._numbers.get(column)
        return values if numbers is None else [_renumber(value, numbers) for value in values]


def _renumber(value: Any, numbers: Any) -> Any:
    if isinstance(value, int):
        return int(numbers[value]) if 0 <= value < len(numbers) else value
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        known = (value >= 0) & (value < len(numbers))
        return np.where(known, numbers[np.where(known, value, 0)], value)
    return value


# -- Hugging Face metadata ---------------------------------------------------------------------------------------------


def _features(schema: pa.Schema) -> dict[str, Any]:
    """Returns the features that datasets has written into the schema's metadata."""
    text = (schema.metadata or {}).get(b"huggingface", b"")
    if not text or len(text) > _MAX_METADATA_BYTES:
        return {}
    try:
        features = msgspec.json.decode(text)["info"]["features"]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return {}  # metadata of another program; the columns themselves are complete without it
    return features if isinstance(features, dict) else {}


def _class_names(feature: object) -> list[str] | None:
    while isinstance(feature, dict | list) and feature:
        if isinstance(feature, list):
            feature = feature[0]
            continue
        names = feature.get("names")
        if feature.get("_type") == "ClassLabel" and isinstance(names, list):
            return names if all(isinstance(name, str) for name in names) else None
        feature = feature.get("feature")
    return None


# -- types -------------------------------------------------------------------------------------------------------------


def _strategy(kind: Any) -> tuple[str, Callable[[Any], list[Any]]]:
    """Returns the column type of an Arrow type without nulls, and the function that returns the values."""
    types = arrow().types
    if types.is_dictionary(kind):
        type_, values = _strategy(kind.value_type)
        return type_, lambda array: _undictionaried(array, values)
    if isinstance(kind, arrow().FixedShapeTensorType):
        dtype = np.dtype(kind.value_type.to_pandas_dtype()).name
        return f"{dtype}[{','.join(map(str, kind.shape))}]", _tensors
    if isinstance(kind, arrow().BaseExtensionType):
        type_, values = _strategy(kind.storage_type)
        return type_, lambda array: values(array.storage)
    if _is_number(kind):
        return np.dtype(kind.to_pandas_dtype()).name, _numbers
    if types.is_duration(kind):
        return "int64", lambda array: array.cast(arrow().int64()).to_pylist()
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "str", _each
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind) or _is_fixed_binary(kind):
        return "", _each
    if types.is_struct(kind) and _is_file(kind):
        return "", _files
    if types.is_fixed_size_list(kind) and (shape := _fixed_shape(kind)) is not None:
        dtype = np.dtype(_innermost(kind).to_pandas_dtype()).name
        return f"{dtype}[{','.join(map(str, shape))}]", lambda array: _fixed_lists(array, shape)
    if _is_list(kind) and _is_number(_innermost(kind)):
        dtype = np.dtype(_innermost(kind).to_pandas_dtype())
        flat = not _is_list(kind.value_type)
        return f"{dtype.name}[...]", lambda array: _lists(array, dtype) if flat else _nested(array, dtype)
    if types.is_temporal(kind) or types.is_decimal(kind):
        return "str", lambda array: array.cast(arrow().string()).to_pylist()
    return "json", lambda array: [_to_json(value) for value in _each(array)]


def _is_number(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_fixed_binary(kind: Any) -> bool:
    return bool(arrow().types.is_fixed_size_binary(kind))


def _is_list(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_file(kind: Any) -> bool:
    """Returns whether a struct is an Image or Audio of datasets."""
    names = {kind.field(number).name: kind.field(number).type for number in range(kind.num_fields)}
    types = arrow().types
    data = names.get("bytes")
    return data is not None and names.keys() <= {"bytes", "path"} and (
        types.is_binary(data) or types.is_large_binary(data)
    )  # fmt: skip


def _innermost(kind: Any) -> Any:
    while _is_list(kind):
        kind = kind.value_type
    return kind


def _fixed_shape(kind: Any) -> tuple[int, ...] | None:
    shape = []
    while arrow().types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    return tuple(shape) if _is_number(kind) and all(shape) else None


# -- values ------------------------------------------------------------------------------------------------------------


def _each(array: Any) -> list[Any]:
    """Returns the Python values; a value that is none (text that is not UTF-8) is a fault."""
    try:
        return list(array.to_pylist())
    except (ValueError, OverflowError):
        return [_one(array, row) for row in range(len(array))]


def _one(array: Any, row: int) -> Any:
    try:
        return array[row].as_py()
    except (ValueError, OverflowError) as error:
        return Fault(f"the value cannot be read: {error}")


def _numbers(array: Any) -> list[Any]:
    return list(array.to_pylist() if array.null_count else array.to_numpy(zero_copy_only=False).tolist())


def _undictionaried(array: Any, values: Callable[[Any], list[Any]]) -> list[Any]:
    if not isinstance(array, arrow().DictionaryArray):
        return values(array)
    known = values(array.dictionary)
    return [None if index is None else known[index] for index in array.indices.to_pylist()]


def _files(array: Any) -> list[Any]:
    found = [dict(value or {}) for value in _each(array)]
    return [
        Fault(f"there are no bytes, only the path {value['path']!r}: embed the files in the source")
        if value.get("bytes") is None and value.get("path") is not None
        else value.get("bytes")
        for value in found
    ]


def _tensors(array: Any) -> list[Any]:
    if not array.null_count:
        return list(array.to_numpy_ndarray())
    shape, dtype = tuple(array.type.shape), np.dtype(array.type.value_type.to_pandas_dtype())
    found = [_rectangular(value, dtype, has_nulls=True) for value in array.storage.to_pylist()]
    return [value.reshape(shape) if isinstance(value, np.ndarray) else value for value in found]


def _fixed_lists(array: Any, shape: tuple[int, ...]) -> list[Any]:
    if array.null_count:
        return _each(array)
    flat = array.flatten()
    while not _is_number(flat.type):
        flat = flat.flatten()
    if flat.null_count or len(flat) != len(array) * int(np.prod(shape)):
        return _each(array)
    return list(flat.to_numpy(zero_copy_only=False).reshape(len(array), *shape))


def _lists(array: Any, dtype: np.dtype[Any]) -> list[Any]:
    types = arrow().types
    if array.null_count or array.values.null_count or types.is_fixed_size_list(array.type):
        return _nested(array, dtype)
    offsets = array.offsets.to_numpy()
    values = array.values.to_numpy(zero_copy_only=False)
    return [values[start:end] for start, end in pairwise(offsets)]


def _nested(array: Any, dtype: np.dtype[Any]) -> list[Any]:
    inner, has_nulls = array, False
    while _is_list(inner.type) and not has_nulls:
        inner = inner.flatten()
        has_nulls = inner.null_count > 0
    return [_rectangular(value, dtype, has_nulls=has_nulls) for value in _each(array)]


def _rectangular(value: Any, dtype: np.dtype[Any], *, has_nulls: bool) -> Any:
    if value is None:
        return None
    if has_nulls and _has_null(value):  # NumPy would make it NaN, or False
        return Fault("the list is not a rectangular array of numbers without nulls")
    try:
        return np.array(value, dtype)
    except (ValueError, TypeError, OverflowError) as error:
        return Fault(f"the list is not a rectangular array of numbers without nulls: {error}")


def _has_null(value: Any) -> bool:
    return value is None or (isinstance(value, list) and any(map(_has_null, value)))


def _to_json(value: Any) -> Any:
    """Returns a nested value as JSON: times and decimals as text, maps with text keys as objects."""
    if isinstance(value, dict):
        return {name: _to_json(each) for name, each in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str) for each in value):
            return {name: _to_json(each) for name, each in value}
        return [_to_json(each) for each in value]
    if isinstance(value, tuple):
        return [_to_json(each) for each in value]
    if isinstance(value, dt.date | dt.time | dt.timedelta | decimal.Decimal):
        return str(value)
    return value
