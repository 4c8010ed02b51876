"""Imports HDF5 files: datasets of the same length become columns."""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np

from concurrent_loader.storage.errors import ConfigurationError, FormatError, NotFound, SchemaError
from concurrent_loader.storage.importers.column_types import MAX_SAMPLED, column_names, derive_type
from concurrent_loader.storage.importers.column_values import convert
from concurrent_loader.storage.importers.file_importer import FileImporter
from concurrent_loader.storage.importers.optional_library import import_library
from concurrent_loader.storage.importers.protocol import ImportedSample, ImportProblem, ImportScan
from concurrent_loader.storage.importers.sample_source import num_value_bytes
from concurrent_loader.storage.importers.source_files import SourceFile
from concurrent_loader.storage.importers.threaded_importer import Items
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.sizes import format_size

__all__ = ["HDF5Files"]

_MAX_ROW_BYTES = 1 << 30
_SLICE_BYTES = 8 << 20
_CHUNK_CACHE_BYTES = 64 << 20  # per dataset, so that a chunk with more rows than a slice is decoded once
_MAX_SLICE_ROWS = 256
_VARIABLE_ROWS = 16  # per slice of values whose size only reading shows
_MAX_DATASETS = 256
_FAULTS = (OSError, RuntimeError, ValueError, KeyError, TypeError, MemoryError)


