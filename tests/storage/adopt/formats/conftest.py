"""Reads whole sources of a foreign format from a folder or from memory, and compares values."""

from __future__ import annotations

import importlib.util
import io
import json
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from concurrent_loader.storage import ColumnKind
from concurrent_loader.storage.adopt.protocol import (
    BytesReader,
    ForeignColumn,
    ForeignFormat,
    FoundSample,
    SourceObject,
)
from concurrent_loader.storage.errors import FormatError, StorageError
from concurrent_loader.storage.listing import ObjectEntry
from concurrent_loader.storage.ranges import ByteRange
from concurrent_loader.storage.shards.format.foreign_codecs import foreign_codec
from concurrent_loader.storage.shards.format.schema import Column

GOLDEN = Path(__file__).parent.parent / "golden"


def _from_json() -> Callable[[Any], Any]:
    spec = importlib.util.spec_from_file_location("golden_expected", GOLDEN / "expected.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    from_json: Callable[[Any], Any] = module.from_json
    return from_json


def _functions(error: BaseException) -> set[str]:
    """Returns the names of the functions that an error passed."""
    return {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}


@dataclass
class Files:
    """A source in memory, with the interface that a format sees."""

    files: dict[str, bytes]

    def entries(self) -> list[ObjectEntry]:
        return [ObjectEntry("memory://x", key, len(data), None) for key, data in sorted(self.files.items())]

    def get(self, key: str, *, max_bytes: int) -> bytes | None:
        data = self.files.get(key)
        if data is not None and len(data) > max_bytes:
            raise FormatError("too large", key=key)
        return data


@dataclass
class ReadSource:
    """A source that was read: its columns, and the samples with decoded values."""

    columns: dict[str, ForeignColumn]
    samples: list[dict[str, Any]]
    found: list[FoundSample]


class Sources:
    """Reads sources in the way that adopting and training does."""

    golden = GOLDEN
    files = Files

    def folder(self, *parts: str) -> Files:
        root = GOLDEN.joinpath(*parts)
        return Files({str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()})

    def expected(self, *parts: str) -> Any:
        return _from_json()(json.loads(GOLDEN.joinpath(*parts).read_text()))

    def read(
        self,
        foreign: ForeignFormat,
        files: Files,
        *,
        asked: Mapping[str, str] | None = None,
        decompress: Callable[[SourceObject, bytes], bytes] | None = None,
    ) -> ReadSource:
        """Reads all samples; `asked` are the types that a user asks for."""
        objects = foreign.objects(files.entries(), files)
        readers = []
        for source in objects:
            data = files.files[source.entry.key]
            if "compression" in source.info:
                assert decompress is not None
                data = decompress(source, data)
            readers.append(BytesReader(data, source.entry.key))
        columns = foreign.columns(objects[0], readers[0])
        for name, type_ in (asked or {}).items():
            columns[name] = foreign.retype(objects[0], name, type_)  # type: ignore[attr-defined]
        found, samples = [], []
        for source, reader in zip(objects, readers, strict=True):
            for sample in foreign.walk(source, reader, columns):
                found.append(sample)
                samples.append(dict(self.values(foreign, reader, columns, sample)))
        return ReadSource(columns, samples, found)

    def values(
        self, foreign: ForeignFormat, reader: BytesReader, columns: Mapping[str, ForeignColumn], sample: FoundSample
    ) -> Iterator[tuple[str, Any]]:
        """Yields the values of a sample, checked like the scan checks them."""
        assert 0 <= sample.start <= sample.end <= reader.size
        assert sample.values.keys() == columns.keys()
        for name, value in sample.values.items():
            foreign_column, column = columns[name], Column(name, columns[name].type)
            if isinstance(value, ByteRange):
                assert sample.start <= value.start <= value.end <= sample.end
                data = reader.read(value.start, value.end)
                if column.kind is not ColumnKind.PAYLOAD:
                    yield name, column.decode(column.encode(foreign.parse(name, foreign_column.type, data)))
                elif foreign_column.encoding:
                    yield name, foreign_codec(foreign_column.encoding, foreign_column.type).decode(data)
                else:
                    yield name, column.decode(column.encode(column.decode(data)))
            else:
                assert column.kind is not ColumnKind.PAYLOAD, "payload must be a range"
                yield name, column.decode(column.encode(value))

    def outcome(self, foreign: ForeignFormat, files: Files, columns: Mapping[str, ForeignColumn] | None = None) -> str:
        """Reads a source that may be hostile, and returns what happened; any other exception is a failure."""
        try:
            objects = foreign.objects(files.entries(), files)
        except StorageError:
            return "index"
        for source in objects:
            reader = BytesReader(files.files[source.entry.key], source.entry.key)
            try:
                found = foreign.columns(source, reader)
                for sample in foreign.walk(source, reader, columns or found):
                    dict(self.values(foreign, reader, columns or found, sample))
            except StorageError:
                return "walk"
            except ValueError as error:
                if "parse_value" not in _functions(error):
                    raise
                return "parse"
        return "read"

    @staticmethod
    def pixels(data: bytes) -> np.ndarray[Any, Any]:
        """Returns the pixels of an encoded image."""
        return np.asarray(Image.open(io.BytesIO(data)))


@pytest.fixture
def sources() -> Sources:
    return Sources()
