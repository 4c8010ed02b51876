"""Finds the columns that hold classes, and counts their samples. Does not import torch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from concurrent_loader.storage.shards.format.nulls import plain_values

if TYPE_CHECKING:
    from concurrent_loader.storage.shards.format.schema import Column, Schema
    from concurrent_loader.storage.shards.reader import DatasetReader

__all__ = ["ClassCount", "class_columns", "class_names", "count_values", "read_class_counts", "small_columns_bytes"]

_CLASS_LIKE = re.compile(r"(?:.*[_.-])?(?:labels?|class(?:es)?|categor(?:y|ies)|targets?|splits?)", re.IGNORECASE)
_MAX_CLASSES = 10_000  # a column with more distinct values is an identifier or a number, and not a class


@dataclass(frozen=True, slots=True)
class ClassCount:
    """Number of samples of one class.

    Attributes:
        value: Value of the column: a number, a bool or a string.
        name: Name of the class; empty if the dataset has no names for the column.
        num_samples: Number of samples.

    Example:
        >>> from concurrent_loader.preview.class_counts import ClassCount
        >>> ClassCount(1, "dog", 20).label
        '1 (dog)'
    """

    value: Any
    name: str
    num_samples: int

    @property
    def label(self) -> str:
        """Value and name of the class as text."""
        return f"{self.value} ({self.name})" if self.name else str(self.value)


def class_names(metadata: Mapping[str, Any], column: str) -> list[str]:
    """Returns the names of a column's classes from the dataset's metadata; an empty list without usable names.

    Example:
        >>> from concurrent_loader.preview.class_counts import class_names
        >>> class_names({"classes": {"label": ["cat", "dog"]}}, "label")
        ['cat', 'dog']
    """
    classes = metadata.get("classes")
    names = classes.get(column) if isinstance(classes, Mapping) else None
    return [str(name) for name in names] if isinstance(names, list) else []


def class_columns(schema: Schema, metadata: Mapping[str, Any]) -> list[str]:
    """Returns the columns with one class per sample: numbers, bools and strings, by metadata or by name.

    A column is one if the metadata has names for its classes, or if its name ends in ``label``, ``class``,
    ``category``, ``target`` or ``split``.

    Example:
        >>> from concurrent_loader.preview.class_counts import class_columns
        >>> from concurrent_loader.storage import Schema
        >>> class_columns(Schema.parse({"image": "jpeg", "label": "int64", "box": "float32[4]"}), {})
        ['label']
    """
    return [
        column.name
        for column in schema
        if _is_scalar(column) and (class_names(metadata, column.name) or _CLASS_LIKE.fullmatch(column.name))
    ]


def count_values(values: Any, names: list[str]) -> list[ClassCount]:
    """Counts the distinct values of a column, in ascending order; an empty list for more than 10,000 of them.

    Args:
        values: (n,) array of integers or bools, or a list of n strings. Nulls, masked or None, do not count.
        names: Names of the classes 0, 1, …; may be empty.

    Example:
        >>> from concurrent_loader.preview.class_counts import count_values
        >>> [each.num_samples for each in count_values(np.array([1, 0, 1]), ["cat", "dog"])]
        [1, 2]
    """
    counts = Counter(value for value in plain_values(values) if value is not None)
    if len(counts) > _MAX_CLASSES:
        return []
    return [ClassCount(value, _name_of(value, names), count) for value, count in sorted(counts.items())]


def small_columns_bytes(reader: DatasetReader) -> int:
    """Returns the bytes to fetch for the numbers of all samples; -1 if they are only in the shards themselves."""
    num_bytes = 0
    for part in reader.manifest.parts:
        if sum(bundle.num_samples for bundle in part.bundles) != part.num_stored_samples:
            return -1
        num_bytes += sum(bundle.size - bundle.tail_start for bundle in part.bundles)
    return num_bytes


async def read_class_counts(reader: DatasetReader) -> dict[str, list[ClassCount]]:
    """Counts the samples of each class, in every column of numbers that holds classes. Fetches the bundles.

    Raises:
        StorageError: A bundle could not be fetched.
    """
    metadata = reader.manifest.metadata
    found = {}
    for name in class_columns(reader.schema, metadata):
        if reader.schema[name].shape == ():
            found[name] = count_values(await reader.column(name), class_names(metadata, name))
    return {name: counts for name, counts in found.items() if counts}


def _is_scalar(column: Column) -> bool:
    return column.base_type == "str" or (column.shape == () and column.dtype is not None and column.dtype.kind in "iub")


def _name_of(value: Any, names: list[str]) -> str:
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else ""
