"""Encodes the columns of many samples at once, as `ShardBuilder.add` encodes sample by sample. No I/O.

Numbers of arrays are checked and converted as a whole. Lists are encoded value by value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import SchemaError
from concurrent_loader.storage.shards.format.array_codecs import converts_safely
from concurrent_loader.storage.shards.format.nulls import null_rows
from concurrent_loader.storage.shards.format.schema import Column, ColumnKind, Schema
from concurrent_loader.storage.shards.format.value_codecs import MAX_SMALL_VALUE_BYTES, max_exact_integer

__all__ = ["EncodedBatch", "Sizes", "encode_batch", "with_nulls_as_none"]

Mask = npt.NDArray[np.bool_]
Sizes = npt.NDArray[np.int64]
Estimate = Callable[[object], int]


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Samples in their stored form.

    Attributes:
        num_samples: Number of samples, n.
        fixed: (n, width) uint8 of each FIXED column.
        values: Bytes of each value of SMALL and PAYLOAD columns.
        nulls: Rows of the nulls of each optional column, ascending.
        sizes: (n,) int64 of each SMALL and PAYLOAD column, bytes of its values.
        estimates: (n,) int64 of each of these columns, upper estimates that decide where a shard ends.
    """

    num_samples: int
    fixed: Mapping[str, npt.NDArray[np.uint8]]
    values: Mapping[str, Sequence[bytes]]
    nulls: Mapping[str, Sequence[int]]
    sizes: Mapping[str, Sizes]
    estimates: Mapping[str, Sizes]

    @property
    def num_bytes(self) -> Sizes:
        """(n,) int64, bytes of each sample's SMALL and PAYLOAD values."""
        return self._sum(self.sizes)

    @property
    def estimated_bytes(self) -> Sizes:
        """(n,) int64, upper estimates of `num_bytes`."""
        return self._sum(self.estimates)

    def _sum(self, sizes: Mapping[str, Sizes]) -> Sizes:
        return sum(sizes.values(), np.zeros(self.num_samples, np.int64))

    def select(self, names: Mapping[str, str]) -> EncodedBatch:
        """Returns some columns under other names.

        Args:
            names: Name in the result → name in this batch.
        """
        return EncodedBatch(
            self.num_samples,
            {new: self.fixed[name] for new, name in names.items() if name in self.fixed},
            {new: self.values[name] for new, name in names.items() if name in self.values},
            {new: self.nulls[name] for new, name in names.items() if name in self.nulls},
            {new: self.sizes[name] for new, name in names.items() if name in self.sizes},
            {new: self.estimates[name] for new, name in names.items() if name in self.estimates},
        )


def encode_batch(schema: Schema, columns: Any, estimate_of: Callable[[Column], Estimate]) -> EncodedBatch:
    """Encodes the columns of a batch; see `ShardWriter.write_batch`.

    Args:
        schema: Columns of every sample.
        columns: Values of each column: a mapping, or a table of Arrow, polars or pandas.
        estimate_of: Function that returns the upper estimate of a SMALL or PAYLOAD column: the bytes of a value.

    Raises:
        SchemaError: Columns are missing, differ in length, or have an unsuitable value; the error names column and row.
    """
    if not isinstance(columns, Mapping):
        names = getattr(columns, "column_names", None) or getattr(columns, "columns", None)
        if names is None:
            raise SchemaError("a batch must map columns to values", got=type(columns).__name__)
        columns = {str(name): columns[name] for name in names}
    schema.check_sample_keys(columns)
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise SchemaError("columns of a batch differ in length", got=lengths)
    num_samples = next(iter(lengths.values()))
    fixed: dict[str, npt.NDArray[np.uint8]] = {}
    values: dict[str, Sequence[bytes]] = {}
    nulls: dict[str, Sequence[int]] = {}
    sizes: dict[str, Sizes] = {}
    estimates: dict[str, Sizes] = {}
    for column in schema:
        if column.kind is ColumnKind.FIXED:
            fixed[column.name], null = _encode_fixed(column, columns[column.name])
        else:
            rows = _rows(columns[column.name])
            values[column.name] = encoded = _encode_values(column, rows)
            sizes[column.name] = estimates[column.name] = np.fromiter(map(len, encoded), np.int64, num_samples)
            if column.dtype is not None or column.base_type == "json":  # the estimate of others is their length
                estimates[column.name] = np.fromiter(map(estimate_of(column), rows), np.int64, num_samples)
            null = [at for at, value in enumerate(rows) if value is None] if column.optional else []
        if column.optional:
            nulls[column.name] = null
    return EncodedBatch(num_samples, fixed, values, nulls, sizes, estimates)


