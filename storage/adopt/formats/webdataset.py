"""Reads WebDataset tar files in place: samples are members of one name, up to the first dot of the file name.

The names are split and grouped as the `webdataset` package does it (``base_plus_ext`` and ``group_by_keys`` of its
release 1.0). It drops what it does not expect, such as links, and members behind the end of the file. Here that is an
error that names the member.

Indexes of other programs bring nothing to a scan of all bytes. They only check the number of samples, where that costs
next to nothing. A scan of headers alone takes from an index beside the tar file where the headers are, and so need not
wait for one to find the next; see `concurrent_loader.storage.adopt.formats.tar_indexes`.

- Energon: the size of each ``name.tar.idx``, which has 8 bytes per sample, and the counts in ``.nv-meta/.info.json``.
  ``index.sqlite`` and ``.info.yaml`` are not read.
- DALI (``wds2idx``): the first line of the first 16 files ``name.idx`` of at most 8 MiB.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import xxhash

from concurrent_loader.storage.adopt.formats.tar_headers import TarMember, walk_members
from concurrent_loader.storage.adopt.formats.tar_indexes import expected_samples, read_places
from concurrent_loader.storage.adopt.formats.text_values import derive_column, parse_value
from concurrent_loader.storage.adopt.protocol import (
    ForeignColumn,
    FoundSample,
    ObjectReader,
    SmallObjects,
    SourceObject,
    SparseReader,
)
from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.images import COLUMN_FORMATS, FORMATS
from concurrent_loader.storage.listing import ObjectEntry
from concurrent_loader.storage.printable import printable
from concurrent_loader.storage.ranges import ByteRange
from concurrent_loader.storage.shards.format.schema import MAX_COLUMNS, Column, ColumnKind

__all__ = ["KEY", "WebDataset", "split_name"]

KEY = "__key__"
"""Column of the samples' keys."""

_COMPRESSED = (".tar.gz", ".tgz", ".tar.zst", ".tar.zstd", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.lz4")
_SPLIT = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)$")
_SKIPPED = re.compile(r"__[^/]*__($|/)")
_COLUMN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SEEN_SAMPLES = 256
_SEEN_BYTES = 64 << 20
_SEEN_VALUES = 64
_NAMES_AT_ONCE = 1 << 16


