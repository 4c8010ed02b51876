"""Turns row groups of Parquet files into the payload of virtual shards.

The payload is what a shard of this project would store: for each row the values of the payload columns, in the order of
the columns, without gaps. It depends only on the values, so that any release of pyarrow gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import FormatError, SchemaError
from concurrent_loader.storage.shards.format.parquet_arrays import array_values, byte_values
from concurrent_loader.storage.shards.format.parquet_file import ParquetFooter, RowGroup, too_large
from concurrent_loader.storage.shards.format.schema import Column, ColumnKind

__all__ = ["PayloadField", "format_fields", "in_row", "parse_fields", "read_payload"]

_MAX_FIELDS = 256


class PayloadField(NamedTuple):
    """A payload column of a virtual shard.

    Attributes:
        name: Name of the column in the Parquet file.
        child: Name of the field, if the column is a struct; otherwise empty.
        type: Type of the array, such as ``"float32[...]"``; ``"bytes"`` for anything that is not an array.
    """

    name: str
    child: str
    type: str

    @property
    def path(self) -> str:
        """Path of the column in the Parquet file."""
        return f"{self.name}.{self.child}" if self.child else self.name


def format_fields(fields: Sequence[PayloadField]) -> str:
    """Returns payload columns as text, for a manifest."""
    return msgspec.json.encode(list(fields)).decode()


@lru_cache(maxsize=256)
def parse_fields(text: str) -> tuple[PayloadField, ...]:
    """Parses the text of `format_fields`.

    Raises:
        FormatError: No writer of this version writes such a text.
    """
    try:
        fields = tuple(PayloadField(*each) for each in msgspec.json.decode(text, type=list[tuple[str, str, str]]))
        sound = 0 < len(fields) <= _MAX_FIELDS and all(_is_payload(field.type) for field in fields)
        if sound and format_fields(fields) == text:
            return fields
    except (msgspec.MsgspecError, SchemaError) as error:
        raise FormatError(f"the payload columns of a Parquet file are invalid: {error}", got=text[:200]) from error
    raise FormatError("the payload columns of a Parquet file are invalid", got=text[:200])


def _is_payload(type_: str) -> bool:
    column = Column("value", type_)
    return column.type == type_ and column.kind is ColumnKind.PAYLOAD and (type_ == "bytes" or "[" in type_)


def read_payload(
    footer: ParquetFooter, group: RowGroup, fields: Sequence[PayloadField], chunks: Sequence[memoryview], max_bytes: int
) -> tuple[bytearray, npt.NDArray[np.int64]]:
    """Returns the payload of a row group, and the (n, p) lengths of its values.

    Args:
        footer: Footer of the file.
        group: Place of the fields' columns.
        fields: Payload columns.
        chunks: Bytes of the columns' chunks.
        max_bytes: Largest size of the payload.

    Raises:
        FormatError: The row group is damaged, a value is null, or the payload is larger than ``max_bytes``.
    """
    payload = bytearray()
    lengths: list[npt.NDArray[np.int64]] = []
    row = 0
    for batch in footer.batches(group, [field.path for field in fields], chunks):
        with in_row(group.number, row):
            values = [_values(batch, field) for field in fields]
        sizes = np.stack([np.diff(offsets) for _, offsets in values], axis=1)
        if len(payload) + int(sizes.sum()) > max_bytes:
            raise too_large(group.number, None, f"<= {max_bytes} bytes", len(payload) + int(sizes.sum()))
        if len(values) == 1:
            data, offsets = values[0]
            payload += data[int(offsets[0]) : int(offsets[-1])]
        else:
            bounds = [(data, offsets.tolist()) for data, offsets in values]
            for at in range(batch.num_rows):
                for data, places in bounds:
                    payload += data[places[at] : places[at + 1]]
        lengths.append(sizes)
        row += batch.num_rows
    return payload, np.concatenate(lengths) if lengths else np.empty((0, len(fields)), np.int64)


@contextmanager
def in_row(number: int, first: int) -> Iterator[None]:
    """Adds row group and row to an error of a batch.

    Args:
        number: Number of the row group.
        first: Row of the row group at which the batch begins.
    """
    try:
        yield
    except FormatError as error:
        error.what = f"row group {number}, row {first + (error.sample or 0)}: {error.what}"
        error.sample = None
        raise


def _values(batch: Any, field: PayloadField) -> tuple[memoryview, npt.NDArray[np.int64]]:
    """Returns the stored values of a field, one after another, and where they begin and end."""
    at = batch.schema.get_field_index(field.name)
    if at < 0:
        raise FormatError("the file lacks a column, or has two of its name", column=field.name, got=batch.schema.names)
    values = batch.column(at)
    if field.type == "bytes":
        return byte_values(values, field.name, field.child)
    column = Column("value", field.type)
    return array_values(values, field.name, column)