# -- numbers and arrays of one shape -----------------------------------------------------------------------------------


def _encode_fixed(column: Column, values: Any) -> tuple[npt.NDArray[np.uint8], list[int]]:
    array, null = _as_array(values)
    if array is not None:
        if null.any() and not column.optional:
            _fail(column, None, int(np.argmax(null)))
        if (encoded := _converted(column, array, null)) is not None:
            encoded[null] = 0
            return encoded, np.flatnonzero(null).tolist()
    rows = _rows(values)
    data = b"".join(_encode_each(column, rows))
    width = column.min_tail_bytes
    nulls = [at for at, value in enumerate(rows) if value is None]
    return np.frombuffer(data, np.uint8).reshape(len(rows), width), nulls


def _converted(column: Column, array: npt.NDArray[Any], null: Mask) -> npt.NDArray[np.uint8] | None:
    """Returns the stored bytes, (n, width); None if a value must be looked at by itself, most often for its error."""
    dtype = column.dtype
    if dtype is None or array.shape[1:] != column.shape:
        return None
    if column.shape and not converts_safely(array.dtype, dtype):
        return None
    if not column.shape and (_misfits(array, dtype) & ~null).any():
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(dtype, order="C")
    if dtype.kind == "b":
        converted = converted.view(np.uint8) != 0  # a view of other memory may hold a True that is not 1
    return converted.reshape(len(array), -1).view(np.uint8).reshape(len(array), column.min_tail_bytes)


def _misfits(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> Mask:
    """Returns which numbers the codecs of numbers reject, in `concurrent_loader.storage.shards.format.value_codecs`."""
    kind = array.dtype.kind
    none = np.zeros(len(array), np.bool_)
    if kind == "b" or dtype.kind == "b":
        return none if kind == dtype.kind else ~none
    if kind in "iu":
        own = np.iinfo(array.dtype)
        if dtype.kind == "f":
            low, high = -max_exact_integer(dtype), max_exact_integer(dtype)
        else:
            low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        if own.min < low:
            none |= array < low
        if own.max > high:
            none |= array > high
        return none
    if kind != "f" or dtype.kind != "f" or array.dtype.itemsize > 8:
        return ~none
    if array.dtype.itemsize <= dtype.itemsize:
        return none
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.isfinite(array) & ~np.isfinite(array.astype(dtype)))


# -- values of different lengths ---------------------------------------------------------------------------------------


def _encode_values(column: Column, rows: Sequence[Any]) -> list[bytes]:
    kinds = set(map(type, rows))
    if column.base_type == "str" and kinds <= {str}:
        try:
            texts = [text.encode() for text in rows]
        except UnicodeEncodeError:
            return _encode_each(column, rows)
        return texts if max(map(len, texts), default=0) <= MAX_SMALL_VALUE_BYTES else _encode_each(column, rows)
    if column.base_type == "bytes" and kinds <= {bytes}:
        return list(rows)
    is_ragged = column.dtype is not None and column.shape is None and column.dtype.kind != "b"
    if is_ragged and kinds == {np.ndarray} and all(row.ndim == 1 and row.dtype == column.dtype for row in rows):
        return [_ONE_DIMENSION.pack(1, len(row)) + row.tobytes() for row in rows]
    return _encode_each(column, rows)


_ONE_DIMENSION = struct.Struct("<B7xQ")  # how `RaggedArrayCodec` begins an array of one dimension


def _encode_each(column: Column, rows: Sequence[Any]) -> list[bytes]:
    encoded: list[bytes] = []
    try:
        for row in rows:
            encoded.append(column.encode(row))  # noqa: PERF401 - their number tells which one failed
    except SchemaError as error:
        error.locate(sample=len(encoded))
        raise
    return encoded


