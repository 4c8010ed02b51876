"""Turns columns of Arrow batches into stored values of this project: bytes, and arrays of numbers."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.shards.format.schema import Column

__all__ = ["array_values", "byte_values", "flat_numbers", "refuse_nulls"]

Values = tuple[memoryview, npt.NDArray[np.int64]]


def refuse_nulls(values: Any, column: str) -> None:
    """Checks that a column has no nulls.

    Raises:
        FormatError: It has one; ``sample`` is its row in the batch.
    """
    if values.null_count:
        row = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise FormatError(
            f"the value is null; adopt the column as JSON (--column {column}=json), leave it out with --only, or "
            "convert the files with `concurrent-loader ingest parquet`",
            column=column, sample=row,
        )  # fmt: skip


def _plain(values: Any) -> Any:
    """Returns a column without dictionary encoding and extension type."""
    kind = values.type
    if hasattr(kind, "storage_type"):
        values, kind = values.storage, kind.storage_type
    return values.dictionary_decode() if hasattr(kind, "index_type") else values


def byte_values(values: Any, name: str, child: str) -> Values:
    """Returns the bytes of a column of binary values or texts, and where each value begins and ends.

    Args:
        values: Arrow array.
        name: Name of the column, for messages.
        child: Field that holds the bytes, if the column is a struct; otherwise empty.

    Raises:
        FormatError: A value is null, or the column holds something else.
    """
    import pyarrow as pa

    values = _plain(values)
    if child:
        refuse_nulls(values, name)
        try:
            values = _plain(values.field(child))
        except (KeyError, TypeError, AttributeError) as error:
            raise FormatError("the column has no such field", column=name, expected=child) from error
        if values.null_count:
            row = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
            raise FormatError(
                f"the field {child!r} is null: the file holds only a path; write the files again with their bytes "
                "(`push_to_hub(embed_external_files=True)`), or convert them with `concurrent-loader ingest parquet`",
                column=name, sample=row,
            )  # fmt: skip
    refuse_nulls(values, name)
    try:
        values = values.cast(pa.large_binary())
    except pa.ArrowException as error:
        raise FormatError(f"the column does not hold bytes: {error}", column=name, got=str(values.type)) from error
    _, places, data = values.buffers()
    if not len(values):
        return memoryview(b""), np.zeros(1, np.int64)
    offsets = np.frombuffer(places, np.int64)[values.offset : values.offset + len(values) + 1]
    return memoryview(b"" if data is None else data).cast("B"), offsets


def flat_numbers(values: Any, name: str) -> tuple[npt.NDArray[Any], list[npt.NDArray[np.int64]]]:
    """Returns the numbers of nested lists, and the lengths of the lists on each level, the outermost first.

    Raises:
        FormatError: A list or a number is null, or the column holds something else.
    """
    import pyarrow as pa

    lengths: list[npt.NDArray[np.int64]] = []
    rows = len(values)
    while True:
        values = _plain(values)
        if values.null_count:
            if not lengths:
                refuse_nulls(values, name)
            raise FormatError("an array has a null", column=name)
        kind = values.type
        if pa.types.is_fixed_size_list(kind):
            lengths.append(np.full(len(values), kind.list_size, np.int64))
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            lengths.append(np.diff(values.offsets.to_numpy().astype(np.int64)))
        else:
            break
        values = values.flatten()
    if not lengths or not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise FormatError("the column does not hold arrays of numbers", column=name, got=str(kind), sample=rows and 0)
    return values.to_numpy(zero_copy_only=False), lengths


def array_values(values: Any, name: str, column: Column) -> Values:
    """Returns arrays in their stored form, and where each begins and ends.

    Args:
        values: Arrow array of lists of numbers.
        name: Name of the column, for messages.
        column: Column with the type of the arrays; ragged arrays have one dimension.

    Raises:
        FormatError: A value is null, or has another shape or dtype.
    """
    numbers, lengths = flat_numbers(values, name)
    dtype = column.dtype
    assert dtype is not None
    if not np.can_cast(numbers.dtype, dtype, "safe"):
        raise FormatError(
            "numbers of the file do not fit the column", column=name, expected=column.type, got=str(numbers.dtype)
        )
    data = np.ascontiguousarray(numbers, dtype).data.cast("B") if len(numbers) else memoryview(b"")
    if column.shape is not None:
        if len(lengths) != len(column.shape):
            raise FormatError("an array has another number of dimensions", column=name, expected=column.type)
        num_rows = len(values)
        for dim, stated in zip(column.shape, lengths, strict=True):
            wrong = np.flatnonzero(stated != dim)
            if len(wrong):
                row = int(wrong[0]) * num_rows // max(1, len(stated))
                raise FormatError(
                    f"an array has another shape; choose the type with --column {name}={dtype.name}[...]",
                    column=name, sample=row, expected=column.type, got=int(stated[wrong[0]]),
                )  # fmt: skip
        return data, np.arange(num_rows + 1, dtype=np.int64) * (len(data) // max(1, num_rows))
    if len(lengths) != 1:
        raise FormatError("a ragged array must have one dimension", column=name, expected=column.type)
    pieces: list[bytes | memoryview] = []
    at = 0
    for length in lengths[0].tolist():
        pieces += [struct.pack("<B7xQ", 1, length), data[at : at + length * dtype.itemsize]]
        at += length * dtype.itemsize
    sizes = lengths[0] * dtype.itemsize + 16
    return memoryview(b"".join(pieces)), np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
