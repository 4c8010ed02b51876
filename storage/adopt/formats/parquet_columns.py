"""Derives columns from the schema of a Parquet file, and turns Arrow values that go into the index into Python values.

Nothing here depends on pyarrow's kernels for Pandas or on its extension types: a column is what its storage holds.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from concurrent_loader.storage.adopt.protocol import ForeignColumn
from concurrent_loader.storage.errors import FormatError, SchemaError
from concurrent_loader.storage.images import find_format
from concurrent_loader.storage.shards.format.parquet_arrays import flat_numbers, refuse_nulls
from concurrent_loader.storage.shards.format.schema import Column, ColumnKind

__all__ = ["derive_type", "features_of", "index_values", "payload_type"]

Features = Mapping[str, Any]

_MAX_FEATURES_BYTES = 16 << 20
_MAX_CLASSES = 1 << 20


def features_of(schema: Any) -> Features:
    """Returns the features by column that Hugging Face `datasets` writes into a schema; empty if there are none.

    The features only choose types and names, so that damaged ones are ignored.
    """
    text = (schema.metadata or {}).get(b"huggingface", b"")
    if not text or len(text) > _MAX_FEATURES_BYTES:
        return {}
    try:
        facts = msgspec.json.decode(text)
        features = facts["info"]["features"]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def derive_type(name: str, kind: Any, feature: object) -> ForeignColumn:
    """Returns the column for an Arrow type; ``bytes`` stays to be told from images by its values.

    Args:
        name: Name of the column.
        kind: Arrow type.
        feature: Hugging Face's feature of this column, or None.
    """
    import pyarrow as pa

    types = pa.types
    kind = _storage(kind)
    facts: Mapping[str, Any] = feature if isinstance(feature, dict) else {}
    if types.is_struct(kind):
        fields = [kind.field(at).name for at in range(kind.num_fields)]
        if sorted(fields) == ["bytes", "path"] and _is_bytes(kind.field("bytes").type):
            return ForeignColumn(type="bytes", field="bytes")
        return ForeignColumn(type="json")
    if _is_bytes(kind):
        return ForeignColumn(type="bytes")
    if types.is_boolean(kind):
        return ForeignColumn(type="bool")
    if types.is_integer(kind):
        return ForeignColumn(type=str(kind), classes=_classes(facts))
    if types.is_floating(kind):
        return ForeignColumn(type=str(np.dtype(kind.to_pandas_dtype())))
    if _is_time(kind):
        return ForeignColumn(type="int64", unit=_unit(kind))
    if _is_text(kind) or types.is_decimal(kind):
        return ForeignColumn(type="str")
    dims, numbers = _dims(kind, facts)
    if dims and numbers is not None:
        if None not in dims:
            return ForeignColumn(type=Column(name, f"{numbers.name}[{','.join(map(str, dims))}]").type)
        if len(dims) == 1:
            return ForeignColumn(type=f"{numbers.name}[...]")
    return ForeignColumn(type="json")


def payload_type(name: str, kind: Any, column: ForeignColumn) -> str:
    """Returns the type of a payload column, as in `PayloadField`; empty if the column is in the index.

    Raises:
        SchemaError: The file's column cannot be read as the wanted type.
    """
    import pyarrow as pa

    kind = _storage(kind)
    wanted = Column(name, column.type)
    is_array = wanted.dtype is not None and wanted.shape != ()
    if column.type == "json":
        return ""
    if is_array:
        dims, numbers = _dims(kind, {})
        fits = len(dims) == (1 if wanted.shape is None else len(wanted.shape))
        if fits and numbers is not None and wanted.dtype is not None and np.can_cast(numbers, wanted.dtype, "safe"):
            return wanted.type if wanted.kind is ColumnKind.PAYLOAD else ""
    elif wanted.kind is ColumnKind.PAYLOAD:
        if _is_bytes(kind) or _is_text(kind):
            return "bytes"
        if column.field and pa.types.is_struct(kind) and kind.get_field_index(column.field) >= 0:
            return "bytes"
    elif wanted.type == "str":
        if _is_text(kind) or _is_bytes(kind) or pa.types.is_decimal(kind):
            return ""
    elif _is_number(kind) or (wanted.type == "int64" and _is_time(kind)):
        if column.unit and _unit(kind) != column.unit:
            raise FormatError(
                "a file counts its times in another unit than the first file: adopt it into an index of its own",
                column=name, expected=column.unit, got=str(kind),
            )  # fmt: skip
        return ""
    raise SchemaError(
        "a column of the Parquet file cannot be read as this type; choose another with --column NAME=TYPE",
        column=name, expected=wanted.type, got=str(kind),
    )  # fmt: skip


def _unit(kind: Any) -> str:
    """Returns a type of times without its time zone, which does not change the numbers."""
    return str(kind).partition(", tz=")[0].rstrip("]")


def image_type(heads: list[bytes]) -> str:
    """Returns the type of a payload column whose values begin like this: an image type, or ``"bytes"``."""
    found = {find_format(head) for head in heads}
    names = {row.name if row is not None and row.suffixes else "" for row in found}
    if not names or "" in names:
        return "bytes"
    return names.pop() if len(names) == 1 else "image"


def index_values(values: Any, name: str, type_: str) -> list[Any]:
    """Returns the values of a column that goes into the index.

    Args:
        values: Arrow array.
        name: Name of the column.
        type_: Type of the column; `payload_type` has accepted it.

    Raises:
        FormatError: A value is null, or does not fit; ``sample`` is its row in the array.
    """
    import pyarrow as pa

    if hasattr(values.type, "storage_type"):
        values = values.storage
    if hasattr(values.type, "index_type"):
        values = values.dictionary_decode()
    if type_ == "json":
        with _python_values(name):
            found = values.to_pylist()
        return [_json(value, name, row) for row, value in enumerate(found)]
    refuse_nulls(values, name)
    column = Column(name, type_)
    if column.shape:
        numbers, lengths = flat_numbers(values, name)
        for dim, stated in zip(column.shape, lengths, strict=True):
            wrong = np.flatnonzero(stated != dim)
            if len(wrong):
                raise FormatError(
                    f"an array has another shape; choose the type with --column {name}=json", column=name,
                    sample=int(wrong[0]) * len(values) // len(stated), expected=type_, got=int(stated[wrong[0]]),
                )  # fmt: skip
        return list(numbers.reshape(len(values), *column.shape))
    if type_ == "str":
        with _python_values(name):
            return list(values.cast(pa.string()).to_pylist())
    if pa.types.is_temporal(values.type):
        width = pa.int32() if values.type.bit_width == 32 else pa.int64()
        values = values.view(width)
    return list(values.to_pylist())


@contextmanager
def _python_values(name: str) -> Iterator[None]:
    """Names the column in errors of pyarrow: text that is not UTF-8, or a time finer than Python's."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise FormatError(f"a value cannot be read: {error}", column=name) from error