def _fail(column: Column, value: object, row: int) -> None:
    try:
        column.encode(value)
    except SchemaError as error:
        error.locate(sample=row)
        raise


# -- numpy, torch, Arrow, polars, pandas -------------------------------------------------------------------------------


def _library(values: Any) -> str:
    return type(values).__module__.partition(".")[0]


def _as_array(values: Any) -> tuple[npt.NDArray[Any] | None, Mask]:
    """Returns numbers as an array (n, …), and which rows are null; None in place of an array if values are others."""
    null = np.zeros(len(values), np.bool_)
    library = _library(values)
    if isinstance(values, np.ma.MaskedArray):
        null = null_rows(values)
        if int(np.count_nonzero(np.ma.getmaskarray(values))) * len(values) != values.size * int(null.sum()):
            raise SchemaError("only whole values may be masked")
        values = np.ma.getdata(values)
    elif library == "pyarrow":
        if values.null_count:
            null = np.asarray(values.is_null())
            values = values.fill_null(False) if str(values.type) == "bool" else _filled(values)
        width = getattr(values.type, "list_size", None)
        if width is not None and not null.any():
            whole = values.combine_chunks() if hasattr(values, "combine_chunks") else values
            flat = whole.flatten()
            # A null within a row would become NaN.
            return (None if flat.null_count else np.asarray(flat).reshape(len(values), width)), null
    elif library == "polars":
        if values.null_count():
            null = values.is_null().to_numpy()
            values = values.fill_null(False) if str(values.dtype) == "Boolean" else _filled(values)
        values = values.to_numpy()
    elif library == "pandas" and not isinstance(values.dtype, np.dtype):
        plain = getattr(values.dtype, "numpy_dtype", None)  # of Int64, boolean …; in others, NaN is a number
        if plain is None:
            return None, null
        null = values.isna().to_numpy()
        values = values.to_numpy(plain, na_value=plain.type(0))
    elif isinstance(values, list | tuple):
        return None, null
    array = np.asarray(values)
    return (array if array.ndim and array.dtype.kind in "biuf" else None), null


def _filled(values: Any) -> Any:
    return values if "list" in str(getattr(values, "type", "")) else values.fill_null(0)


def with_nulls_as_none(values: Any) -> Any:
    """Returns a column of Arrow or polars that has nulls as a list with None; anything else as it is."""
    library = _library(values)
    has_nulls = (library == "pyarrow" and values.null_count) or (library == "polars" and values.null_count())
    return _rows(values) if has_nulls else values


def _rows(values: Any) -> Sequence[Any]:
    """Returns the values of a column one by one, None for nulls."""
    library = _library(values)
    if isinstance(values, np.ndarray):
        if np.ma.isMaskedArray(values):
            null = null_rows(values)
            return [None if is_null else row for row, is_null in zip(np.ma.getdata(values), null.tolist(), strict=True)]
        return values.tolist() if values.dtype.kind in "OU" and values.ndim == 1 else list(values)
    if library == "pyarrow":
        return _arrow_rows(values)
    if library == "polars":
        if str(values.dtype).startswith(("List", "Array")):
            return [None if row is None else row.to_numpy() for row in values]
        return values.to_list()  # type: ignore[no-any-return]
    if library == "pandas":
        missing = values.isna().to_numpy()
        return [None if is_null else row for row, is_null in zip(values, missing.tolist(), strict=True)]
    return values if isinstance(values, list | tuple) else list(values)


def _arrow_rows(values: Any) -> list[Any]:
    rows: list[Any] = []
    for chunk in getattr(values, "chunks", [values]):
        if not str(chunk.type).startswith(("list<", "large_list<")) or chunk.values.null_count:
            rows += chunk.to_pylist()
            continue
        numbers, ends = np.asarray(chunk.values), np.asarray(chunk.offsets).tolist()
        found = [numbers[start:end] for start, end in pairwise(ends)]
        rows += [row if is_valid else None for row, is_valid in zip(found, chunk.is_valid().to_pylist(), strict=True)]
    return rows
