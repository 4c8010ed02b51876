"""Imports Arrow IPC files and streams, and has the common part of importers that read Arrow data from files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, BinaryIO, ClassVar

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.importers.arrow_columns import ArrowColumns, Fault, arrow
from concurrent_loader.storage.importers.column_types import MAX_SAMPLED
from concurrent_loader.storage.importers.file_importer import FileImporter
from concurrent_loader.storage.importers.protocol import ImportedSample, ImportProblem, ImportScan
from concurrent_loader.storage.importers.sample_source import num_value_bytes
from concurrent_loader.storage.importers.threaded_importer import Items
from concurrent_loader.storage.shards.manifest.manifest import Manifest

__all__ = ["ArrowFiles", "ArrowSource"]

_MAX_COUNTED_FILES = 256


class ArrowSource(FileImporter):
    """Files that yield Arrow record batches."""

    NAME: ClassVar[str]
    SPLITS = True

    @abstractmethod
    def _open(self, file: BinaryIO) -> Any:
        """Opens a file with pyarrow."""

    @abstractmethod
    def _schema(self, opened: Any) -> Any:
        """Returns the Arrow schema of an open file."""

    @abstractmethod
    def _facts(self, opened: Any) -> tuple[int | None, frozenset[str]]:
        """Returns the number of rows, if known, and the names of the columns that are known to have nulls."""

    @abstractmethod
    def _batches(self, opened: Any, names: list[str]) -> Iterator[Any]:
        """Yields record batches with the named columns."""

    def _scan(self, onto: Manifest | None) -> ImportScan:
        self._faults: tuple[type[Exception], ...] = (arrow().ArrowException, OSError, ValueError, MemoryError)
        self._files.find(self.calls)
        num_samples, self._nullable = self._count()
        first = self._files.files[0]
        with self._files.open(first, self.calls) as file, self._faults_of(first, *self._faults):
            opened = self._open(file)
            schema = self._schema(opened)
            self._arrow = ArrowColumns(schema, self._nullable)
            names = [name for name, column in zip(schema.names, self._arrow.names, strict=True) if self._wants(column)]
            batch = next(self._batches(opened, names), None)
            sample = None if batch is None else batch.slice(0, MAX_SAMPLED)
            derived = self._arrow.derive(_with_all(sample, schema))
        columns = self._choose_columns(derived, onto)
        self._natural = derived
        metadata = self._arrow.number_classes(onto, columns)
        return ImportScan(
            columns=columns,
            num_samples=num_samples,
            num_bytes=self._files.num_bytes,
            num_ignored=self._files.num_ignored,
            metadata={"classes": metadata} if metadata else {},
            identity=self._identity(self.NAME),
            derived=self._derived(),
        )

    def _wants(self, column: str) -> bool:
        return column not in self._drop

    def _count(self) -> tuple[int | None, frozenset[str]]:
        """Reads the footers of the files, of the first 256 at most."""
        total: int | None = 0 if len(self._files.files) <= _MAX_COUNTED_FILES else None
        nullable: set[str] = set()
        for each in self._files.files[:_MAX_COUNTED_FILES]:
            try:
                with self._files.open(each, self.calls) as file, self._faults_of(each, *self._faults):
                    num_rows, names = self._facts(self._open(file))
            except FormatError:
                num_rows, names = None, frozenset()  # reported when the file's turn comes
            total = None if total is None or num_rows is None else total + num_rows
            nullable |= names
        return total, frozenset(nullable)

    def _read(self) -> Items:
        conversions = frozenset(
            name for name, column in self._columns.items() if column.type != self._natural[name]
        )  # fmt: skip
        for file in self._files.files:
            row = -1
            try:
                with self._files.open(file, self.calls) as opened, self._faults_of(file, *self._faults):
                    for batch, columns in self._file_batches(opened):
                        for values in columns.rows(batch, self._columns, conversions=conversions):
                            row += 1
                            yield _item(f"{file.key}: row {row}", values)
            except FormatError as error:
                yield ImportProblem(name=file.key, reason=f"{error.what}; rows after {row} are missing")

    def _file_batches(self, file: BinaryIO) -> Iterator[tuple[Any, ArrowColumns]]:
        opened = self._open(file)
        schema = self._schema(opened)
        columns = self._arrow
        if not schema.equals(columns.schema, check_metadata=True):  # which has the names of the classes
            columns = ArrowColumns(schema, self._nullable)
            columns.number_classes_like(self._arrow, self._columns)
        missing = [name for name in self._columns if name not in columns.names]
        if missing:
            raise FormatError("the file does not have the columns of the first file", expected=", ".join(missing))
        surplus = [name for name in columns.names if name not in self._columns and self._wants(name)]
        if surplus:
            raise FormatError("the file has columns that the first file does not have", got=", ".join(surplus))
        names = [name for name, own in zip(schema.names, columns.names, strict=True) if own in self._columns]
        for batch in self._batches(opened, names):
            yield batch, columns


def _with_all(batch: Any, schema: Any) -> Any:
    """Returns a batch with empty columns in place of the ones that were not read."""
    if batch is None:
        return None
    pa = arrow()
    arrays = [
        batch.column(field.name) if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _item(name: str, values: dict[str, Any] | Fault) -> ImportedSample | ImportProblem:
    if isinstance(values, Fault):
        return ImportProblem(name=name, reason=values.reason)
    return ImportedSample(name=name, values=values, num_bytes=num_value_bytes(values))


class ArrowFiles(ArrowSource):
    """Imports Arrow IPC files and streams (also Feather version 2), in the order of their names and rows.

    Types of columns are derived as by `ParquetFiles`. One record batch is in memory at a time. Needs the extra
    ``parquet``.

    Args:
        source: URL or path of an Arrow file, or of a folder with Arrow files.
        columns: Types of columns by name, in place of the derived ones.
        drop: Names of columns to leave out.
        client: Client library of the source's store, as for `open_store`.
        storage_options: Options of the source's store, as for `open_store`.

    Example:
        >>> import pyarrow, pyarrow.feather
        >>> from concurrent_loader import ingest
        >>> from concurrent_loader.storage.importers import ArrowFiles
        >>> pyarrow.feather.write_feather(pyarrow.table({"name": ["a", "b"]}), "t.feather")
        >>> ingest(ArrowFiles("t.feather"), "from-arrow").num_samples
        2
    """

    SUFFIXES = (".arrow", ".arrows", ".feather", ".ipc")
    WHAT = "an Arrow file"
    NAME = "arrow"

    def _open(self, file: BinaryIO) -> Any:
        import_ipc = arrow().ipc
        start = file.read(6)
        file.seek(0)
        return import_ipc.open_file(file) if start == b"ARROW1" else import_ipc.open_stream(file)

    def _schema(self, opened: Any) -> Any:
        return opened.schema

    def _facts(self, opened: Any) -> tuple[int | None, frozenset[str]]:
        del opened
        return None, frozenset()

    def _batches(self, opened: Any, names: list[str]) -> Iterator[Any]:
        if hasattr(opened, "num_record_batches"):
            batches: Iterator[Any] = (opened.get_batch(number) for number in range(opened.num_record_batches))
        else:
            batches = iter(opened)
        for batch in batches:
            batch.validate(full=True)  # pyarrow reads outside the buffers if offsets are wrong
            yield batch.select(names)
