"""Imports documents of text, as they are or as tokens."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import msgspec
import numpy as np

from concurrent_loader.storage.errors import ConfigurationError, FormatError
from concurrent_loader.storage.importers.column_types import column_names
from concurrent_loader.storage.importers.decompress import DAMAGE, decompressed
from concurrent_loader.storage.importers.file_importer import FileImporter
from concurrent_loader.storage.importers.optional_library import import_library
from concurrent_loader.storage.importers.protocol import ImportedSample, ImportProblem, ImportScan
from concurrent_loader.storage.importers.source_files import SourceFile
from concurrent_loader.storage.importers.threaded_importer import Items
from concurrent_loader.storage.importers.user_function import find_function
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.sizes import format_size

__all__ = ["TextFiles"]

_JSON = (".jsonl", ".ndjson", ".json")
_PARQUET = (".parquet", ".pq")
_COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
_BUFFER_BYTES = 1 << 18
_MAX_DOCUMENT_BYTES = 1 << 30
_BATCH_ROWS = 256
_BOM = b"\xef\xbb\xbf"

Documents = Iterator[tuple[str, str | ImportProblem]]


class TextFiles(FileImporter):
    """Imports documents of text: JSON lines, Parquet, or plain text, in the order of the files and of their lines.

    A document becomes a text in the column ``field``. With a tokenizer it becomes an array in the column ``tokens``
    instead, for `concurrent_loader.Packed`. Other fields of a document are left out.

    Args:
        source: URL or path of a file, or of a folder with files: ``.jsonl``, ``.ndjson`` or ``.json`` (a JSON object
            per line), ``.txt``, each also as ``.gz``, ``.zst``, ``.bz2`` or ``.xz``; or ``.parquet``. A single file
            of another name is plain text.
        field: Field of a JSON object, or column of a Parquet file, with the text; default ``"text"``.
        per: Part of a plain text that is a document: ``"file"`` (default), ``"line"``, or ``"paragraph"``, which ends
            at an empty line. Empty documents are left out. Lines end with ``\\n`` in the dataset.
        tokenizer: Function from a text to its tokens, a sequence or array of integers; or its name,
            ``"module:function"``, which is looked up in the current folder first. Default: None, the text is kept.
        columns: Type of the column by its name, such as ``{"tokens": "uint16[...]"}``; default ``int32[...]``.
        drop: Must be empty: there is one column.
        client: Client library of the source's store, as for `open_store`.
        storage_options: Options of the source's store, as for `open_store`.

    Raises:
        ConfigurationError: An argument is invalid, or there is no such tokenizer.

    Example:
        >>> from pathlib import Path
        >>> from concurrent_loader import ingest
        >>> from concurrent_loader.storage.importers import TextFiles
        >>> _ = Path("words.jsonl").write_text('{"text": "one"}\\n{"text": "two"}\\n')
        >>> ingest(TextFiles("words.jsonl", tokenizer=lambda text: list(text.encode())), "words").manifest.schema
        {'tokens': 'int32[...]'}
    """

    SUFFIXES = (*(kind + end for kind in (*_JSON, ".txt") for end in ("", *_COMPRESSED)), *_PARQUET)
    WHAT = "a text"
    SPLITS = True

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        field: str = "text",
        per: str = "file",
        tokenizer: str | Callable[[str], Sequence[int]] | None = None,
        columns: Mapping[str, str] | None = None,
        drop: Iterable[str] = (),
        client: str = "auto",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(source, columns=columns, drop=drop, client=client, storage_options=storage_options)
        if per not in ("file", "line", "paragraph"):
            raise ConfigurationError("per must be 'file', 'line' or 'paragraph'", got=per)
        self._field, self._per, self._tokenizer = field, per, tokenizer
        self._tokenize = find_function(tokenizer) if isinstance(tokenizer, str) else tokenizer
        self._column = column_names([field])[field] if tokenizer is None else "tokens"

    def __getstate__(self) -> dict[str, Any]:
        # A function that has a name is found again by it, so that it need not be picklable.
        return {**super().__getstate__(), **({"_tokenize": None} if isinstance(self._tokenizer, str) else {})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self._tokenizer, str):
            self._tokenize = find_function(self._tokenizer)

    def _scan(self, onto: Manifest | None) -> ImportScan:
        self._files.find(self.calls)
        columns = self._choose_columns({self._column: "str" if self._tokenizer is None else "int32[...]"}, onto)
        column = self._columns[self._column]
        if self._tokenizer is not None and (column.dtype is None or column.dtype.kind not in "iu" or column.shape):
            raise ConfigurationError("tokens need a type such as int32[...]", column=column.name, got=column.type)
        is_known = self._tokenizer is None or isinstance(self._tokenizer, str)
        return ImportScan(
            columns=columns,
            num_samples=None,
            num_bytes=self._files.num_bytes,
            num_ignored=self._files.num_ignored,
            metadata={"tokenizer": self._tokenizer} if isinstance(self._tokenizer, str) else {},
            identity=self._identity("text", self._field, self._per, self._tokenizer) if is_known else None,
        )

    def _read(self) -> Items:
        for file in self._files.files:
            last = "0"
            try:
                for last, document in self._documents(file):
                    yield document if isinstance(document, ImportProblem) else self._imported(file, last, document)
            except FormatError as error:
                yield ImportProblem(name=file.key, reason=f"{error.what}; documents after {last} are missing")

    def _imported(self, file: SourceFile, place: str, text: str) -> ImportedSample | ImportProblem:
        name = f"{file.key}: {place}"
        if self._tokenize is None:
            return ImportedSample(name=name, values={self._column: text}, num_bytes=len(text))
        try:
            tokens = np.asarray(self._tokenize(text))
        except Exception as error:
            error.add_note(f"while tokenizing {name}")
            raise
        if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
            reason = f"the tokenizer must return a row of integers, not {tokens.dtype} {tokens.shape}"
            return ImportProblem(name=name, reason=reason)
        dtype = self._columns[self._column].dtype
        limits = np.iinfo(dtype)
        if tokens.size and not (limits.min <= tokens.min() and tokens.max() <= limits.max):
            reason = f"tokens from {tokens.min()} to {tokens.max()} do not fit into {dtype}: pass --column tokens=TYPE"
            return ImportProblem(name=name, reason=reason)
        return ImportedSample(name=name, values={self._column: tokens.astype(dtype)}, num_bytes=len(text))

    # -- documents of a file ---------------------------------------------------------------------------------------

    def _documents(self, file: SourceFile) -> Documents:
        """Yields the place and the text of each document."""
        key = file.key.lower()
        is_parquet = key.endswith(_PARQUET)
        faults: tuple[type[Exception], ...] = (*DAMAGE, OSError)
        if is_parquet:
            faults = (*faults, import_library("pyarrow", extra="parquet").ArrowException)
        with self._files.open(file, self.calls) as opened, self._faults_of(file, *faults):
            if is_parquet:
                yield from self._of_parquet(file, opened)
                return
            stream = decompressed(opened)
            for end in _COMPRESSED:
                key = key.removesuffix(end)
            yield from self._of_json(file, stream) if key.endswith(_JSON) else self._of_text(file, stream)

    def _of_json(self, file: SourceFile, stream: BinaryIO) -> Documents:
        fields = [("text", str, msgspec.field(name=self._field))]
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(msgspec.defstruct("Line", fields))
        for number, line in enumerate(_lines(stream), 1):
            if line.strip():
                place = f"line {number}"
                try:
                    yield place, decoder.decode(line).text
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    reason = f"the line is not a JSON object with the text {self._field!r}: {error}"
                    yield place, ImportProblem(name=f"{file.key}: {place}", reason=reason)

    def _of_text(self, file: SourceFile, stream: BinaryIO) -> Documents:
        paragraph: list[bytes] = []
        first, num_bytes = 1, 0
        for number, line in enumerate(_lines(stream), 1):
            if self._per == "line":
                if line.strip():
                    yield _decoded(file, f"line {number}", line)
            elif self._per == "paragraph" and not line.strip():
                if paragraph:
                    yield _decoded(file, f"line {first}", b"\n".join(paragraph))
                paragraph = []
            else:
                first, num_bytes = (first, num_bytes + len(line)) if paragraph else (number, len(line))
                if num_bytes > _MAX_DOCUMENT_BYTES:
                    raise FormatError(f"a document is larger than {format_size(_MAX_DOCUMENT_BYTES)}")
                paragraph.append(line)
        if paragraph:
            yield _decoded(file, f"line {first}", b"\n".join(paragraph))

    def _of_parquet(self, file: SourceFile, opened: BinaryIO) -> Documents:
        parquet = import_library("pyarrow.parquet", extra="parquet", package="pyarrow")
        table = parquet.ParquetFile(opened, pre_buffer=False)
        if self._field not in table.schema_arrow.names:
            raise FormatError(f"it has no column {self._field!r}", expected=", ".join(table.schema_arrow.names))
        row = -1
        for batch in table.iter_batches(batch_size=_BATCH_ROWS, columns=[self._field], use_threads=False):
            for value in batch.column(0).to_pylist():
                row += 1
                place, reason = f"row {row}", f"the value of {self._field!r} is {type(value).__name__}, not a text"
                is_text = isinstance(value, str)
                yield place, value if is_text else ImportProblem(name=f"{file.key}: {place}", reason=reason)


def _decoded(file: SourceFile, place: str, data: bytes) -> tuple[str, str | ImportProblem]:
    try:
        return place, data.decode()
    except UnicodeDecodeError as error:
        line = int(place.removeprefix("line ")) + data.count(b"\n", 0, error.start)
        reason = f"it is not UTF-8 text: {data[error.start : error.start + 8]!r}"
        return place, ImportProblem(name=f"{file.key}: line {line}", reason=reason)


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yields the lines of a file without their ends, and without a byte order mark."""
    parts: list[bytes] = []
    size, is_start = 0, True
    while data := stream.read(_BUFFER_BYTES):
        if is_start:
            data, is_start = data.removeprefix(_BOM), False
        first, *more = data.split(b"\n")
        parts.append(first)
        size += len(first)
        if size > _MAX_DOCUMENT_BYTES:
            raise FormatError(f"a line is longer than {format_size(_MAX_DOCUMENT_BYTES)}")
        if more:
            yield b"".join(parts).removesuffix(b"\r")
            for line in more[:-1]:
                yield line.removesuffix(b"\r")
            parts, size = [more[-1]], len(more[-1])
    if size:
        yield b"".join(parts)
