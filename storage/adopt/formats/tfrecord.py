"""Reads TFRecord files of ``tf.train.Example`` in place, without TensorFlow.

A file is a sequence of records, little-endian: ``u64 length, u32 crc(length), data, u32 crc(data)``. The checksum is
CRC-32C, rotated and with a constant added. Both checksums of every record are verified.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice

from concurrent_loader.storage.adopt.formats.foreign_values import (
    IMPORT_INSTEAD,
    SNIFFED_SAMPLES,
    column_name,
    parse_value,
)
from concurrent_loader.storage.adopt.formats.tf_example import Feature, parse_example
from concurrent_loader.storage.adopt.formats.tf_features import derive_columns, feature_reader, retype
from concurrent_loader.storage.adopt.protocol import (
    ForeignColumn,
    FoundSample,
    ObjectReader,
    SmallObjects,
    SourceObject,
)
from concurrent_loader.storage.errors import ConfigurationError, FormatError
from concurrent_loader.storage.listing import ObjectEntry

__all__ = ["TfRecordFormat"]

_FILE = re.compile(r"\.tfrec(ord)?s?([-_.]\d+)?$|-\d{5,}-of-\d{5,}(\.tfrec(ord)?s?)?$", re.IGNORECASE)
_COMPRESSED_SUFFIX = re.compile(r"\.(gz|gzip|zlib|zst|zstd|bz2|xz|lz4)$", re.IGNORECASE)
_COMPRESSED_MAGIC = (b"\x1f\x8b", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
_LENGTH = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_MAX_RECORD_BYTES = 128 << 20
_MAX_SNIFFED_BYTES = 64 << 20
_CRC_BLOCK = 1 << 20


class TfRecordFormat:
    """Finds the examples of TFRecord files, and the place of each value.

    Example:
        >>> from concurrent_loader.storage.adopt.formats.tfrecord import TfRecordFormat
        >>> TfRecordFormat().parse("text", "str", memoryview(b"hello"))
        'hello'
    """

    name = "tfrecord"

    def objects(self, entries: Sequence[ObjectEntry], small: SmallObjects) -> list[SourceObject]:
        """Returns the TFRecord files in the order of their keys; other files, such as indexes, are ignored.

        Raises:
            FormatError: There is no TFRecord file, or a file is compressed.
        """
        found = []
        for entry in entries:
            plain = _COMPRESSED_SUFFIX.sub("", entry.key)
            if not _FILE.search(plain) or not entry.size:
                continue
            if plain != entry.key:
                raise _compressed(entry.key)
            found.append(SourceObject(entry=entry))
        if not found:
            raise FormatError("there is no TFRecord file", expected="*.tfrecord, *-00000-of-00001")
        return found

    def columns(self, source: SourceObject, reader: ObjectReader) -> dict[str, ForeignColumn]:
        """Derives the columns from the first examples."""
        return derive_columns(_first(_examples(reader)), key=reader.name)

    def retype(self, source: SourceObject, column: str, type_: str) -> ForeignColumn:
        """Returns the column that a user asked for with ``--column NAME=TYPE``.

        Raises:
            FormatError: The type is invalid.
        """
        return retype(column, type_)

    def walk(
        self, source: SourceObject, reader: ObjectReader, columns: Mapping[str, ForeignColumn]
    ) -> Iterator[FoundSample]:
        """Yields the examples of one file.

        Raises:
            FormatError: The file is damaged, or an example does not fit the columns.
            ConfigurationError: The library for CRC-32C is missing.
        """
        reads = {name: feature_reader(column) for name, column in columns.items()}
        for index, (start, record, features) in enumerate(_examples(reader)):
            by_column = {column_name(name): feature for name, feature in features.items()}
            if len(by_column) != len(features):
                raise FormatError("two features have the same name", key=reader.name, sample=index)
            found = {}
            for name, read in reads.items():
                try:
                    found[name] = read(record, by_column.get(name, _MISSING), start + _LENGTH.size)
                except FormatError as error:
                    error.locate(key=reader.name, sample=index, column=name)
                    raise
            yield FoundSample(f"{reader.name}[{index}]", start, start + len(record) + 16, found)

    def parse(self, column: str, type_: str, data: memoryview) -> object:
        """Returns a text, or a number or small array in little-endian bytes."""
        return parse_value(type_, data)


_MISSING = Feature("", 0, 0)


def _first(
    examples: Iterator[tuple[int, memoryview, dict[str, Feature]]],
) -> Iterator[tuple[memoryview, dict[str, Feature]]]:
    for start, record, features in islice(examples, SNIFFED_SAMPLES):
        yield record, features
        if start > _MAX_SNIFFED_BYTES:
            return


def _examples(reader: ObjectReader) -> Iterator[tuple[int, memoryview, dict[str, Feature]]]:
    """Yields start, data and features of each record."""
    start = 0
    crc = _crc32c()
    index = 0
    while start < reader.size:
        try:
            record = _record(reader, start, crc)
            features = parse_example(record)
        except FormatError as error:
            error.locate(key=reader.name, sample=index, start=start)
            raise
        yield start, record, features
        start += len(record) + _LENGTH.size + _CRC.size
        index += 1


def _record(reader: ObjectReader, start: int, crc: Callable[[memoryview], int]) -> memoryview:
    header = reader.read(start, start + _LENGTH.size)
    length, length_crc = _LENGTH.unpack(header)
    if crc(header[:8]) != length_crc:
        if start == 0 and bytes(header[:2]) in _COMPRESSED_MAGIC:
            raise _compressed(reader.name)
        raise FormatError("the checksum of a record's length does not match: the file is damaged, or no TFRecord")
    end = start + _LENGTH.size + length
    if end + _CRC.size > reader.size:
        raise FormatError("a record ends after the file", end=end, expected=reader.size)
    if length > _MAX_RECORD_BYTES:
        raise FormatError(
            f"a record is too large: {IMPORT_INSTEAD}", end=end, expected=f"<= {_MAX_RECORD_BYTES} bytes", got=length
        )
    data = reader.read(start + _LENGTH.size, end + _CRC.size)
    record = data[:length]
    if crc(record) != _CRC.unpack(data[length:])[0]:
        raise FormatError("the checksum of a record does not match its bytes: the file is damaged", end=end)
    return record


def _compressed(key: str) -> FormatError:
    return FormatError(
        "the file is compressed as a whole, so that no record can be read on its own: decompress the files, or "
        + IMPORT_INSTEAD, key=key,
    )  # fmt: skip


@cache
def _crc32c() -> Callable[[memoryview], int]:
    """Returns the function for TensorFlow's masked CRC-32C.

    Raises:
        ConfigurationError: The library is missing, or has no compiled code for this machine.
    """
    try:
        import google_crc32c
    except ImportError as error:
        raise ConfigurationError("TFRecord files need google-crc32c: pip install google-crc32c") from error
    if google_crc32c.implementation != "c":
        raise ConfigurationError(
            "google-crc32c has no compiled code on this machine, and Python is too slow: install a wheel of it",
            got=google_crc32c.implementation,
        )

    def masked(data: memoryview) -> int:
        crc = 0
        for start in range(0, len(data), _CRC_BLOCK):  # the library accepts bytes only, so each block is copied
            crc = google_crc32c.extend(crc, bytes(data[start : start + _CRC_BLOCK]))
        return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF

    return masked
