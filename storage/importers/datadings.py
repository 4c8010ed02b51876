"""Imports files of datadings: concatenated msgpack records, with offsets, keys and MD5 digests in files beside them."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import ConfigurationError, FormatError, NotFound
from concurrent_loader.storage.importers.column_types import (
    MAX_SAMPLED,
    MAX_SAMPLED_BYTES,
    column_names,
    derive_columns,
)
from concurrent_loader.storage.importers.column_values import convert
from concurrent_loader.storage.importers.file_importer import FileImporter
from concurrent_loader.storage.importers.optional_library import import_library
from concurrent_loader.storage.importers.protocol import ImportedSample, ImportProblem, ImportScan
from concurrent_loader.storage.importers.source_files import SourceFile
from concurrent_loader.storage.importers.split_files import split_by_bytes
from concurrent_loader.storage.importers.threaded_importer import Items
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.sizes import format_size

__all__ = ["DatadingsFiles"]

_MAX_RECORD_BYTES = 1 << 30
_MAX_INDEX_BYTES = 4 << 30
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class _Index:
    """The files beside a data file, as far as they are about the records to read.

    Attributes:
        offsets: (n + 1,) offsets of the records, and of their end.
        keys: Keys of the records; None if there is no file of keys.
        md5: MD5 digest of the data in hex, to be compared; empty if unknown, or another part compares it.
        first: Number of the first record in the file.
    """

    offsets: npt.NDArray[np.uint64]
    keys: list[str] | None
    md5: str
    first: int = 0


class DatadingsFiles(FileImporter):
    """Imports files of datadings (``x.msgpack`` with ``x.msgpack.offsets`` and, if there, ``.keys`` and ``.md5``).

    Fields of the records become columns, with types derived from the first 200 records. Encoded images stay as they
    are, arrays of msgpack-numpy keep dtype and shape, and nested values become json. Offsets and keys are compared with
    the records, and digests with the files. Pickled arrays are refused. Needs the extra ``datadings``.

    Args:
        source: URL or path of a ``.msgpack`` file, or of a folder with such files.
        columns: Types of columns by name, in place of the derived ones.
        drop: Names of fields to leave out.
        client: Client library of the source's store, as for `open_store`.
        storage_options: Options of the source's store, as for `open_store`.

    Example:
        >>> import msgpack, numpy, pathlib
        >>> from concurrent_loader import ingest
        >>> from concurrent_loader.storage.importers import DatadingsFiles
        >>> records = [msgpack.packb({"key": key, "label": 3}) for key in "ab"]
        >>> offsets = numpy.cumsum([0, *map(len, records)]).astype(">u8")
        >>> written = pathlib.Path("x.msgpack").write_bytes(b"".join(records))
        >>> written = pathlib.Path("x.msgpack.offsets").write_bytes(offsets.tobytes())
        >>> ingest(DatadingsFiles("x.msgpack"), "from-datadings").manifest.schema
        {'key': 'str', 'label': 'int64'}
    """

    SUFFIXES = (".msgpack",)
    WHAT = "a datadings file"

    @property
    def _msgpack(self) -> Any:
        return import_library("msgpack", extra="datadings")

    def _scan(self, onto: Manifest | None) -> ImportScan:
        self._files.find(self.calls)
        self._indexes = {file.key: self._load_index(file) for file in self._files.files}
        first = self._first_records()
        if not first:
            raise NotFound("nothing to import: the files hold no records", url=self.url)
        self._names = column_names(name for record in first for name in record)
        samples = [{self._names[name]: value for name, value in record.items()} for record in first]
        columns = self._choose_columns(derive_columns(samples), onto)
        return ImportScan(
            columns=columns,
            num_samples=sum(len(index.offsets) - 1 for index in self._indexes.values()),
            num_bytes=self._files.num_bytes,
            num_ignored=self._files.num_ignored,
            identity=self._identity("datadings"),
            derived=self._derived(),
        )

    def split(self, max_bytes: int) -> list[Self]:
        """Divides scanned files into importers of consecutive records, which can be pickled and need no scan.

        The digest of a file that is divided is compared by a part of its own, which has no records.

        Args:
            max_bytes: Upper bound of the records of an importer, in bytes; a single record may exceed it.
        """
        parts = []
        for files in split_by_bytes(self._files.files, max_bytes):
            indexes = {file.key: self._indexes[file.key] for file in files}
            runs = [indexes] if files[0].size <= max_bytes else _cut(files[0].key, indexes[files[0].key], max_bytes)
            for run in runs:
                part = copy.copy(self)
                part._files = self._files.only(files)
                part._indexes = run
                parts.append(part)
        return parts

    def _first_records(self) -> list[dict[str, Any]]:
        first: list[dict[str, Any]] = []
        num_bytes = 0
        for file in self._files.files:
            for _, data in self._records(file):
                try:
                    first.append(self._parse(data))
                except ValueError as error:
                    raise FormatError(f"a record is damaged: {error}", url=self.url, key=file.key) from error
                num_bytes += len(data)
                if len(first) >= MAX_SAMPLED or num_bytes >= MAX_SAMPLED_BYTES:
                    return first
        return first

    def _read(self) -> Items:
        for file in self._files.files:
            index = self._indexes[file.key]
            digest = hashlib.md5(usedforsecurity=False)
            for number, data in self._records(file):
                digest.update(data)
                yield self._sample(file, number, data)
            if index.md5 and index.first:
                digest = self._digest(file)
            if index.md5 and digest.hexdigest() != index.md5:
                reason = f"the data differ from their MD5 digest: {digest.hexdigest()}, expected {index.md5}"
                yield ImportProblem(name=file.key, reason=reason)

    def _digest(self, file: SourceFile) -> hashlib._Hash:
        digest = hashlib.md5(usedforsecurity=False)
        with self._files.open(file, self.calls) as opened:
            while data := opened.read(_PIECE_BYTES):
                digest.update(data)
        return digest

    def _records(self, file: SourceFile) -> Iterator[tuple[int, bytes]]:
        """Yields the records with their numbers among those to read."""
        offsets = self._indexes[file.key].offsets
        with self._files.open(file, self.calls) as opened:
            opened.seek(int(offsets[0]))
            for number in range(len(offsets) - 1):
                data = opened.read(int(offsets[number + 1] - offsets[number]))
                if len(data) != int(offsets[number + 1] - offsets[number]):
                    raise FormatError("the data are cut off", url=self.url, key=file.key)
                yield number, data

    def _sample(self, file: SourceFile, number: int, data: bytes) -> ImportedSample | ImportProblem:
        index = self._indexes[file.key]
        keys = index.keys
        name = f"{file.key}: {keys[number] if keys is not None else f'record {index.first + number}'}"
        try:
            record = self._parse(data)
            if keys is not None and isinstance(record.get("key"), str) and record["key"] != keys[number]:
                raise ValueError(f"the record has the key {record['key']!r}, and the index {keys[number]!r}")
            fields = {self._names.get(each, each): value for each, value in record.items()}
            values = {
                each: convert(value, self._columns[each]) if each in self._columns else value
                for each, value in fields.items()
                if each not in self._drop
            }
        except ValueError as error:
            return ImportProblem(name=name, reason=str(error))
        return ImportedSample(name=name, values=values, num_bytes=len(data))

    def _parse(self, data: bytes) -> dict[str, Any]:
        try:
            record = self._msgpack.unpackb(data, strict_map_key=False, object_hook=_decode_array)
        except (
            ValueError,
            TypeError,
            LookupError,
            ArithmeticError,
            RecursionError,
            self._msgpack.UnpackException,
        ) as error:
            raise ValueError(f"the record is not msgpack: {error or type(error).__name__}") from error
        if not isinstance(record, dict) or not all(isinstance(name, str) for name in record):
            raise ValueError(f"a record must be a dict of fields, not {type(record).__name__}")
        return record

    # -- the files beside --------------------------------------------------------------------------------------------

    def _load_index(self, file: SourceFile) -> _Index:
        md5 = _digests(self._beside(file, ".md5") or b"")
        name = file.key.rpartition("/")[2]
        offsets = self._beside(file, ".offsets")
        if offsets is None:
            raise ConfigurationError(
                "there is no file of offsets beside the data; files of datadings before version 3 (.index) must be "
                "rewritten with its writer", url=self._files.store.url, key=f"{file.key}.offsets",
            )  # fmt: skip
        keys = self._beside(file, ".keys")
        for suffix, data in ((".offsets", offsets), (".keys", keys)):
            expected = md5.get(name + suffix, "")
            if data is not None and expected not in ("", hashlib.md5(data, usedforsecurity=False).hexdigest()):
                raise FormatError(
                    "the file differs from its MD5 digest", url=self._files.store.url, key=file.key + suffix
                )
        parsed = self._parse_offsets(file, offsets)
        return _Index(
            parsed, None if keys is None else self._parse_keys(file, keys, len(parsed) - 1), md5.get(name, "")
        )

    def _parse_offsets(self, file: SourceFile, data: bytes) -> npt.NDArray[np.uint64]:
        what = ""
        offsets: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        if len(data) % 8 or len(data) < 8:
            what = "the file of offsets has an impossible length"
        else:
            offsets = np.frombuffer(data, ">u8").astype(np.uint64)
            if int(offsets[0]) or bool((offsets[1:] < offsets[:-1]).any()) or int(offsets[-1]) != file.size:
                what = "the offsets do not ascend from 0 to the size of the data"
            elif len(offsets) > 1 and int((offsets[1:] - offsets[:-1]).max()) > _MAX_RECORD_BYTES:
                what = f"a record is larger than {format_size(_MAX_RECORD_BYTES)}"
        if what:
            raise FormatError(what, url=self._files.store.url, key=f"{file.key}.offsets", expected=file.size)
        return offsets

    def _parse_keys(self, file: SourceFile, data: bytes, number: int) -> list[str]:
        try:
            keys = self._msgpack.unpackb(data)
        except (ValueError, TypeError, self._msgpack.UnpackException) as error:
            raise FormatError(
                f"the file of keys is not msgpack: {error}", url=self._files.store.url, key=f"{file.key}.keys"
            ) from error
        if not isinstance(keys, list) or len(keys) != number or not all(isinstance(key, str) for key in keys):
            raise FormatError(
                "the file of keys does not have one text per record", url=self._files.store.url, key=f"{file.key}.keys",
                expected=number, got=len(keys) if isinstance(keys, list) else type(keys).__name__,
            )  # fmt: skip
        if len(set(keys)) < number:
            raise FormatError("two records have the same key", url=self._files.store.url, key=f"{file.key}.keys")
        return keys

    def _beside(self, file: SourceFile, suffix: str) -> bytes | None:
        key = file.key + suffix

        def accept(meta: Any) -> None:
            if meta.size > _MAX_INDEX_BYTES:
                raise FormatError("the file beside the data is too large", url=self._files.store.url, key=key)

        try:
            return bytes(self.calls.run(self._files.engine.fetch_object(key, accept=accept)).data)
        except NotFound:
            return None


def _cut(key: str, index: _Index, max_bytes: int) -> list[dict[str, _Index]]:
    """Divides the records of one file; the last run has none, if the file has a digest."""
    offsets, num_records, start = index.offsets, len(index.offsets) - 1, 0
    runs = []
    while start < num_records:
        limit = int(offsets[start]) + max_bytes
        end = max(start + 1, int(np.searchsorted(offsets, np.uint64(limit), side="right")) - 1)
        keys = None if index.keys is None else index.keys[start:end]
        runs.append({key: _Index(offsets[start : end + 1], keys, "", start)})
        start = end
    if index.md5:
        runs.append({key: _Index(offsets[num_records:], None, index.md5, num_records)})
    return runs


def _digests(data: bytes) -> dict[str, str]:
    """Parses lines ``digest  name``."""
    lines = (line.split(maxsplit=1) for line in data.decode(errors="replace").splitlines())
    return {parts[1].strip(): parts[0].lower() for parts in lines if len(parts) == 2}


def _decode_array(value: dict[Any, Any]) -> Any:
    """Returns the array or number of a dict of msgpack-numpy, and any other dict unchanged."""
    if b"nd" not in value:
        return value
    if b"type" not in value or value.get(b"kind") not in (None, b""):
        raise ValueError("an array of Python objects or records is not supported")
    dtype = np.dtype(_text(value[b"type"]))
    data = value.get(b"data")
    if dtype.kind not in "biufSU" or dtype.hasobject or not isinstance(data, bytes):
        raise ValueError(f"an array of {dtype} is not supported")
    array: npt.NDArray[Any] = np.frombuffer(data, dtype)
    if value[b"nd"] is not True:
        return array[0]
    return array.reshape([int(dim) for dim in value[b"shape"]])


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, str):
        return value
    raise ValueError("an array of records is not supported")