class WebDataset:
    """The format of ``*.tar`` files; other objects are ignored, but a compressed tar file is an error.

    Walking keeps 8 bytes per sample, to find samples whose members are not next to each other.

    Example:
        >>> import io, tarfile
        >>> from concurrent_loader.storage.adopt.formats.webdataset import WebDataset
        >>> WebDataset().parse("cls", "int64", memoryview(b"7"))
        7
    """

    name = "webdataset"

    def objects(self, entries: Sequence[ObjectEntry], small: SmallObjects) -> list[SourceObject]:
        """Returns the tar files; see `ForeignFormat`.

        Raises:
            FormatError: There is none, one is compressed, or indexes beside it contradict each other.
        """
        for entry in entries:
            if entry.key.lower().endswith(_COMPRESSED):
                raise FormatError(
                    "a compressed tar file cannot be read in place; convert it with `concurrent-loader ingest tar`",
                    key=entry.key,
                )
        tars = [entry for entry in entries if entry.key.endswith(".tar")]
        if not tars:
            raise FormatError(
                "the source has no object whose name ends in .tar", expected="*.tar", got=[e.key for e in entries[:8]]
            )
        expected = expected_samples(tars, entries, small)
        return [SourceObject(entry=entry, info=expected.get(entry.key, {})) for entry in tars]

    def columns(self, source: SourceObject, reader: ObjectReader) -> dict[str, ForeignColumn]:
        """Derives the columns from the first 256 samples, or from the first 64 MiB; see `ForeignFormat`.

        All fields that occur become columns, except those whose name cannot be the name of a column.
        """
        members: dict[str, list[TarMember]] = {}
        keys: set[str] = set()
        for member in walk_members(reader):
            split = split_name(member.name)
            if split is None:
                continue
            key, field = split
            keys.add(key)
            if len(keys) > 1 and (len(keys) > _SEEN_SAMPLES or member.start > _SEEN_BYTES):
                break
            if not _COLUMN_NAME.fullmatch(field) or field == KEY:
                continue
            values = members.setdefault(field, [])
            if len(values) < _SEEN_VALUES:
                values.append(member)
            if len(members) >= MAX_COLUMNS:
                raise FormatError(
                    "the samples have too many fields; a field is what follows the first dot of a file name, "
                    "so file names must not have other dots",
                    key=reader.name, expected=f"< {MAX_COLUMNS}", got=sorted(members)[:8],
                )  # fmt: skip
        if not members:
            raise FormatError(
                "the tar file has no samples: no file has a name such as KEY.EXTENSION", key=reader.name,
                got=sorted(keys)[:8],
            )  # fmt: skip
        columns = {KEY: ForeignColumn(type="str")}
        for field, seen in members.items():
            columns[field] = derive_column(field, [(each.head, ByteRange(*each[2:4])) for each in seen], reader)
        return columns

    def retype(self, source: SourceObject, column: str, type_: str) -> ForeignColumn:
        """Returns the column that a user asked for; `parse` reads texts as any type that is not payload.

        Raises:
            SchemaError: The type is invalid.
        """
        asked = Column(column, type_)
        is_array = column.endswith("npy") and asked.kind is ColumnKind.PAYLOAD and asked.dtype is not None
        return ForeignColumn(type=asked.type, encoding="npy" if is_array else "")

    def walk(
        self, source: SourceObject, reader: ObjectReader, columns: Mapping[str, ForeignColumn]
    ) -> Iterator[FoundSample]:
        """Yields the samples of a tar file; see `ForeignFormat`.

        Raises:
            FormatError: The tar file is damaged, or its members do not form samples with these columns.
        """
        images = {name: COLUMN_FORMATS[each.type] for name, each in columns.items() if each.type in COLUMN_FORMATS}
        keys = _Keys(reader)
        sample: FoundSample | None = None
        key, start, end, num_skipped = "", 0, 0, 0
        values: dict[str, object] = {}
        members = walk_members(reader)
        if isinstance(reader, SparseReader) and (places := read_places(source.info)) is not None:
            reader.expect(places.headers)
            members = places.checked(members, reader)
        for member in members:
            name, member_start, data_start, data_end, member_end, head = member
            split = split_name(name)
            if split is None:
                num_skipped += 1
                continue
            member_key, field = split
            if member_key != key or not values:
                if values:
                    sample = FoundSample(key, start, end, values)
                    if not columns.keys() <= values.keys():
                        raise keys.incomplete(sample, columns)
                    yield sample
                key, start, values = member_key, member_start, {KEY: member_key}
                keys.add(key)
                if KEY in columns and not key.isascii():
                    _check_text(key, member_start, reader)
            if field in values:
                raise _error(reader, key, f"two members are the field {field!r} of the sample", member_start)
            values[field] = ByteRange(data_start, data_end)
            end = member_end
            if field in images and not any(FORMATS[each].matches(head) for each in images[field]):
                raise _error(
                    reader, key,
                    f"the field {printable(field)!r} is not an image of type {columns[field].type}; "
                    f"choose another type, such as --column {field}=image or --column {field}=bytes",
                    member_start, got=head,
                )  # fmt: skip
        if values:
            sample = FoundSample(key, start, end, values)
            if not columns.keys() <= values.keys():
                raise keys.incomplete(sample, columns)
            yield sample
        keys.check_contiguous()
        keys.check_count(source, num_skipped)

    def parse(self, column: str, type_: str, data: memoryview) -> object:
        """Returns the value of a text, a number, JSON, or a small array; see `ForeignFormat`.

        Raises:
            ValueError: The bytes are not a value of this type.
        """
        return parse_value(type_, data)


