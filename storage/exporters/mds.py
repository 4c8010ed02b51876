"""Exports MDS, the format of MosaicML Streaming: raw shards and ``index.json``.

This is own code instead of the package ``mosaicml-streaming``: the package requires torch and the SDKs of four clouds,
and encodes an image again unless it comes from a file. A shard is laid out as follows. Numbers are u32,
little-endian::

    number of samples n | n + 1 offsets from the start of the file | JSON of the columns | samples

A sample is the lengths of its values of variable size, and then all values. Columns are sorted by name.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import SchemaError
from concurrent_loader.storage.exporters.protocol import ExportColumn, ExportSpec, FileWriter, WrittenFile

__all__ = ["Mds"]

_MAX_OFFSET = 2**32 - 1
_MAX_DIMS = 63
_DTYPE_OF_BOOL = "uint8"  # MDS has no bool


class Mds:
    """Writes ``shard.00000.mds`` and so on, and ``index.json``.

    Args:
        spec: Contents of the export.
    """

    min_files = 0
    merged: str | None = None
    is_file_per_sample = False

    def __init__(self, spec: ExportSpec) -> None:
        self._columns = tuple(sorted(spec.columns, key=lambda column: column.name))
        encodings = [_encoding(column) for column in self._columns]
        self._config = {
            "column_encodings": [name for name, _ in encodings],
            "column_names": [column.name for column in self._columns],
            "column_sizes": [size for _, size in encodings],
            "compression": None,
            "format": "mds",
            "hashes": [],
            "size_limit": None,
            "version": 2,
        }

    def file_name(self, number: int) -> str:
        """Returns the name of a file, from its number."""
        return f"shard.{number:05d}.mds"

    def open(self, file: BinaryIO, num_samples: int) -> FileWriter:
        """Starts a shard."""
        return _MdsWriter(file, num_samples, self._columns, self._config)

    def index(self, files: Sequence[WrittenFile]) -> dict[str, bytes]:
        """Returns ``index.json``."""
        shards = [
            {
                **self._config,
                "raw_data": {"basename": file.name, "bytes": file.num_bytes, "hashes": {}},
                "samples": file.num_samples,
                "zip_data": None,
            }
            for file in files
        ]
        return {"index.json": json.dumps({"shards": shards, "version": 2}, sort_keys=True).encode()}


class _MdsWriter:
    def __init__(
        self, file: BinaryIO, num_samples: int, columns: Sequence[ExportColumn], config: Mapping[str, Any]
    ) -> None:
        self._file = file
        self._columns = columns
        self._sizes = config["column_sizes"]
        self._num_samples = num_samples
        text = json.dumps(config, sort_keys=True).encode()
        self._offsets = [4 + 4 * (num_samples + 1) + len(text)]
        file.write(bytes(self._offsets[0] - len(text)))  # the header, which `close` fills in
        file.write(text)

    def write(self, sample: int, values: Mapping[str, Any], key: str | None) -> None:
        """Appends one sample."""
        for column in self._columns:
            if values[column.name] is None and column.optional:
                raise SchemaError(
                    "MDS has no nulls; export to parquet, or leave the column out by --columns (columns=)",
                    column=column.source, sample=sample,
                )  # fmt: skip
        data = [_encoded(column, values[column.name]) for column in self._columns]
        lengths = [len(each) for each, size in zip(data, self._sizes, strict=True) if size is None]
        end = self._offsets[-1] + 4 * len(lengths) + sum(map(len, data))
        if end > _MAX_OFFSET:
            raise SchemaError(
                "a shard of MDS has at most 4 GiB; pass a smaller --shard-size (shard_size=)", expected=_MAX_OFFSET,
                got=end,
            )  # fmt: skip
        self._file.write(struct.pack(f"<{len(lengths)}I", *lengths))
        self._file.writelines(data)
        self._offsets.append(end)

    def close(self) -> None:
        """Fills in the header."""
        self._file.seek(0)
        self._file.write(np.array([self._num_samples, *self._offsets], "<u4").tobytes())
        self._file.seek(0, 2)

    def abandon(self) -> None:
        """Does nothing."""


def _encoding(column: ExportColumn) -> tuple[str, int | None]:
    """Returns the encoding of a column, and the size of a value if all values have the same size."""
    if column.type in ("bytes", "str", "json", "jpeg", "png"):
        return column.type, None
    if column.dtype is None:  # other images, for which MDS has no encoding
        return "bytes", None
    dtype = _DTYPE_OF_BOOL if column.dtype.kind == "b" else column.dtype.name
    if not column.is_array:
        return ("int" if dtype == "int64" else dtype), column.dtype.itemsize
    if column.shape is None:
        return f"ndarray:{dtype}", None
    size = int(np.prod(column.shape)) * column.dtype.itemsize
    return f"ndarray:{dtype}:{','.join(map(str, column.shape))}", size


def _encoded(column: ExportColumn, value: Any) -> bytes:
    if column.type == "str":
        return bytes(value.encode())
    if column.type == "json":
        return msgspec.json.encode(value, order="deterministic")
    if column.dtype is None:
        return bytes(value)
    array = np.asarray(value, column.dtype)
    if column.shape is None:
        return _shape_of(column, array) + array.tobytes()
    return array.tobytes()


def _shape_of(column: ExportColumn, array: npt.NDArray[Any]) -> bytes:
    """Returns the shape of an array, in the smallest type that holds every dimension."""
    if not 1 <= array.ndim <= _MAX_DIMS or not array.size:
        raise SchemaError(
            "MDS holds no arrays without numbers or dimensions; leave the column out by --columns (columns=)",
            column=column.source, got=array.shape,
        )  # fmt: skip
    code = next(code for code in range(4) if max(array.shape) < 1 << (8 << code))
    return bytes([array.ndim << 2 | code]) + np.array(array.shape, f"<u{1 << code}").tobytes()
