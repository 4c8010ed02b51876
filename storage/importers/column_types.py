"""Chooses the columns of a dataset: types derived from the first samples of a source, and types that the user gives.

No I/O.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from concurrent_loader.storage.errors import ConfigurationError, SchemaError
from concurrent_loader.storage.images import COLUMN_FORMATS, find_format
from concurrent_loader.storage.importers.column_values import to_json
from concurrent_loader.storage.shards.format.schema import Column
from concurrent_loader.storage.shards.manifest.manifest import Manifest

__all__ = [
    "MAX_SAMPLED",
    "MAX_SAMPLED_BYTES",
    "choose_columns",
    "column_names",
    "derive_columns",
    "derive_type",
    "parse_column_types",
]

MAX_SAMPLED = 200
"""Upper bound of the samples from which types are derived."""

MAX_SAMPLED_BYTES = 64 << 20
"""Upper bound of their bytes; the sample that exceeds it is the last one."""

_INVALID = re.compile(r"[^A-Za-z0-9_.-]")
_MAX_NAME = 64
_INT64 = range(-(2**63), 2**63)

Derive = Callable[[str, Sequence[object]], str]


def parse_column_types(texts: Iterable[str]) -> dict[str, str]:
    """Parses ``name=type`` for each text.

    Raises:
        ConfigurationError: A text is not of this form, or names a column twice.
        SchemaError: A name or a type is invalid.
    """
    types: dict[str, str] = {}
    for text in texts:
        name, separator, type_ = text.partition("=")
        if not separator:
            raise ConfigurationError("a column must have the form name=type, such as label=int64", got=text)
        if name in types:
            raise ConfigurationError("a column has two types", column=name, got=text)
        types[name] = Column(name, type_).type
    return types


def column_names(names: Iterable[str]) -> dict[str, str]:
    """Returns a valid column name for each name of a source, in order of the first occurrence.

    Characters that a column's name must not have become ``_``, and slashes become dots.

    Raises:
        ConfigurationError: Two names become the same.
    """
    columns: dict[str, str] = {}
    taken: dict[str, str] = {}
    for name in dict.fromkeys(names):
        column = _INVALID.sub("_", name.strip("/").replace("/", "."))[:_MAX_NAME] or "_"
        if column in taken:
            raise ConfigurationError(
                "two fields have the same name as a column: rename one in the source", column=column,
                got=(taken[column], name),
            )  # fmt: skip
        taken[column] = name
        columns[name] = column
    return columns


def derive_columns(samples: Sequence[Mapping[str, object]], derive: Derive | None = None) -> dict[str, str]:
    """Derives the columns of the first samples of a source: every field that one of them has.

    Args:
        samples: Samples, with names that are valid for columns.
        derive: Function that derives the type of a field from its name and values; `derive_type` by default.

    Raises:
        SchemaError: The values of a field fit no column type.
    """
    fields: dict[str, list[object]] = {}
    for sample in samples:
        for name, value in sample.items():
            fields.setdefault(name, []).append(value)
    try:
        return {name: (derive or derive_type)(name, values) for name, values in fields.items()}
    except SchemaError as error:
        error.what += "; leave the field out (--drop NAME; in Python drop=[name])"
        raise


def choose_columns(
    derived: Mapping[str, str],
    *,
    columns: Mapping[str, str],
    drop: Iterable[str],
    onto: Manifest | None = None,
    url: str | None = None,
) -> dict[str, str]:
    """Returns the columns of a dataset.

    Types that the user gives come first, then those of the dataset to append to, then derived types.

    Args:
        derived: Types by name, as `derive_columns` returns them.
        columns: Types that the user gives, by name.
        drop: Names of fields to leave out.
        onto: Snapshot to append to, whose columns keep their order.
        url: URL of the source for errors.

    Raises:
        ConfigurationError: The source has no field of a given name, or no field is left.
        SchemaError: A type is invalid.
    """
    dropped = set(drop)
    unknown = [name for name in (*columns, *dropped) if name not in derived]
    if unknown:
        raise ConfigurationError(
            "the first samples have no such field", url=url, column=unknown[0], expected=", ".join(derived)
        )
    twice = sorted(dropped.intersection(columns))
    if twice:
        raise ConfigurationError("a field cannot be dropped and have a type", column=twice[0])
    before = dict(onto.schema) if onto is not None else {}
    names = [name for name in before if name in derived] + [name for name in derived if name not in before]
    chosen = {
        name: Column(name, columns.get(name) or before.get(name) or derived[name]).type
        for name in names
        if name not in dropped
    }
    if not chosen:
        raise ConfigurationError("no field is left: drop fewer fields", url=url, got=", ".join(derived))
    return chosen


def derive_type(name: str, values: Sequence[object]) -> str:
    """Returns the type of a column that holds all the values.

    ======================================  ======================================================================
    values                                  type
    ======================================  ======================================================================
    bytes of images of one format           that format, such as ``jpeg``; ``image`` if formats differ
    other bytes                             ``bytes``
    str, bool                               ``str``, ``bool``
    int, float                              ``int64``, ``float64``; NumPy scalars keep their dtype
    arrays of one dtype and shape           ``dtype[shape]``
    arrays of one dtype, different shapes   ``dtype[...]``
    rectangular lists of numbers            ``int64[...]`` or ``float64[...]``
    dicts, other lists, mixtures, only None ``json``
    None, and any of the above              the type of the others with ``?``, such as ``int64?``; ``json`` stays
    ======================================  ======================================================================

    Raises:
        SchemaError: No type fits.
    """
    if not values:
        raise SchemaError("a field has no value in the first samples", column=name)
    present = [value for value in values if value is not None]
    if 0 < len(present) < len(values):
        type_ = derive_type(name, present)
        return type_ if type_ == "json" else f"{type_}?"
    if all(isinstance(value, bytes | bytearray | memoryview) for value in values):
        return _type_of_bytes(values)
    if all(isinstance(value, str) for value in values):
        return "str"
    if all(isinstance(value, bool | np.bool_) for value in values):
        return "bool"
    if all(_is_number(value) for value in values):
        return _type_of_numbers(name, values)
    if all(_is_array(value) for value in values):
        return _type_of_arrays(name, [np.asarray(value) for value in values])
    if all(isinstance(value, list | tuple) for value in values):
        return _type_of_lists(values)
    for value in values:
        _check_json(name, value)
    return "json"


def _type_of_bytes(values: Sequence[Any]) -> str:
    found = {image.name if (image := find_format(value)) is not None else "" for value in values}
    for type_, formats in COLUMN_FORMATS.items():
        if found and found <= set(formats):
            return type_
    return "bytes"


def _is_number(value: object) -> bool:
    return not isinstance(value, bool | np.bool_) and isinstance(value, int | float | np.integer | np.floating)


def _type_of_numbers(name: str, values: Sequence[object]) -> str:
    dtypes = {value.dtype.name for value in values if isinstance(value, np.generic)}
    if len(dtypes) == 1 and all(isinstance(value, np.generic) for value in values):
        return dtypes.pop()
    if all(isinstance(value, int | np.integer) for value in values):
        whole = [int(value) for value in values if isinstance(value, int | np.integer)]
        if all(value in _INT64 for value in whole):
            return "int64"
        if all(0 <= value < 2**64 for value in whole):
            return "uint64"
        raise SchemaError("integers of a field need more than 64 bits", column=name, got=max(whole, key=abs))
    return "float64"


def _is_array(value: object) -> bool:
    return hasattr(value, "__array__") and not isinstance(value, np.generic)


def _type_of_arrays(name: str, arrays: Sequence[Any]) -> str:
    dtypes = {array.dtype.newbyteorder("=").name for array in arrays}
    if len(dtypes) > 1:
        raise SchemaError("the arrays of a field differ in dtype", column=name, got=", ".join(sorted(dtypes)))
    dtype = dtypes.pop()
    shapes = {array.shape for array in arrays}
    shape = next(iter(shapes))
    if len(shapes) == 1 and math.prod(shape):
        return f"{dtype}[{','.join(map(str, shape))}]" if shape else dtype
    return f"{dtype}[...]"


def _type_of_lists(values: Sequence[Any]) -> str:
    kinds = set()
    for value in values:
        try:
            array = np.array(value)
        except (ValueError, TypeError, OverflowError):
            return "json"  # not rectangular, or not numbers
        if array.size or array.ndim > 1:
            kinds.add(array.dtype.kind)
    if kinds == {"b"}:
        return "bool[...]"
    if kinds == {"i"}:
        return "int64[...]"
    return "float64[...]" if kinds and kinds <= {"i", "f"} else "json"


def _check_json(name: str, value: object) -> None:
    try:
        Column(name, "json").encode(to_json(value))
    except SchemaError as error:
        raise SchemaError(
            "the values of a field fit no column type: bytes, str, numbers, arrays or JSON are expected", column=name,
            got=error.got,
        ) from error  # fmt: skip
