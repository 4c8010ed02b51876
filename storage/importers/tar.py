"""Imports WebDataset tar files, compressed or not; files with the same key become one sample."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

from concurrent_loader.storage.errors import FormatError, NotFound
from concurrent_loader.storage.images import IMAGE_SUFFIXES
from concurrent_loader.storage.importers.column_types import (
    MAX_SAMPLED,
    MAX_SAMPLED_BYTES,
    column_names,
    derive_columns,
    derive_type,
)
from concurrent_loader.storage.importers.column_values import convert
from concurrent_loader.storage.importers.file_importer import FileImporter
from concurrent_loader.storage.importers.protocol import ImportedSample, ImportProblem, ImportScan
from concurrent_loader.storage.importers.source_files import SourceFile
from concurrent_loader.storage.importers.tar_stream import read_members
from concurrent_loader.storage.importers.threaded_importer import Items
from concurrent_loader.storage.shards.format.schema import Column
from concurrent_loader.storage.shards.manifest.manifest import Manifest

__all__ = ["KEY", "TarFiles"]

KEY = "__key__"
"""Column of the sample's key, as in WebDataset."""

_TEXTS = frozenset({"txt", "text", "transcript", "caption"})
_CLASSES = frozenset({"cls", "cls2", "class", "count", "index", "inx", "id"})
_IMAGES = frozenset(suffix[1:] for suffix in IMAGE_SUFFIXES)
_MAX_FIELDS = 256


class TarFiles(FileImporter):
    """Imports tar files of WebDataset, in the order of the files and of the samples in them.

    Consecutive members with the same path up to the first dot of the file name are a sample; what follows the dot is
    the name of a field, in lower case. Fields become columns: ``jpg`` and ``jpeg`` images, other images by their bytes,
    ``cls`` int64, ``txt`` str, ``json`` json, others bytes. Types are derived from the first 200 samples. The column
    ``__key__`` keeps the path.

    Archives are read as a stream, once, so they may be compressed (.tar.gz, .tar.bz2, .tar.zst, .tar.xz) and lie in
    any store. Hidden files, links and WebDataset's meta files (``__…__``) are ignored.

    Args:
        source: URL or path of a tar file, or of a folder with tar files.
        columns: Types of columns by name, in place of the derived ones, such as ``{"cls": "str"}``.
        drop: Names of fields to leave out, such as a field that only some samples have.
        client: Client library of the source's store, as for `open_store`.
        storage_options: Options of the source's store, as for `open_store`.

    Example:
        >>> import io, tarfile
        >>> from concurrent_loader import ingest
        >>> from concurrent_loader.storage.importers import TarFiles
        >>> with tarfile.open("words.tar", "w") as archive:
        ...     for number, word in enumerate(["one", "two"]):
        ...         member = tarfile.TarInfo(f"{number}.txt")
        ...         member.size = len(word)
        ...         archive.addfile(member, io.BytesIO(word.encode()))
        >>> ingest(TarFiles("words.tar"), "from-tar").manifest.schema
        {'__key__': 'str', 'txt': 'str'}
    """

    SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.zst", ".tzst", ".tar.xz", ".txz")
    WHAT = "a tar file"
    SPLITS = True

    _names: Mapping[str, str] = MappingProxyType({})  # of the fields, as columns; known after the scan

    def _scan(self, onto: Manifest | None) -> ImportScan:
        self._files.find(self.calls)
        samples = self._first_samples()
        if not samples:
            raise NotFound("nothing to import: the tar files hold no samples (KEY.EXTENSION)", url=self.url)
        self._names = names = column_names(chain.from_iterable(sample.fields for sample in samples))
        fields = [{names[name]: value for name, value in sample.fields.items()} for sample in samples]
        columns = self._choose_columns({KEY: "str", **derive_columns(fields, _derive)}, onto)
        return ImportScan(
            columns=columns,
            num_samples=None,
            num_bytes=self._files.num_bytes,
            num_ignored=self._files.num_ignored,
            identity=self._identity("tar"),
            derived=self._derived(),
        )

    def _first_samples(self) -> list[_Sample]:
        samples: list[_Sample] = []
        num_bytes = 0
        for file in self._files.files:
            with self._files.open(file, self.calls) as opened, self._faults_of(file):
                for sample in _samples(opened):
                    samples.append(sample)
                    num_bytes += sample.num_bytes
                    if len(samples) >= MAX_SAMPLED or num_bytes >= MAX_SAMPLED_BYTES:
                        return samples
        return samples

    def _read(self) -> Items:
        for file in self._files.files:
            last = ""
            with self._files.open(file, self.calls) as opened:
                try:
                    for sample in _samples(opened):
                        last = sample.key
                        yield self._imported(file, sample)
                except FormatError as error:
                    after = f"; samples after {last!r} are missing" if last else ""
                    yield ImportProblem(name=file.key, reason=f"{error}{after}")

    def _imported(self, file: SourceFile, sample: _Sample) -> ImportedSample | ImportProblem:
        name = f"{file.key}: {sample.key}"
        if sample.fault:
            return ImportProblem(name=name, reason=sample.fault)
        fields: dict[str, Any] = {self._names.get(name, name): value for name, value in sample.fields.items()}
        fields[KEY] = sample.key
        fields = {name: value for name, value in fields.items() if name not in self._drop}
        missing = [name for name in self._columns if name not in fields]
        surplus = [name for name in fields if name not in self._columns]
        if missing or surplus:
            texts = [f"the sample has no {', '.join(missing)}"] if missing else []
            texts += [f"the sample has another field: {', '.join(surplus)[:200]}"] if surplus else []
            advice = "leave out a field that not all samples have by --drop NAME (in Python drop=[name])"
            return ImportProblem(name=name, reason=f"{'; '.join(texts)}; {advice}")
        values: dict[str, object] = {}
        for column in self._columns.values():
            try:
                values[column.name] = convert(fields[column.name], column)
            except ValueError as error:
                return ImportProblem(name=name, reason=f"{column.name} is not {column.type}: {error}")
        return ImportedSample(name=name, values=values, num_bytes=sample.num_bytes)


