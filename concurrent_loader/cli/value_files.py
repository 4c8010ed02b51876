"""Reads the values of a column from a file: .npy, .csv, .jsonl or .parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from concurrent_loader.storage.errors import ConfigurationError, SchemaError
from concurrent_loader.storage.shards.format.schema import Column

__all__ = ["parse_text", "read_values"]


def read_values(path: Path, column: Column, *, field: str | None, key: str | None, key_column: Column | None) -> Any:
    """Reads values for a column.

    Args:
        path: Path of the file.
        column: Column to make.
        field: Name of the values in the file; by default the column's name.
        key: Name of the keys in the file; None for values by position.
        key_column: Column of the dataset that has the keys, or None.

    Returns:
        An array or a list of values in the order of the file; with ``key``, a dict of values by key.

    Raises:
        ConfigurationError: The file cannot be read, or does not have these fields.
        SchemaError: A text is not a value of the column's type, or a key occurs twice.
    """
    field = field or column.name
    if key is None or key_column is None:
        if path.suffix == ".npy":
            return _read_npy(path)
        return [value for value, _ in _rows(path, column, field, None, None)]
    if path.suffix == ".npy":
        raise ConfigurationError("a .npy file has no keys; leave --by out, or pass another file", got=str(path))
    found: dict[Any, Any] = {}
    for value, own in _rows(path, column, field, key, key_column):
        if own in found:
            raise SchemaError("a key occurs twice in the file", column=key, got=own)
        found[own] = value
    return found


def parse_text(text: str, column: Column) -> Any:
    """Returns the value that a text means for a column.

    Raises:
        SchemaError: The text is not a value of the column's type.
        ConfigurationError: Texts have no values of this type.
    """
    try:
        return _parser(column)(text)
    except ValueError as error:
        raise SchemaError(
            f"the text is not a value of this type: {error}", column=column.name, got=text[:80]
        ) from error


def _read_npy(path: Path) -> Any:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the file cannot be read: {error}", got=str(path)) from error


def _rows(
    path: Path, column: Column, field: str, key: str | None, key_column: Column | None
) -> Iterator[tuple[Any, Any]]:
    readers = {".csv": _csv_rows, ".jsonl": _jsonl_rows, ".parquet": _parquet_rows}
    if path.suffix not in readers:
        raise ConfigurationError(
            "values are read from .npy, .csv, .jsonl and .parquet files", got=str(path), expected=", ".join(readers)
        )
    is_text = path.suffix == ".csv"
    value_of = _parser(column) if is_text else _same
    key_of = _parser(key_column) if is_text and key_column is not None else _same
    try:
        for number, row in enumerate(readers[path.suffix](path, [field, *([key] if key else [])]), 1):
            missing = next((name for name in (field, key) if name is not None and row.get(name, _NONE) is _NONE), None)
            if missing is not None:
                raise ConfigurationError(
                    f"row {number} of the file has no such field: mend the row, or pass --field or --key", got=missing,
                    expected=", ".join(map(str, row)),
                )  # fmt: skip
            try:
                yield value_of(row[field]), None if key is None else key_of(row[key])
            except ValueError as error:
                raise SchemaError(
                    f"row {number} of the file is not a value of this type: {error}", column=column.name,
                    expected=column.type,
                ) from error  # fmt: skip
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"the file cannot be read: {error}", got=str(path)) from error


_NONE: Any = object()


def _csv_rows(path: Path, _names: list[str]) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield from csv.DictReader(file, restval=_NONE)  # None would become the text "None"


def _jsonl_rows(path: Path, names: list[str]) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ConfigurationError(f"line {number} is not JSON: {error}", got=str(path)) from error
            yield row if isinstance(row, dict) else {names[0]: row}


def _parquet_rows(path: Path, names: list[str]) -> Iterator[dict[str, Any]]:
    from concurrent_loader.storage.importers.optional_library import import_library

    parquet = import_library("pyarrow.parquet", extra="parquet")
    with parquet.ParquetFile(path) as file:
        known = [name for name in names if name in file.schema_arrow.names]
        if len(known) < len(names):
            yield dict.fromkeys(file.schema_arrow.names)
            return
        for batch in file.iter_batches(columns=names):
            yield from batch.to_pylist()


def _parser(column: Column) -> Callable[[str], Any]:
    """Returns the function from a text of a CSV file to a value."""
    if column.optional:
        parse = _parser(Column(column.name, column.base_type))
        return lambda text: parse(text) if text else None
    if column.type == "str":
        return str
    if column.type == "json" or (column.dtype is not None and column.shape != ()):
        return json.loads
    if column.dtype is None:
        raise ConfigurationError(
            "a text cannot be a value of this type; use .jsonl, .npy or .parquet", column=column.name, got=column.type
        )
    if column.dtype.kind == "b":
        return _bool
    return float if column.dtype.kind == "f" else int


def _bool(text: str) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    if text.strip().lower() not in known:
        raise ValueError(f"{text[:40]!r} is neither true nor false")
    return known[text.strip().lower()]


def _same(value: Any) -> Any:
    return value