class HDF5Files(FileImporter):
    """Imports HDF5 files, in the order of their names and rows.

    Every dataset of a group and below becomes a column, named by its path (``a/b`` becomes ``a.b``). All must have the
    same length; scalar datasets and attributes are ignored. Numbers keep their dtype and shape, variable-length uint8
    becomes bytes or images, other variable-length numbers become arrays of any shape, and compounds become json. Links
    to other files are refused. Needs the extra ``hdf5``.

    Args:
        source: URL or path of an HDF5 file, or of a folder with HDF5 files.
        group: Path of the group in the file. Default: the root.
        columns: Types of columns by name, in place of the derived ones.
        drop: Names of columns to leave out, such as datasets of another length.
        client: Client library of the source's store, as for `open_store`.
        storage_options: Options of the source's store, as for `open_store`.

    Example:
        >>> import h5py
        >>> from concurrent_loader import ingest
        >>> from concurrent_loader.storage.importers import HDF5Files
        >>> with h5py.File("x.h5", "w") as file:
        ...     file["train/x"], file["train/y"] = [[1.0, 2.0], [3.0, 4.0]], [0, 1]
        >>> ingest(HDF5Files("x.h5", group="train"), "from-hdf5").manifest.schema
        {'x': 'float64[2]', 'y': 'int64'}
    """

    SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5")
    WHAT = "an HDF5 file"
    SPLITS = True

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        group: str = "/",
        columns: Mapping[str, str] | None = None,
        drop: Iterable[str] = (),
        client: str = "auto",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(source, columns=columns, drop=drop, client=client, storage_options=storage_options)
        self._group = group
        self._dropped: list[str] = []

    def _scan(self, onto: Manifest | None) -> ImportScan:
        self._files.find(self.calls)
        num_samples = 0
        derived: dict[str, str] = {}
        for number, file in enumerate(self._files.files):
            with self._opened(file) as datasets:
                num_samples += datasets[0].length
                if number:
                    continue
                with self._faults_of(file, *_FAULTS):
                    derived = {each.column: each.derive() for each in datasets}
        columns = self._choose_columns({**derived, **dict.fromkeys(self._dropped, "bytes")}, onto)
        return ImportScan(
            columns=columns,
            num_samples=num_samples,
            num_bytes=self._files.num_bytes,
            num_ignored=self._files.num_ignored,
            identity=self._identity("hdf5", self._group),
            derived=self._derived(),
        )

    def _read(self) -> Items:
        for file in self._files.files:
            with self._opened(file) as datasets:
                names = {each.column for each in datasets}
                if names != self._columns.keys():
                    reason = f"the file has the datasets {sorted(names)}, and the first file {sorted(self._columns)}"
                    yield ImportProblem(name=file.key, reason=reason)
                    continue
                step = min(each.slice_rows() for each in datasets)
                for start in range(0, datasets[0].length, step):
                    yield from self._rows(file, datasets, start, min(start + step, datasets[0].length))

    def _rows(self, file: SourceFile, datasets: list[_Dataset], start: int, end: int) -> Items:
        try:
            values = {each.column: each.read(start, end) for each in datasets}
        except _FAULTS as error:
            if end - start > 1:  # one damaged chunk must not take its neighbours along
                for row in range(start, end):
                    yield from self._rows(file, datasets, row, row + 1)
            else:
                yield ImportProblem(name=f"{file.key}: row {start}", reason=f"it cannot be read: {error}")
            return
        for row in range(end - start):
            yield self._sample(f"{file.key}: row {start + row}", {name: each[row] for name, each in values.items()})

    def _sample(self, name: str, values: dict[str, Any]) -> ImportedSample | ImportProblem:
        for column in self._columns.values():
            try:
                values[column.name] = convert(values[column.name], column)
            except ValueError as error:
                return ImportProblem(name=name, reason=f"{column.name} is not {column.type}: {error}")
        return ImportedSample(name=name, values=values, num_bytes=num_value_bytes(values))

    @contextmanager
    def _opened(self, file: SourceFile) -> Generator[list[_Dataset], None, None]:
        """Opens a file, and yields its datasets that are columns."""
        h5py = import_library("h5py", extra="hdf5")
        with ExitStack() as stack:
            path = self._files.local_path(file)
            if path is not None:
                self._files.check_unchanged(file, self.calls)
            opened = path or stack.enter_context(self._files.open(file, self.calls))
            with self._faults_of(file, *_FAULTS):
                root = stack.enter_context(h5py.File(opened, "r", rdcc_nbytes=_CHUNK_CACHE_BYTES))
                datasets = self._datasets(h5py, root)
            yield datasets

    def _datasets(self, h5py: Any, root: Any) -> list[_Dataset]:
        group = root.get(self._group) if _is_inside(h5py, root, self._group) else None
        if not isinstance(group, h5py.Group):
            raise NotFound("the file has no such group", expected=self._group, got=", ".join(list(root)[:10]))
        found = dict(_walk(h5py, group, ""))
        if not found:
            raise NotFound("the group has no datasets with rows", got=self._group)
        names = column_names(found)
        self._dropped = [column for column in names.values() if column in self._drop]
        kept = {name: each for name, each in found.items() if names[name] not in self._drop}
        lengths = {names[name]: len(each) for name, each in kept.items()}
        if len(set(lengths.values())) > 1:
            raise ConfigurationError(
                "the datasets have different lengths: choose a group (--group), or leave some out (--drop NAME)",
                got=lengths,
            )  # fmt: skip
        if not kept:
            raise ConfigurationError("no dataset is left: drop fewer", got=", ".join(self._drop))
        return [_Dataset.of(h5py, names[name], each) for name, each in kept.items()]


def _is_inside(h5py: Any, root: Any, path: str) -> bool:
    """Returns whether a path leads through groups of this file only."""
    at = root
    for part in path.strip("/").split("/"):
        if part and not isinstance(at.get(part, getlink=True), h5py.HardLink):
            return False
        at = at[part] if part else at
        if not isinstance(at, h5py.Group):
            return False
    return True