class _Sample(NamedTuple):
    key: str
    fields: dict[str, bytes]
    fault: str = ""

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.fields.values()))


def _samples(file: BinaryIO) -> Generator[_Sample, None, None]:
    """Groups the members of an archive by key; a field that comes twice is a fault of the sample."""
    key, fields, fault = "", dict[str, bytes](), ""
    for member in read_members(file):
        folder, slash, name = member.name.removeprefix("./").rpartition("/")
        stem, dot, extension = name.partition(".")
        if not stem or not dot or not extension or _is_meta(member.name):
            continue
        at = f"{folder}{slash}{stem}"
        if at != key:
            if fields:
                yield _Sample(key, fields, fault)
            key, fields, fault = at, {}, ""
        extension = extension.lower()
        if extension in fields:
            fault = f"the archive has two files {member.name!r}"
        elif len(fields) >= _MAX_FIELDS:
            fault = f"the sample has more than {_MAX_FIELDS} files"
        else:
            fields[extension] = member.data
    if fields:
        yield _Sample(key, fields, fault)


def _is_meta(name: str) -> bool:
    return any(part.startswith("__") and part.endswith("__") and len(part) > 4 for part in name.split("/"))


def _derive(name: str, values: Sequence[object]) -> str:
    """Returns the type of a field by its extension, unless its first values do not fit."""
    extension = name.rpartition(".")[2]
    if extension in _IMAGES:
        return derive_type(name, values)
    if extension in _CLASSES and _all_convert(values, Column(name, "int64")):
        return "int64"
    if (extension in _TEXTS or extension in _CLASSES) and _all_convert(values, Column(name, "str")):
        return "str"
    return "json" if extension == "json" else "bytes"


def _all_convert(values: Sequence[object], column: Column) -> bool:
    try:
        for value in values:
            convert(value, column)
    except ValueError:
        return False
    return True
