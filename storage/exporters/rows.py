"""Reads the samples of an open shard for a format: verified, decoded, under the names of the export. No network."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from concurrent_loader.storage.cache.joined_shard import JoinedShard
from concurrent_loader.storage.errors import ConfigurationError, SchemaError
from concurrent_loader.storage.exporters.protocol import ExportColumn
from concurrent_loader.storage.lossless import decode
from concurrent_loader.storage.shards.format.nulls import plain_values
from concurrent_loader.storage.shards.format.schema import ColumnKind, Schema
from concurrent_loader.storage.shards.manifest.manifest import Manifest

__all__ = ["SampleRow", "check_key_column", "export_columns", "read_rows"]

SampleRow = tuple[dict[str, Any], str | None]
"""Values of a sample by the columns' names in the export, and its key."""

_LOSSLESS = "image/lossless"


def export_columns(manifest: Manifest, columns: Sequence[str] | Mapping[str, str] | None) -> tuple[ExportColumn, ...]:
    """Returns the columns to export.

    Args:
        manifest: Snapshot to export.
        columns: Names of columns, or a mapping of names to new names; all columns by default.

    Raises:
        SchemaError: A column does not exist, or a new name is not a name of a column.
        ConfigurationError: No column is named, or two columns get the same name.
    """
    schema = Schema.parse(manifest.schema)
    if isinstance(columns, str):
        raise ConfigurationError("columns must be a list of names, or a dict of names and new names", got=columns)
    if columns is None:
        columns = schema.names
    names = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    if len(set(names.values())) < len(names):
        raise ConfigurationError("two columns would get the same name", got=list(names.values()))
    if not names:
        raise ConfigurationError("at least one column must be exported")
    types = {name: schema[name].type for name in names}
    Schema.parse({new: types[name] for name, new in names.items()})  # checks the new names
    classes = manifest.metadata.get("classes")
    found = []
    for name, new in names.items():
        column = schema[name]
        is_label = column.kind is ColumnKind.FIXED and column.shape == () and column.dtype.kind in "iu"  # type: ignore[union-attr]
        labels = classes.get(name) if isinstance(classes, dict) and is_label else None
        is_list = isinstance(labels, list) and all(isinstance(each, str) for each in labels)
        found.append(
            ExportColumn(
                name=new,
                source=name,
                type="png" if column.base_type == _LOSSLESS else column.base_type,
                dtype=column.dtype,
                shape=column.shape,
                classes=tuple(labels) if is_list and labels else None,
                is_lossless=column.base_type == _LOSSLESS,
                optional=column.optional,
            )
        )
    return tuple(found)


def check_key_column(manifest: Manifest, name: str | None) -> None:
    """Checks that a column can name the samples.

    Raises:
        SchemaError: The column does not exist, or is not of type str.
    """
    if name is not None and (got := Schema.parse(manifest.schema)[name].type) != "str":
        raise SchemaError("a key column must be of type str", column=name, got=got)


def read_rows(
    shard: JoinedShard, columns: Sequence[ExportColumn], key_column: str | None, rows: npt.NDArray[np.int64]
) -> list[SampleRow]:
    """Returns the values and the key of some rows (n,); every value is compared with its digest.

    Raises:
        CorruptData: A value differs from what was written.
        SchemaError: A lossless image cannot be written as PNG.
    """
    stored = {column.source for column in columns} | ({key_column} if key_column is not None else set())
    values = {name: plain_values(shard.values(name, rows)) for name in sorted(stored)}
    is_lossless = {column.source for column in columns if column.is_lossless}
    for name in is_lossless:
        values[name] = [None if data is None else _png(data) for data in values[name]]
    keys = [None] * len(rows) if key_column is None else values[key_column]
    return [({column.name: values[column.source][row] for column in columns}, keys[row]) for row in range(len(rows))]


def _png(data: bytes) -> bytes:
    """Returns a lossless image as PNG with the same pixels, because no other library reads the lossless format."""
    pixels = decode(data)
    if pixels.dtype == np.uint16 and len(pixels) > 1:
        raise SchemaError("a lossless image of 16 bits has colour or alpha, which is written to no PNG: only gray is")
    file = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(file, "PNG")
    return file.getvalue()
