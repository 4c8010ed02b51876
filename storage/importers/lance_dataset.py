"""Imports a Lance dataset, read by its own library."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import xxhash

from concurrent_loader.storage.checked_url import check_url
from concurrent_loader.storage.errors import ConfigurationError, FormatError, NotFound
from concurrent_loader.storage.importers.arrow_columns import ArrowColumns, Fault
from concurrent_loader.storage.importers.column_types import MAX_SAMPLED, choose_columns
from concurrent_loader.storage.importers.optional_library import import_library
from concurrent_loader.storage.importers.protocol import ImportedSample, ImportProblem, ImportScan
from concurrent_loader.storage.importers.sample_source import num_value_bytes
from concurrent_loader.storage.importers.threaded_importer import Items, ThreadedImporter
from concurrent_loader.storage.shards.format.schema import Column
from concurrent_loader.storage.shards.manifest.manifest import Manifest

__all__ = ["LanceDataset"]

_BATCH_ROWS = 64
_FAULTS = (OSError, ValueError, RuntimeError)
_S3_OPTIONS = {
    "endpoint_url": "aws_endpoint",
    "region": "aws_region",
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
}


class LanceDataset(ThreadedImporter):
    """Imports the newest or a given version of a Lance dataset, in the order of its rows.

    Types of columns are derived as by `ParquetFiles`. The Lance library opens the source itself, so that of the storage
    options only endpoint, region and credentials of S3 apply, under this project's names; others are passed on
    unchanged. Needs the extra ``lance``.

    Args:
        source: Path or URL of the dataset.
        version: Number of the version. Default: the newest.
        columns: Types of columns by name, in place of the derived ones.
        drop: Names of columns to leave out; their data are not read.
        client: Must be ``"auto"``.
        storage_options: Options for the Lance library.

    Example:
        >>> import lance, pyarrow
        >>> from concurrent_loader import ingest
        >>> from concurrent_loader.storage.importers import LanceDataset
        >>> written = lance.write_dataset(pyarrow.table({"x": [1.5, 2.5]}), "x.lance")
        >>> ingest(LanceDataset("x.lance"), "from-lance").manifest.schema
        {'x': 'float64'}
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        version: str | int | None = None,
        columns: Mapping[str, str] | None = None,
        drop: Iterable[str] = (),
        client: str = "auto",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if client != "auto":
            raise ConfigurationError("the Lance library opens the source itself: leave client at 'auto'", got=client)
        if version is not None and not str(version).isdecimal():
            raise ConfigurationError("a version must be a number", got=version)
        path = check_url(os.fspath(source))
        is_local = "://" not in path
        if is_local and not Path(path).expanduser().is_dir():
            raise NotFound("nothing to import: there is no such folder", url=path)
        self._url = f"file://{Path(path).expanduser().absolute()}" if is_local else path
        self._uri = str(Path(path).expanduser()) if is_local else path
        self._version = None if version is None else int(version)
        self._types = {name: Column(name, type_).type for name, type_ in dict(columns or {}).items()}
        self._drop = tuple(drop)
        options = {_S3_OPTIONS.get(name, name): value for name, value in dict(storage_options or {}).items()}
        if str(options.get("aws_endpoint", "")).startswith("http://"):
            options.setdefault("allow_http", "true")
        self._options = {name: str(value) for name, value in options.items()}
        self._columns: dict[str, Column] = {}

    @property
    def url(self) -> str:
        """URL of the dataset."""
        return self._url

    def _scan(self, onto: Manifest | None) -> ImportScan:
        lance = import_library("lance", extra="lance", package="pylance")
        try:
            dataset = lance.dataset(self._uri, version=self._version, storage_options=self._options or None)
            self._arrow = ArrowColumns(dataset.schema)
            first = next(iter(dataset.to_batches(limit=MAX_SAMPLED, batch_size=MAX_SAMPLED)), None)
        except _FAULTS as error:
            raise FormatError(f"the dataset cannot be read by Lance: {error}", url=self.url) from error
        self._dataset = dataset
        self._natural = self._arrow.derive(first)
        chosen = choose_columns(self._natural, columns=self._types, drop=self._drop, onto=onto, url=self.url)
        self._columns = {name: Column(name, type_) for name, type_ in chosen.items()}
        classes = self._arrow.number_classes(onto, chosen)
        return ImportScan(
            columns=chosen,
            num_samples=dataset.count_rows(),
            num_bytes=0,
            metadata={"classes": classes} if classes else {},
            identity=self._identity(dataset),
            derived=frozenset(chosen) - frozenset(self._types),
        )

    def _identity(self, dataset: Any) -> str:
        """Returns the version and its time: a version of a Lance dataset never changes."""
        written: Any = next((each for each in dataset.versions() if each["version"] == dataset.version), {})
        how = (self.url, dataset.version, str(written.get("timestamp")), self._types, self._drop)
        return f"lance:{xxhash.xxh3_128_hexdigest(repr(how).encode())}"

    def _read(self) -> Items:
        names = [
            name
            for name, column in zip(self._dataset.schema.names, self._arrow.names, strict=True)
            if column in self._columns
        ]
        changed = frozenset(name for name, column in self._columns.items() if column.type != self._natural[name])
        row = 0
        try:
            for batch in self._dataset.to_batches(columns=names, batch_size=_BATCH_ROWS, batch_readahead=2):
                for values in self._arrow.rows(batch, self._columns, conversions=changed):
                    yield _item(f"row {row}", values)
                    row += 1
        except _FAULTS as error:
            raise FormatError(f"the dataset cannot be read from row {row} on: {error}", url=self.url) from error


def _item(name: str, values: dict[str, Any] | Fault) -> ImportedSample | ImportProblem:
    if isinstance(values, Fault):
        return ImportProblem(name=name, reason=values.reason)
    return ImportedSample(name=name, values=values, num_bytes=num_value_bytes(values))