def split_name(name: str) -> tuple[str, str] | None:
    """Splits the name of a member into the key of its sample and its field, as the `webdataset` package does.

    Returns:
        The key and the field in lower case, or None for a member that `webdataset` leaves out: one without a dot, a
        hidden one, or one whose path begins with a name like ``__meta__``.

    Example:
        >>> from concurrent_loader.storage.adopt.formats.webdataset import split_name
        >>> split_name("a.b/0001.seg.PNG")
        ('a.b/0001', 'seg.png')
    """
    if name[:2] == "__" and _SKIPPED.match(name):
        return None
    first = name.rfind("/") + 1
    dot = name.find(".", first)
    if dot > first and "\n" not in name:
        return name[:dot], name[dot + 1 :].lower()
    match = _SPLIT.match(name)  # rare names, such as a/.b.jpg, whose key is a/
    return None if match is None else (match[1], match[2].lower())


class _Keys:
    """The keys of an object so far, as hashes, and the errors that need them."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self._hashes = array("Q")

    def add(self, key: str) -> None:
        self._hashes.append(_hash(key))

    def incomplete(self, sample: FoundSample, columns: Mapping[str, ForeignColumn]) -> FormatError:
        """Returns the error for a sample that lacks a field."""
        if _hash(sample.name) in self._hashes[:-1]:
            return self._scattered(sample.name, sample.start)
        missing = sorted(columns.keys() - sample.values.keys())
        return _error(
            self._reader, sample.name,
            f"the sample lacks the field {missing[0]!r}, or has it elsewhere in the tar file: members of a sample must "
            "follow each other (tar --sort=name); if only some samples have a field, choose the columns that all have, "
            "with --only",
            sample.start, column=missing[0], got=sorted(sample.values)[:8],
        )  # fmt: skip

    def check_contiguous(self) -> None:
        """Checks that no key occurred again after another key."""
        if len(self._hashes) < 2:
            return
        hashes = np.sort(np.frombuffer(self._hashes, np.uint64))
        twice = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
        # Hashes may be the same by chance, so that names decide. A second walk is rare, more than one a sign of malice.
        for start in range(0, len(twice), _NAMES_AT_ONCE):
            self._check_names(set(twice[start : start + _NAMES_AT_ONCE].tolist()))

    def _check_names(self, hashes: set[int]) -> None:
        seen: set[str] = set()
        last: str | None = None
        for member in walk_members(self._reader):
            split = split_name(member.name)
            if split is None or split[0] == last:
                continue
            last = split[0]
            if _hash(last) in hashes:
                if last in seen:
                    raise self._scattered(last, member.start)
                seen.add(last)

    def check_count(self, source: SourceObject, num_skipped: int) -> None:
        """Checks the number of samples that an index beside the tar file states."""
        expected, found = source.info.get("num_samples"), len(self._hashes)
        # Members that WebDataset skips are samples to some programs.
        if expected is not None and not found <= expected <= found + num_skipped:
            raise FormatError(
                f"the index {source.info['index']} states another number of samples than the tar file has; "
                "create it again, or remove it",
                key=self._reader.name, expected=expected, got=found,
            )  # fmt: skip

    def _scattered(self, key: str, position: int) -> FormatError:
        return _error(
            self._reader, key,
            "the members of the sample do not follow each other; sort the tar file by name (tar --sort=name), "
            "or convert it with `concurrent-loader ingest tar`",
            position,
        )  # fmt: skip


def _hash(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogateescape"))


def _check_text(key: str, position: int, reader: ObjectReader) -> None:
    try:
        key.encode()
    except UnicodeEncodeError:
        raise _error(reader, key, f"the key is not UTF-8; leave out the column {KEY} with --only", position) from None


def _error(
    reader: ObjectReader, key: str, what: str, position: int, *, column: str | None = None, got: object = None
) -> FormatError:
    return FormatError(
        f"sample '{printable(key[:200])}': {what}", key=reader.name, start=position, column=column, got=got
    )
