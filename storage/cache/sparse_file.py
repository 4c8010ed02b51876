"""Sparse files: the parts of shards that random access has fetched, kept in the cache folder.

``DIGEST.sparse`` has the shard's bytes, with holes where nothing was fetched. After the shard's size follows a journal
of the ranges present (`concurrent_loader.storage.cache.range_journal`). Bytes and journal share one file so that they
cannot be separated. Bytes are written before their record. Any number of processes add to a file without a lock,
because all of them write the same bytes to the same place. Readers check the digests as always.

A raw object has no digest in a manifest. It is kept whole, with one record, whose digest verifies it.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock

import xxhash

from concurrent_loader.storage.cache.folder import CacheFolder, FileKind, file_name_of
from concurrent_loader.storage.cache.range_journal import (
    RECORD_BYTES,
    PresentRanges,
    RangeRecord,
    encode_record,
    parse_records,
)
from concurrent_loader.storage.errors import DigestMismatch

__all__ = ["SparseFiles", "read_journal"]

_MAX_KNOWN = 1024  # journals kept parsed in memory
_MAX_JOURNAL_BYTES = 64 * 1024 * 1024  # 1.4 million records; a longer journal is not one of ours
_PAGE_BYTES = 4096


@dataclass(slots=True)
class _Journal:
    """The parsed state of a file: its first record, the position parsed so far, the ranges present."""

    position: int
    first_record: bytes = b""
    present: PresentRanges = field(default_factory=PresentRanges)


class SparseFiles:
    """The sparse files of a folder. A file is open and leased only during a call.

    Thread-safety: All methods may be called from any thread. They block on the drive.
    """

    def __init__(self, folder: CacheFolder) -> None:
        self._folder = folder
        self._drive = folder.drive
        self._journals: OrderedDict[str, _Journal] = OrderedDict()
        self._guard = Lock()

    def read(self, name: str, start: int, end: int, *, size: int) -> bytes | None:
        """Returns the bytes [start, end) of a shard, unverified; None unless the file holds all of them.

        Args:
            name: Digest of the shard.
            start: First byte.
            end: One past the last byte.
            size: Size of the shard in bytes.

        Raises:
            OSError: The file cannot be read.
        """
        fd = self._folder.lease(file_name_of(name, FileKind.SPARSE), os.O_RDONLY)
        if fd is None:
            return None
        try:
            if not self._covers(name, fd, start, end, size):
                return None
            self._folder.mark_used(fd)
            data = self._drive.read(fd, end - start, start)
            return data if len(data) == end - start else None
        finally:
            self._drive.close(fd)

    def read_object(self, name: str, *, size: int) -> memoryview | None:
        """Returns a whole raw object, verified by the digest in the journal; None if it is not cached.

        Args:
            name: Name of the object in the cache.
            size: Size of the object in bytes.

        Raises:
            DigestMismatch: The bytes differ from the stored digest.
            OSError: The file cannot be read.
        """
        fd = self._folder.lease(file_name_of(name, FileKind.SPARSE), os.O_RDONLY)
        if fd is None:
            return None
        try:
            found = self._drive.read(fd, size + RECORD_BYTES, 0)
            records, _ = parse_records(found[size:], size=size)
            if not records:
                return None
            data = memoryview(found)[:size]
            if xxhash.xxh3_64_intdigest(data) != records[0].digest:
                raise DigestMismatch("a cached object differs from what was fetched", start=0, end=size)
            self._folder.mark_used(fd)
            return data
        finally:
            self._drive.close(fd)

    def add_object(self, name: str, data: memoryview) -> None:
        """Stores a whole raw object; does nothing while its file is being evicted.

        Processes that store it at the same time write the same bytes, except for the record's salt. A record mixed
        from two writers is invalid, and the object is fetched again.

        Raises:
            OSError: The file cannot be written.
        """
        fd = self._folder.lease(file_name_of(name, FileKind.SPARSE), os.O_RDWR | os.O_CREAT)
        if fd is None:
            return
        try:
            self._drive.write(fd, data, 0)
            record = RangeRecord(0, len(data), xxhash.xxh3_64_intdigest(data))
            encoded = encode_record(record, size=len(data), salt=secrets.randbits(64))
            self._drive.write(fd, memoryview(encoded), len(data))
        finally:
            self._drive.close(fd)

    def add(self, name: str, start: int, data: memoryview, *, size: int) -> None:
        """Stores verified bytes of a shard; does nothing while the file is being evicted.

        Raises:
            OSError: The file cannot be written.
        """
        file_name = file_name_of(name, FileKind.SPARSE)
        fd = self._folder.lease(file_name, os.O_RDWR | os.O_CREAT)
        if fd is None:
            return
        try:
            if self._drive.status(fd).st_size < size:
                # The file is new, or its creator was killed. This may cut off a record that another process appends
                # at this moment; the bytes of that record are then fetched again.
                self._drive.truncate(fd, size)
            self._drive.write(fd, data, start)
            record = RangeRecord(start, start + len(data), xxhash.xxh3_64_intdigest(data))
            appender = self._folder.lease(file_name, os.O_WRONLY | os.O_APPEND)
            if appender is None:
                return
            try:
                if os.path.samestat(self._drive.status(appender), self._drive.status(fd)):
                    self._drive.append(appender, encode_record(record, size=size, salt=secrets.randbits(64)))
            finally:
                self._drive.close(appender)
        finally:
            self._drive.close(fd)

    def discard(self, name: str) -> None:
        """Deletes a shard's sparse file, because it is corrupt or because the whole shard is cached."""
        self._folder.remove(file_name_of(name, FileKind.SPARSE))
        with self._guard:
            self._journals.pop(name, None)

    @staticmethod
    def cost_bytes(start: int, end: int) -> int:
        """Returns the most bytes of the budget that a range takes: its pages and one page of the journal."""
        return (end // _PAGE_BYTES - start // _PAGE_BYTES + 2) * _PAGE_BYTES

    def _covers(self, name: str, fd: int, start: int, end: int, size: int) -> bool:
        """Parses new records of a file, and returns whether the file holds a range."""
        length = self._drive.status(fd).st_size
        first_record = self._drive.read(fd, RECORD_BYTES, size)
        with self._guard:
            known = self._journals.get(name)
            if known is None or known.position > length or known.first_record != first_record:
                known = self._journals[name] = _Journal(size, first_record)
            self._journals.move_to_end(name)
            if len(self._journals) > _MAX_KNOWN:
                self._journals.popitem(last=False)
            if length - known.position >= RECORD_BYTES:
                records, known.position = read_journal(self._folder, fd, size, position=known.position)
                known.present.update((record.start, record.end) for record in records)
            return known.present.covers(start, end)


def read_journal(folder: CacheFolder, fd: int, size: int, *, position: int) -> tuple[list[RangeRecord], int]:
    """Reads an open sparse file's records, starting at a position in the file.

    Returns:
        The records, and the position at which the next call continues.

    Raises:
        OSError: The file cannot be read, or its journal is too long.
    """
    num_bytes = folder.drive.status(fd).st_size - position
    if num_bytes > _MAX_JOURNAL_BYTES:
        raise OSError(errno.EFBIG, "the journal of a sparse cache file is too long")
    records, done = parse_records(folder.drive.read(fd, max(0, num_bytes), position), size=size)
    return records, position + done
