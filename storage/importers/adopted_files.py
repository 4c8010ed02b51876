"""Imports the formats that can also be read in place: the same code finds the samples, and their values are copied."""

from __future__ import annotations

import os
from contextlib import closing
from functools import cached_property
from typing import Any, ClassVar

from concurrent_loader.storage.adopt.formats import find_format
from concurrent_loader.storage.adopt.object_reader import StoreObjects
from concurrent_loader.storage.adopt.protocol import ForeignColumn, ForeignFormat, FoundSample, ObjectReader
from concurrent_loader.storage.adopt.scan import Scanner
from concurrent_loader.storage.errors import ConfigurationError, FormatError, NotFound, SchemaError, StorageError
from concurrent_loader.storage.importers.file_importer import FileImporter
from concurrent_loader.storage.importers.protocol import ImportedSample, ImportProblem, ImportScan
from concurrent_loader.storage.importers.threaded_importer import Items
from concurrent_loader.storage.listing import ObjectEntry
from concurrent_loader.storage.ranges import ByteRange
from concurrent_loader.storage.shards.format.schema import Column, ColumnKind
from concurrent_loader.storage.shards.manifest.manifest import Manifest

__all__ = ["LitDataChunks", "MDSShards", "TFRecordFiles"]


class _AdoptedFiles(FileImporter):
    """An importer of a format of `concurrent_loader.storage.adopt`."""

    NAME: ClassVar[str] = ""
    _block_size: int | None = None

    @cached_property
    def _format(self) -> ForeignFormat:
        return find_format(self.NAME, block_size=self._block_size)

    def _scan(self, onto: Manifest | None) -> ImportScan:
        self._files.find(self.calls)
        url = self._files.store.url
        entries = [ObjectEntry(url, file.key, file.size, file.etag) for file in self._files.files]
        small = StoreObjects({entry.key: entry for entry in entries}, self._files.engine, self.calls)
        self._found = self._format.objects(entries, small)
        if not self._found:
            raise NotFound("nothing to import: the source has no samples", url=self.url)
        first = self._found[0]
        with closing(self._scanner().open(first)) as reader:
            derived = self._format.columns(first, reader)
        chosen = self._choose_columns({name: column.type for name, column in derived.items()}, onto)
        self._foreign: dict[str, ForeignColumn] = {}
        self._stored: dict[str, Column] = {}
        for name, type_ in chosen.items():
            known = derived[name]
            self._foreign[name] = known if known.type == type_ else self._format.retype(first, name, type_)
            self._stored[name] = Column(name, type_, self._foreign[name].encoding)
        counts = [int(each.info.get("samples", 0)) for each in self._found]
        return ImportScan(
            columns=chosen,
            num_samples=None if 0 in counts or self._block_size else sum(counts),
            num_bytes=sum(each.entry.size for each in self._found),
            num_ignored=len(entries) - len(self._found),
            identity=self._identity(self.NAME, self._block_size),
            derived=self._derived(),
        )

    def _read(self) -> Items:
        for source in self._found:
            try:
                with closing(self._scanner().open(source)) as reader:
                    for sample in self._format.walk(source, reader, self._foreign):
                        yield self._sample(sample, reader)
            except StorageError as error:
                raise error.locate(url=self._files.store.url, key=source.entry.key) from error.__cause__

    def _sample(self, sample: FoundSample, reader: ObjectReader) -> ImportedSample | ImportProblem:
        values: dict[str, object] = {}
        for name, column in self._stored.items():
            if name not in sample.values:
                return ImportProblem(name=sample.name, reason=f"{name} is missing")
            value = sample.values[name]
            try:
                if isinstance(value, ByteRange):
                    data = reader.read(value.start, value.end)
                    is_payload = column.kind is ColumnKind.PAYLOAD
                    value = column.decode(data) if is_payload else self._format.parse(name, column.type, data)
            except (ValueError, FormatError, SchemaError) as error:
                return ImportProblem(name=sample.name, reason=f"{name} is not {column.type}: {error}")
            values[name] = value
        return ImportedSample(name=sample.name, values=values, num_bytes=sample.end - sample.start)

    def _scanner(self) -> Scanner:
        return Scanner(
            format=self._format, columns={}, chosen=True, shard_bytes=0, engine=self._files.engine, loop=self.calls,
            pins_etags=False,
        )  # fmt: skip


class MDSShards(_AdoptedFiles):
    """Imports MDS, the format of MosaicML Streaming; see "Formats that are read in place" for its columns.

    Args:
        source: URL or path of the folder with ``index.json``.
        columns: Types of columns by name, in place of the derived ones.
        drop: Names of columns to leave out.
        client: Client library of the source's store, as for `open_store`.
        storage_options: Options of the source's store, as for `open_store`.

    Example:
        >>> from concurrent_loader import export, ingest
        >>> from concurrent_loader.storage.importers import MDSShards
        >>> report = export("photos", "photos-mds", "mds")
        >>> ingest(MDSShards("photos-mds"), "photos-again").num_samples
        20
    """

    NAME = "mds"
    WHAT = "a shard of MosaicML Streaming"


class LitDataChunks(_AdoptedFiles):
    """Imports chunks of LitData; see "Formats that are read in place" for their columns.

    Args:
        source: URL or path of the folder with ``index.json``.
        block_size: Number of tokens per sample, for chunks of ``TokensLoader``; by default each written item is a
            sample.
        columns: Types of columns by name, in place of the derived ones.
        drop: Names of columns to leave out.
        client: Client library of the source's store, as for `open_store`.
        storage_options: Options of the source's store, as for `open_store`.

    Example:
        >>> from concurrent_loader.storage.importers import LitDataChunks
        >>> LitDataChunks(".", block_size=2048).NAME
        'litdata'
    """

    NAME = "litdata"
    WHAT = "a chunk of LitData"

    def __init__(self, source: str | os.PathLike[str], *, block_size: int | str | None = None, **options: Any) -> None:
        try:
            num_tokens = None if block_size is None else int(block_size)
        except ValueError as error:
            raise ConfigurationError("block_size must be an integer", got=block_size) from error
        super().__init__(source, **options)
        self._block_size = num_tokens


class TFRecordFiles(_AdoptedFiles):
    """Imports TFRecord files of ``tf.train.Example``; see "Formats that are read in place" for their columns.

    Needs the extra ``tfrecord``.

    Args:
        source: URL or path of the folder, or path of a file.
        columns: Types of columns by name, in place of the derived ones.
        drop: Names of columns to leave out.
        client: Client library of the source's store, as for `open_store`.
        storage_options: Options of the source's store, as for `open_store`.

    Example:
        >>> from concurrent_loader.storage.importers import TFRecordFiles
        >>> TFRecordFiles(".").NAME
        'tfrecord'
    """

    NAME = "tfrecord"
    WHAT = "a TFRecord file"