def _walk(h5py: Any, group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yields the datasets with rows by path. Follows hard links only, which cannot leave the file."""
    waiting = [(prefix, group)]
    seen = {group.id}
    count = 0
    while waiting:
        prefix, group = waiting.pop(0)
        for name in group:
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                continue
            child = group[name]
            if isinstance(child, h5py.Group) and child.id not in seen:
                seen.add(child.id)
                waiting.append((f"{prefix}{name}/", child))
            elif isinstance(child, h5py.Dataset) and child.shape:
                count += 1
                yield f"{prefix}{name}", child
            if max(count, len(seen)) > _MAX_DATASETS:
                raise FormatError("the file has too many datasets or groups", expected=f"<= {_MAX_DATASETS}")


class _Dataset(NamedTuple):
    """A dataset of an open file that becomes a column.

    Attributes:
        column: Name of the column.
        dataset: The dataset.
        kind: ``"number"``, ``"text"``, ``"bytes"``, ``"variable"``, ``"texts"`` or ``"record"``.
    """

    column: str
    dataset: Any
    kind: str

    @classmethod
    def of(cls, h5py: Any, column: str, dataset: Any) -> _Dataset:
        if dataset.external or dataset.is_virtual:
            raise ConfigurationError(
                "the dataset keeps its data in other files, which are not followed: copy them into the file, or leave "
                "it out (--drop NAME)", column=column,
            )  # fmt: skip
        dtype = dataset.dtype
        kind = ""
        if h5py.check_string_dtype(dtype) is not None:
            kind = "text" if dataset.ndim == 1 else "texts"
        elif (base := h5py.check_vlen_dtype(dtype)) is not None and dataset.ndim == 1:
            kind = "variable" if np.dtype(base).kind in "biuf" else ""
        elif dtype.kind in "biuf":
            kind = "number"
        elif dtype.names and dataset.ndim == 1 and all(dtype[name].base.kind in "biuf" for name in dtype.names):
            kind = "record"
        elif dtype.kind == "V" and not dtype.names and dataset.ndim == 1:
            kind = "bytes"
        row_bytes = math.prod(dataset.shape[1:]) * dtype.itemsize
        if not kind:
            raise ConfigurationError(
                "the dataset has a type that no column has: leave it out (--drop NAME)", column=column, got=str(dtype)
            )
        if row_bytes > _MAX_ROW_BYTES or math.prod(dataset.chunks or ()) * dtype.itemsize > _MAX_ROW_BYTES:
            raise FormatError(
                "a row or a chunk of the dataset is too large", column=column,
                expected=f"<= {format_size(_MAX_ROW_BYTES)}", got=format_size(row_bytes),
            )  # fmt: skip
        return cls(column, dataset, kind)

    @property
    def length(self) -> int:
        return int(self.dataset.shape[0])

    def slice_rows(self) -> int:
        if self.kind not in ("number", "record", "bytes"):
            return _VARIABLE_ROWS
        row_bytes = max(1, math.prod(self.dataset.shape[1:]) * self.dataset.dtype.itemsize)
        rows = max(1, min(_SLICE_BYTES // row_bytes, _MAX_SLICE_ROWS))
        chunk = self.dataset.chunks[0] if self.dataset.chunks else 1
        return int(rows // chunk * chunk) or rows

    def derive(self) -> str:
        if self.kind == "number":
            dtype = self.dataset.dtype.newbyteorder("=").name
            dims = ",".join(map(str, self.dataset.shape[1:]))
            if not all(self.dataset.shape[1:]):
                return f"{dtype}[...]"
            return f"{dtype}[{dims}]" if dims else dtype
        if self.kind in ("text", "texts", "record"):
            return "str" if self.kind == "text" else "json"
        values = []
        for start in range(0, min(self.length, MAX_SAMPLED), _VARIABLE_ROWS):
            values += self.read(start, min(start + _VARIABLE_ROWS, self.length, MAX_SAMPLED))
        if not values:
            raise SchemaError("the dataset is empty", column=self.column)
        return derive_type(self.column, values) if isinstance(values[0], bytes) else f"{values[0].dtype.name}[...]"

    def read(self, start: int, end: int) -> list[Any]:
        """Returns the values of rows."""
        rows = self.dataset[start:end]
        if self.kind == "number":
            return list(rows) if rows.ndim > 1 else rows.tolist()
        if self.kind in ("text", "texts"):
            return [_texts(row) for row in rows.tolist()]
        if self.kind == "record":
            return [{name: row[name].tolist() for name in rows.dtype.names} for row in rows]
        if self.kind == "bytes":
            return [row.tobytes() for row in rows]
        return [row.tobytes() if row.dtype == np.uint8 else row for row in rows]


def _texts(value: Any) -> Any:
    if isinstance(value, list):
        return [_texts(each) for each in value]
    return value.decode() if isinstance(value, bytes) else value
