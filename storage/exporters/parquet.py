"""Exports Parquet as Hugging Face datasets reads and writes it.

Images are structs of bytes and path, and the file's metadata names the features ``Image`` and ``ClassLabel``. So
``datasets.load_dataset("parquet", data_files=…)`` shows images and class names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import msgspec
import numpy as np

from concurrent_loader.storage.errors import ConfigurationError, SchemaError
from concurrent_loader.storage.exporters.protocol import ExportColumn, ExportSpec, FileWriter, WrittenFile
from concurrent_loader.storage.exporters.sample_names import image_suffix

__all__ = ["Parquet"]

_ROW_GROUP_BYTES = 32 << 20
_BATCH_BYTES = 2 << 20
_ROW_GROUP_ROWS = 1 << 16
_MAX_VALUE_BYTES = 2**31 - 1 - _ROW_GROUP_BYTES  # offsets of Arrow's binary and list are int32


class Parquet:
    """Writes ``train-00000-of-00010.parquet`` and so on.

    Args:
        spec: Contents of the export.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """

    min_files = 1
    merged: str | None = None
    is_file_per_sample = False

    def __init__(self, spec: ExportSpec) -> None:
        try:
            import pyarrow.parquet
        except ImportError as error:
            raise ConfigurationError(
                "export to parquet needs pyarrow: run pip install pyarrow, or install the extra parquet"
            ) from error
        self._arrow = pyarrow
        self._spec = spec
        features = {column.name: _feature(column) for column in spec.columns}
        self._schema = pyarrow.schema(
            [(column.name, self._type(column)) for column in spec.columns],
            metadata={"huggingface": json.dumps({"info": {"features": features}})},
        )

    def file_name(self, number: int) -> str:
        """Returns the name of a file, from its number."""
        return f"train-{number:05d}-of-{self._spec.num_files:05d}.parquet"

    def open(self, file: BinaryIO, num_samples: int) -> FileWriter:
        """Starts a Parquet file."""
        return _ParquetWriter(self._arrow, file, self._spec, self._schema)

    def index(self, files: Sequence[WrittenFile]) -> dict[str, bytes]:
        """Returns no file: each file states how many there are."""
        return {}

    def _type(self, column: ExportColumn) -> Any:
        arrow = self._arrow
        if column.is_image:
            return arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
        if column.is_file:
            return arrow.binary()
        if column.dtype is None:
            return arrow.string()
        if column.classes is not None:
            return arrow.int64()
        scalar = arrow.from_numpy_dtype(column.dtype)
        if column.shape is None:
            return arrow.struct([("shape", arrow.list_(arrow.int64())), ("values", arrow.list_(scalar))])
        for length in reversed(column.shape):
            scalar = arrow.list_(scalar, length)
        return scalar


class _ParquetWriter:
    def __init__(self, arrow: Any, file: BinaryIO, spec: ExportSpec, schema: Any) -> None:
        self._arrow = arrow
        self._spec = spec
        self._schema = schema
        self._json = [column for column in spec.columns if column.type == "json"]
        self._rows: list[Mapping[str, Any]] = []
        self._first_sample = 0  # of these rows
        self._row_bytes = 0
        self._batches: list[Any] = []
        self._num_bytes = self._num_rows = 0  # of the row group
        # Snappy costs little where it saves nothing. Dictionaries of images would cost memory for nothing.
        # Statistics repeat the smallest and largest value of every page, so only numbers and texts have them.
        small = [column.name for column in spec.columns if not (column.is_image or column.is_array)]
        self._writer = arrow.parquet.ParquetWriter(
            file,
            schema,
            compression="snappy",
            use_dictionary=False,
            write_statistics=[name for name in small if schema.field(name).type != arrow.binary()],
            write_page_index=True,
        )

    def write(self, sample: int, values: Mapping[str, Any], key: str | None) -> None:
        """Adds one row; writes a row group when it is large enough."""
        if self._json:  # as text, whose size is known
            values = {**values, **{column.name: _text(column, values[column.name]) for column in self._json}}
        num_bytes = sum(_size(column, values[column.name]) for column in self._spec.columns)
        if self._num_rows and (self._num_bytes + num_bytes > _ROW_GROUP_BYTES or self._num_rows >= _ROW_GROUP_ROWS):
            self._write_row_group()
        if not self._rows:
            self._first_sample = sample
        self._rows.append(values)
        self._row_bytes += num_bytes
        self._num_bytes += num_bytes
        self._num_rows += 1
        if self._row_bytes > _BATCH_BYTES:
            self._convert()

    def close(self) -> None:
        """Writes the last row group and the footer."""
        if self._num_rows:
            self._write_row_group()
        self._writer.close()

    def abandon(self) -> None:
        """Drops pyarrow's writer, which would write a footer when it is collected.

        Here, and not while an error passes the frames that hold it: pyarrow 26 loses the error then, on Python 3.14.
        """
        self._writer.is_open = False
        self._writer = None

    def _convert(self) -> None:
        """Converts rows to Arrow in batches, because many Python objects would fragment the memory."""
        rows, self._rows = self._rows, []
        self._row_bytes = 0
        arrays = [
            self._array(column, [row[column.name] for row in rows], field.type)
            for column, field in zip(self._spec.columns, self._schema, strict=True)
        ]
        self._batches.append(self._arrow.RecordBatch.from_arrays(arrays, schema=self._schema))

    def _write_row_group(self) -> None:
        if self._rows:
            self._convert()
        batches, self._batches = self._batches, []
        self._num_bytes = self._num_rows = 0
        self._writer.write_table(self._arrow.Table.from_batches(batches), row_group_size=2**31 - 1)

    def _array(self, column: ExportColumn, values: list[Any], type_: Any) -> Any:
        arrow = self._arrow
        if column.is_image:
            digits = self._spec.sample_digits
            names = [
                None if value is None else f"{self._first_sample + row:0{digits}d}{image_suffix(value)}"
                for row, value in enumerate(values)
            ]
            fields = [arrow.array(values, arrow.binary()), arrow.array(names, arrow.string())]
            return arrow.StructArray.from_arrays(fields, fields=list(type_), mask=self._nulls(values))
        if not column.is_array:
            return arrow.array(values, type_)
        if column.shape is None:
            return self._ragged(values, type_)
        default = np.zeros(column.shape, column.dtype)
        array = arrow.array(np.stack([default if value is None else value for value in values]).reshape(-1))
        for length in reversed(column.shape[1:]):
            array = arrow.FixedSizeListArray.from_arrays(array, length)
        return arrow.FixedSizeListArray.from_arrays(array, column.shape[0], mask=self._nulls(values))

    def _nulls(self, values: list[Any]) -> Any:
        """Returns where values are null, as Arrow takes it; None without nulls."""
        nulls = [value is None for value in values]
        return self._arrow.array(nulls, self._arrow.bool_()) if any(nulls) else None

    def _ragged(self, values: list[Any], type_: Any) -> Any:
        arrow, nulls = self._arrow, self._nulls(values)
        empty = next((value[:0] for value in values if value is not None and value.ndim), np.zeros(0, np.int8))
        values = [empty if value is None else value for value in values]
        shapes = arrow.array([list(value.shape) for value in values], type_.field("shape").type)
        ends = np.cumsum([0, *(value.size for value in values)]).astype(np.int32)
        flat = arrow.array(np.concatenate([value.reshape(-1) for value in values]))
        flat = flat.cast(type_.field("values").type.value_type)
        lists = arrow.ListArray.from_arrays(ends, flat)
        return arrow.StructArray.from_arrays([shapes, lists], fields=list(type_), mask=nulls)


def _json_text(value: Any) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()


def _feature(column: ExportColumn) -> dict[str, Any]:
    """Returns the feature of a column in the words of Hugging Face datasets."""
    if column.is_image:
        return {"_type": "Image"}
    if column.classes is not None:
        return {"names": list(column.classes), "_type": "ClassLabel"}
    if column.dtype is None:
        return {"dtype": "binary" if column.is_file else "string", "_type": "Value"}
    feature: dict[str, Any] = {"dtype": column.dtype.name, "_type": "Value"}
    if column.shape is None:
        shape = {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "List"}
        return {"shape": shape, "values": {"feature": feature, "_type": "List"}}
    for length in reversed(column.shape):
        feature = {"feature": feature, "length": length, "_type": "List"}
    return feature


def _text(column: ExportColumn, value: Any) -> str | None:
    return None if value is None and column.optional else _json_text(value)


def _size(column: ExportColumn, value: Any) -> int:
    """Returns about how many bytes a value takes in memory."""
    if value is None:
        return 64
    if column.is_array:
        size = int(value.nbytes)
    elif column.dtype is not None:
        size = column.dtype.itemsize
    else:
        size = len(value) if isinstance(value, bytes | str) else 64
    if size > _MAX_VALUE_BYTES:
        raise SchemaError(
            "the value is too large for Parquet; leave the column out by --columns (columns=)", column=column.source,
            expected=f"<= {_MAX_VALUE_BYTES} bytes", got=size,
        )  # fmt: skip
    return size