def _json(value: object, name: str, row: int) -> object:
    """Returns a value as JSON has it: dates and decimals become texts, maps become lists of pairs."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict):
        return {str(key): _json(each, name, row) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json(each, name, row) for each in value]
    # pandas, if it is installed, gives pyarrow's times a class of its own.
    convert = next((text for kind, text in _TEXTS.items() if isinstance(value, kind)), None)
    if convert is None:
        raise FormatError(
            "a value cannot be JSON; leave the column out with --only",
            column=name,
            sample=row,
            got=type(value).__name__,
        )
    return convert(value)


_TEXTS: dict[type, Callable[[Any], str]] = {
    **dict.fromkeys((dt.date, dt.datetime, dt.time), lambda value: value.isoformat()),
    **dict.fromkeys((dt.timedelta, decimal.Decimal, uuid.UUID), str),
}


def _storage(kind: Any) -> Any:
    if hasattr(kind, "storage_type"):
        kind = kind.storage_type
    return kind.value_type if hasattr(kind, "index_type") else kind


def _is_bytes(kind: Any) -> bool:
    import pyarrow as pa

    kind = _storage(kind)
    types = pa.types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)) and not bool(
        types.is_decimal(kind)
    )


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_time(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_temporal(kind) and not pa.types.is_interval(kind))


def _classes(facts: Mapping[str, Any]) -> tuple[str, ...]:
    names = facts.get("names")
    is_label = facts.get("_type") == "ClassLabel" and isinstance(names, list) and len(names) <= _MAX_CLASSES
    return tuple(names) if is_label and all(isinstance(name, str) for name in names) else ()  # type: ignore[arg-type, union-attr]


def _dims(kind: Any, facts: Mapping[str, Any]) -> tuple[list[int | None], np.dtype[Any] | None]:
    """Returns the dimensions of nested lists, None for one that may vary, and the dtype if they hold numbers."""
    import pyarrow as pa

    dims: list[int | None] = []
    while True:
        kind = _storage(kind)
        if pa.types.is_fixed_size_list(kind):
            dims.append(kind.list_size or None)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            dims.append(None)
        else:
            break
        kind = kind.value_type
    if not _is_number(kind):
        return dims, None
    shape = facts.get("shape")  # of Array2D and its like
    length = facts.get("length")  # of List and Sequence
    if isinstance(shape, list) and len(shape) == len(dims) and all(isinstance(dim, int) and dim > 0 for dim in shape):
        dims = list(shape)
    elif len(dims) == 1 and isinstance(length, int) and length > 0:
        dims = [length]
    return dims, np.dtype(kind.to_pandas_dtype())
