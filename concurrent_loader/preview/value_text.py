"""Formats one value of a sample as text for a terminal or a page. Does not import torch.

Values come from strangers: control characters, which could move a terminal's cursor, are always escaped.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from concurrent_loader.preview.read_sample import NotFetched
from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.images import COLUMN_FORMATS, parse_header
from concurrent_loader.storage.printable import printable
from concurrent_loader.storage.shards.format.schema import Column
from concurrent_loader.storage.sizes import format_size

__all__ = ["full_text", "short_text"]

_HEAD_BYTES = 16
_FULL_ITEMS = 1000  # of an array that is shown in full
_SHORT_ITEMS = 6


def short_text(column: Column, value: Any, names: list[str] | None = None) -> str:
    """Formats a value as one line.

    Args:
        column: Column of the value.
        value: Value as a dataset returns it: images stay encoded.
        names: Names of the column's classes, if it holds classes.

    Example:
        >>> from concurrent_loader.preview.value_text import short_text
        >>> from concurrent_loader.storage import Column
        >>> short_text(Column("label", "int64"), 1, ["cat", "dog"])
        '1 (dog)'
    """
    if value is None:
        return "null"
    if isinstance(value, NotFetched):
        return f"{format_size(value.num_bytes)}, not fetched"
    if isinstance(value, bytes):
        return _bytes_text(column, value)
    if isinstance(value, np.ndarray):
        return _array_head(value)
    if isinstance(value, str):
        return printable(value)
    if names and isinstance(value, int) and 0 <= value < len(names):
        return printable(f"{value} ({names[value]})")
    return printable(json.dumps(value, ensure_ascii=False) if column.base_type == "json" else str(value))


def full_text(column: Column, value: Any, names: list[str] | None = None) -> list[str]:
    """Formats a value as lines: whole strings, indented JSON, arrays of up to 1,000 numbers.

    Example:
        >>> from concurrent_loader.preview.value_text import full_text
        >>> from concurrent_loader.storage import Column
        >>> full_text(Column("caption", "str"), "two\\nlines")
        ['two', 'lines']
    """
    if isinstance(value, NotFetched | bytes):
        return [short_text(column, value)]
    if isinstance(value, np.ndarray):
        text = np.array2string(value, threshold=_FULL_ITEMS, max_line_width=76)
        return [_array_kind(value), *text.splitlines()]
    if column.base_type == "json":
        return [printable(line) for line in json.dumps(value, ensure_ascii=False, indent=2).splitlines()]
    if isinstance(value, str):
        return [printable(line) for line in value.split("\n")]
    return [short_text(column, value, names)]


def _bytes_text(column: Column, data: bytes) -> str:
    size = format_size(len(data))
    if column.base_type in COLUMN_FORMATS:
        try:
            header = parse_header(data)
        except FormatError as error:
            return f"{size}, damaged: {printable(error.what)}"
        return f"{header.format} {header.width} x {header.height}, {size}"
    return f"{size}: {data[:_HEAD_BYTES].hex(' ')}{' …' if len(data) > _HEAD_BYTES else ''}"


def _array_kind(array: np.ndarray[Any, Any]) -> str:
    return f"{array.dtype.name} ({', '.join(map(str, array.shape))})"


def _array_head(array: np.ndarray[Any, Any]) -> str:
    items = ", ".join(f"{item:.6g}" if isinstance(item, float) else str(item) for item in array.flat[:_SHORT_ITEMS])
    return f"{_array_kind(array)}: {items}{', …' if array.size > _SHORT_ITEMS else ''}"
