"""Imports a Zarr group: arrays of the same length become columns."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from concurrent_loader.storage.errors import ConfigurationError, FormatError, NotFound, SchemaError, StorageError
from concurrent_loader.storage.importers.column_types import MAX_SAMPLED, column_names, derive_type
from concurrent_loader.storage.importers.column_values import convert
from concurrent_loader.storage.importers.file_importer import FileImporter
from concurrent_loader.storage.importers.optional_library import import_library
from concurrent_loader.storage.importers.protocol import ImportedSample, ImportProblem, ImportScan
from concurrent_loader.storage.importers.sample_source import num_value_bytes
from concurrent_loader.storage.importers.threaded_importer import Items
from concurrent_loader.storage.importers.zarr_store import zarr_store
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.sizes import format_size

__all__ = ["ZarrGroup"]

_MAX_BLOCK_BYTES = 1 << 30
_MAX_ARRAYS = 256
_METADATA = ("zarr.json", ".zarray", ".zgroup")
_FAULTS = (ValueError, TypeError, KeyError, IndexError, RuntimeError, OSError, EOFError, MemoryError, zlib.error)
# Codecs that only transform bytes and numbers; numcodecs also has pickle, and packages register others.
_CODECS = frozenset((
    "adler32", "astype", "base64", "bitround", "blosc", "bytes", "bz2", "crc32", "crc32c", "delta",
    "fixedscaleoffset", "fletcher32", "gzip", "jenkins_lookup3", "json2", "lz4", "lzma", "msgpack2", "packbits",
    "quantize", "sharding_indexed", "shuffle", "transpose", "vlen-array", "vlen-bytes", "vlen-utf8", "zlib", "zstd",
))  # fmt: skip


class ZarrGroup(FileImporter):
    """Imports a Zarr group (format 2 or 3) from any store, in the order of the rows.

    Arrays directly in the group become columns; all must have the same length. Numbers keep their dtype and the shape
    of a row. A chunk without an object is its fill value, as Zarr defines, so that a lost chunk cannot be found.
    Pickled objects are refused. Needs the extra ``zarr``.

    Args:
        source: URL or path of the folder of a group.
        group: Path of a group below the source. Default: the source itself.
        columns: Types of columns by name, in place of the derived ones.
        drop: Names of columns to leave out, such as arrays of another length.
        client: Client library of the source's store, as for `open_store`.
        storage_options: Options of the source's store, as for `open_store`.

    Example:
        >>> import zarr
        >>> from concurrent_loader import ingest
        >>> from concurrent_loader.storage.importers import ZarrGroup
        >>> group = zarr.open_group("x.zarr", mode="w")
        >>> array = group.create_array("x", shape=(4, 2), chunks=(2, 2), dtype="float32")
        >>> ingest(ZarrGroup("x.zarr"), "from-zarr").manifest.schema
        {'x': 'float32[2]'}
    """

    WHAT = "a Zarr group"
    HIDDEN = True  # the metadata of format 2

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        group: str = "",
        columns: Mapping[str, str] | None = None,
        drop: Iterable[str] = (),
        client: str = "auto",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(source, columns=columns, drop=drop, client=client, storage_options=storage_options)
        self._group = group.strip("/")

    def _scan(self, onto: Manifest | None) -> ImportScan:
        zarr = import_library("zarr", extra="zarr")
        self._files.find(self.calls)
        try:
            store = zarr_store(self._files, self.calls)
            group = zarr.open_group(store, path=self._group or None, mode="r")
            members = {name: group[name] for name in self._member_names()}
            found = {name: each for name, each in members.items() if isinstance(each, zarr.Array) and each.ndim}
        except FileNotFoundError as error:
            raise NotFound("there is no Zarr group", url=self.url, got=self._group or None) from error
        except _FAULTS as error:
            raise self._fault(error) from error
        names = column_names(sorted(found))
        dropped = [column for column in names.values() if column in self._drop]
        self._arrays = {names[name]: array for name, array in sorted(found.items()) if names[name] not in self._drop}
        if not self._arrays or len(found) > _MAX_ARRAYS:
            raise NotFound(f"the group must have 1 to {_MAX_ARRAYS} arrays with rows", url=self.url, got=len(found))
        lengths = {name: int(array.shape[0]) for name, array in self._arrays.items()}
        if len(set(lengths.values())) > 1:
            raise ConfigurationError(
                "the arrays have different lengths: choose a group (--group), or leave some out (--drop NAME)",
                url=self.url, got=lengths,
            )  # fmt: skip
        self._num_rows = next(iter(lengths.values()))
        try:
            derived = {name: self._derive(name, array) for name, array in self._arrays.items()}
        except _FAULTS as error:
            raise self._fault(error) from error
        columns = self._choose_columns({**derived, **dict.fromkeys(dropped, "bytes")}, onto)
        return ImportScan(
            columns=columns,
            num_samples=self._num_rows,
            num_bytes=self._files.num_bytes,
            num_ignored=self._files.num_ignored,
            identity=self._identity("zarr", self._group),
            derived=self._derived(),
        )

    def _member_names(self) -> list[str]:
        """Returns the names that have metadata; Zarr itself would leave out members with damaged metadata."""
        start = f"{self._group}/" if self._group else ""
        paths = (file.key[len(start) :].split("/") for file in self._files.files if file.key.startswith(start))
        return sorted({path[0] for path in paths if len(path) == 2 and path[1] in _METADATA})

    def _read(self) -> Items:
        rows = {name: _rows(self._arrays[name], self._num_rows) for name in self._columns}
        for number in range(self._num_rows):
            try:
                values = {name: next(each) for name, each in rows.items()}
            except _FAULTS as error:
                raise self._fault(error, row=number) from error
            yield self._sample(f"row {number}", values)

    def _sample(self, name: str, values: dict[str, Any]) -> ImportedSample | ImportProblem:
        for column in self._columns.values():
            try:
                values[column.name] = convert(values[column.name], column)
            except ValueError as error:
                return ImportProblem(name=name, reason=f"{column.name} is not {column.type}: {error}")
        return ImportedSample(name=name, values=values, num_bytes=num_value_bytes(values))

    def _derive(self, name: str, array: Any) -> str:
        unknown = sorted(_codec_names(array.metadata.to_dict()) - _CODECS)
        if unknown:
            raise ConfigurationError(
                "the array has a codec that is not known to be safe: rewrite the array without it, or leave it out "
                "(--drop NAME)", column=name, got=", ".join(unknown),
            )  # fmt: skip
        # A shard is read as a whole, and so are all chunks of a row.
        block = _block_rows(array) * math.prod(array.shape[1:]) * array.dtype.itemsize
        chunk = math.prod(array.shards or array.chunks) * array.dtype.itemsize
        if max(block, chunk) > _MAX_BLOCK_BYTES:
            raise FormatError(
                "the rows of a chunk are too large to be read at once: rewrite the array with fewer rows per chunk",
                column=name, expected=f"<= {format_size(_MAX_BLOCK_BYTES)}", got=format_size(max(block, chunk)),
            )  # fmt: skip
        if array.dtype.kind in "biuf":
            shape = array.shape[1:]
            dtype = array.dtype.newbyteorder("=").name
            if not all(shape):
                return f"{dtype}[...]"
            return f"{dtype}[{','.join(map(str, shape))}]" if shape else str(dtype)
        values = [value for _, value in zip(range(MAX_SAMPLED), _rows(array, self._num_rows), strict=False)]
        if not values or array.dtype.kind not in "OTSU":
            raise SchemaError("no column has the array's type: leave it out (--drop NAME)", column=name,
                              got=str(array.dtype))  # fmt: skip
        return derive_type(name, values)

    def _fault(self, error: Exception, *, row: int | None = None) -> StorageError:
        if isinstance(error, StorageError):
            return error
        return FormatError(
            f"the group cannot be read{'' if row is None else f' from row {row} on'}: {error or type(error).__name__}",
            url=self.url,
        )


def _codec_names(metadata: Any) -> set[str]:
    """Returns the names of all codecs in the metadata of an array, nested ones included."""
    names: set[str] = set()
    waiting = [metadata.get(part) for part in ("codecs", "filters", "compressor", "compressors")]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list | tuple):
            waiting += each
        elif isinstance(each, dict):
            name = each.get("name", each.get("id"))
            if isinstance(name, str):
                names.add(name.removeprefix("numcodecs."))
            waiting += [value for value in each.values() if isinstance(value, dict | list | tuple)]
        elif each is not None and not isinstance(each, str | int | float):
            config = getattr(each, "get_config", None) or getattr(each, "to_dict", None)
            waiting.append(config() if config is not None else {"name": type(each).__name__})
    return names


def _block_rows(array: Any) -> int:
    return int((array.shards or array.chunks)[0])


def _rows(array: Any, num_rows: int) -> Iterator[Any]:
    """Yields the rows; reads all rows of a chunk at once, so that each chunk is decoded once."""
    step = _block_rows(array)
    for start in range(0, num_rows, step):
        block = array[start : min(start + step, num_rows)]
        if block.ndim > 1 and block.dtype.kind in "biuf":
            yield from block
        else:
            yield from (_plain(value) for value in block.tolist())


def _plain(value: Any) -> Any:
    return value if not isinstance(value, np.ndarray) or value.dtype.kind in "biuf" else value.tolist()
