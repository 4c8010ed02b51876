"""Imports LMDB databases: keys and values become columns."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from concurrent_loader.storage.errors import ConfigurationError, FormatError, NotFound
from concurrent_loader.storage.importers.column_types import MAX_SAMPLED, MAX_SAMPLED_BYTES, derive_columns
from concurrent_loader.storage.importers.column_values import convert
from concurrent_loader.storage.importers.file_importer import FileImporter
from concurrent_loader.storage.importers.optional_library import import_library
from concurrent_loader.storage.importers.protocol import ImportedSample, ImportProblem, ImportScan
from concurrent_loader.storage.importers.source_files import SourceFile
from concurrent_loader.storage.importers.threaded_importer import Items
from concurrent_loader.storage.shards.manifest.manifest import Manifest

__all__ = ["LMDBDatabase"]

_KEY, _VALUE = "__key__", "value"
_DATA = "data.mdb"
_MAX_DATABASES = 64


class LMDBDatabase(FileImporter):
    """Imports an LMDB database on a local drive, in the order of its keys.

    The key becomes the column ``__key__`` (str, or bytes if keys are not UTF-8), and the value the column ``value``: an
    image type if the first values are images, otherwise bytes. Keys of the form ``__…__`` (such as ``__len__``) are
    metadata by convention, and left out. Pickled values are refused, unless they are to stay bytes. Import only
    databases that you trust: the LMDB library does not check the pages of its files. Needs the extra ``lmdb``.

    Args:
        source: Path of the folder with ``data.mdb``, or of the file of a database without a folder.
        database: Name of a database inside the file. Default: the unnamed one.
        columns: Types of columns by name, in place of the derived ones, such as ``{"value": "json"}``.
        drop: Names of columns to leave out.
        client: Must be ``"auto"``, because LMDB maps local files into memory.
        storage_options: Must be empty.

    Example:
        >>> import lmdb
        >>> from concurrent_loader import ingest
        >>> from concurrent_loader.storage.importers import LMDBDatabase
        >>> with lmdb.open("db") as environment, environment.begin(write=True) as transaction:
        ...     inserted = transaction.put(b"a", b"1")
        >>> ingest(LMDBDatabase("db", columns={"value": "int64"}), "from-lmdb").manifest.schema
        {'__key__': 'str', 'value': 'int64'}
    """

    SUFFIXES = (".mdb", ".lmdb")
    WHAT = "an LMDB database"

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        database: str | None = None,
        columns: Mapping[str, str] | None = None,
        drop: Iterable[str] = (),
        client: str = "auto",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        path = os.fspath(source)
        if "://" in path and not path.startswith("file://"):
            raise ConfigurationError("LMDB maps local files into memory: copy the database to a local drive", got=path)
        local = Path(path.removeprefix("file://")).expanduser()
        if local.is_dir() and not (local / _DATA).is_file():
            raise NotFound(f"nothing to import: the folder has no {_DATA}", url=path)
        super().__init__(
            local / _DATA if local.is_dir() else local, columns=columns, drop=drop, client=client,
            storage_options=storage_options,
        )  # fmt: skip
        self._database = database
        self._num_ignored = 0

    def _scan(self, onto: Manifest | None) -> ImportScan:
        self._files.find(self.calls)
        file = self._files.files[0]
        with self._items(file) as (num_entries, items):
            first: list[tuple[bytes, bytes]] = []
            num_bytes = 0
            for key, value in islice(items, MAX_SAMPLED):
                first.append((key, value))
                num_bytes += len(value)
                if num_bytes > MAX_SAMPLED_BYTES:
                    break
        if not first:
            raise NotFound("nothing to import: the database is empty", url=self.url, got=self._database)
        if _VALUE not in self._types and _VALUE not in self._drop and any(_is_pickle(value) for _, value in first):
            raise ConfigurationError(
                "the values are pickled Python objects, which are never unpickled, because that executes code: store "
                "them as bytes (--column value=bytes), or write the fields by an importer of your own (docs, Import "
                "other formats)", url=self.url,
            )  # fmt: skip
        samples = [{_KEY: _text(key), _VALUE: value} for key, value in first]
        if not all(isinstance(sample[_KEY], str) for sample in samples):
            samples = [{_KEY: key, _VALUE: value} for key, value in first]
        columns = self._choose_columns(derive_columns(samples), onto)
        return ImportScan(
            columns=columns,
            num_samples=num_entries,
            num_bytes=self._files.num_bytes,
            identity=self._identity("lmdb", self._database),
            derived=self._derived(),
        )

    def _read(self) -> Items:
        with self._items(self._files.files[0]) as (_, items):
            for key, value in items:
                yield self._sample(key, value)

    def _sample(self, key: bytes, value: bytes) -> ImportedSample | ImportProblem:
        name = f"key {key[:200]!r}"
        values: dict[str, object] = {}
        fields = {_KEY: key, _VALUE: value}
        for column in self._columns.values():
            try:
                values[column.name] = convert(fields[column.name], column)
            except ValueError as error:
                return ImportProblem(name=name, reason=f"{column.name} is not {column.type}: {error}")
        return ImportedSample(name=name, values=values, num_bytes=len(key) + len(value))

    @contextmanager
    def _items(self, file: SourceFile) -> Generator[tuple[int, Iterable[tuple[bytes, bytes]]], None, None]:
        """Opens the database; yields the number of its entries without metadata, and the entries."""
        lmdb = import_library("lmdb", extra="lmdb")
        path = self._files.local_path(file)
        assert path is not None
        self._files.check_unchanged(file, self.calls)
        with self._faults_of(file, lmdb.Error):
            _check_size(file, lmdb, path)
            environment = lmdb.open(
                str(path),
                subdir=False,
                readonly=True,
                lock=False,
                readahead=False,
                max_dbs=_MAX_DATABASES,
                create=False,
            )
        try:
            with self._faults_of(file, lmdb.Error):
                name = self._database.encode() if self._database is not None else None
                try:
                    database = environment.open_db(name, create=False)
                except lmdb.NotFoundError as error:
                    raise NotFound("the file has no such database", got=self._database) from error
                with environment.begin(db=database) as transaction:
                    num_meta = sum(1 for key in _meta_keys(transaction) if key)
                    yield transaction.stat(database)["entries"] - num_meta, _entries(transaction)
        finally:
            environment.close()


def _check_size(file: SourceFile, lmdb: Any, path: Path) -> None:
    """Checks that the file is as long as its header states: reading a shorter one would end the process."""
    environment = lmdb.open(str(path), subdir=False, readonly=True, lock=False, create=False)
    try:
        num_pages, page_bytes = environment.info()["last_pgno"] + 1, environment.stat()["psize"]
    finally:
        environment.close()
    if num_pages * page_bytes > file.size:
        raise FormatError("the database is cut off", expected=num_pages * page_bytes, got=file.size)


def _entries(transaction: Any) -> Generator[tuple[bytes, bytes], None, None]:
    with transaction.cursor() as cursor:
        for key, value in cursor:
            if not _is_meta(key):
                yield key, value


def _meta_keys(transaction: Any) -> Generator[bytes, None, None]:
    with transaction.cursor() as cursor:
        if cursor.set_range(b"__"):
            for key in cursor.iternext(keys=True, values=False):
                if not key.startswith(b"__"):
                    return
                if _is_meta(key):
                    yield key


def _is_meta(key: bytes) -> bool:
    return len(key) > 4 and key.startswith(b"__") and key.endswith(b"__")


def _is_pickle(value: bytes) -> bool:
    """Returns whether bytes look like a pickle of protocol 2 or later."""
    return len(value) > 2 and value[0] == 0x80 and 2 <= value[1] <= 5 and value[-1:] == b"."


def _text(key: bytes) -> object:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key
