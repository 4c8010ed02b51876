"""Parts of shards in local files: what random access has touched, beside the whole shards that a loader reads.

``DIGEST.sparse`` begins as the shard does, with holes where nothing was fetched, and goes on behind the shard's size
with a journal of what is there (`storage.cache.ranges_journal`). One file, so that bytes and journal cannot part. Bytes
are written before their record. Any number of processes add to it, without a lock: what two of them write to the same
place is the same. What is read is checked by its digest as ever; this is only a cache.

A raw object, which has no digest of its own, is kept likewise, whole, with one record, whose digest vouches for it.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock

import xxhash

from storage.cache.files import CacheFolder, FileKind, file_name_of
from storage.cache.ranges_journal import RECORD_BYTES, PresentRanges, RangeRecord, encode_record, parse_records
from storage.errors import DigestMismatch

__all__ = ["SparseFiles", "read_journal"]

_MAX_KNOWN = 1024  # files whose journals are kept parsed
_MAX_JOURNAL_BYTES = 64 * 1024 * 1024  # two million records; a longer one is foreign
_PAGE_BYTES = 4096


@dataclass(slots=True)
class _Journal:
    """What is known of a file: its first record, how far its journal was read, what it holds."""

    position: int
    first_record: bytes = b""
    present: PresentRanges = field(default_factory=PresentRanges)


class SparseFiles:
    """The sparse files of a folder. A file is open, and leased, only during a call.

    Thread-safety: All methods may be called from any thread; they block for the drive.
    """

    def __init__(self, folder: CacheFolder) -> None:
        self._folder = folder
        self._drive = folder.drive
        self._journals: OrderedDict[str, _Journal] = OrderedDict()
        self._guard = Lock()

    def read(self, name: str, start: int, end: int, *, size: int) -> bytes | None:
        """Returns the bytes [start, end) of a shard, unverified, if all of them are there.

        Args:
            name: The shard's digest.
            start: First byte.
            end: One past the last byte.
            size: Of the shard.

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
        """Returns a whole raw object, whose bytes nothing but the journal can vouch for; None if it is not there.

        Args:
            name: Under which it was kept.
            size: Of the object.

        Raises:
            DigestMismatch: Its bytes are not those that were kept.
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
                raise DigestMismatch("a cached object is not what was fetched", start=0, end=size)
            self._folder.mark_used(fd)
            return data
        finally:
            self._drive.close(fd)

    def add_object(self, name: str, data: memoryview) -> None:
        """Keeps a whole raw object; does nothing while its file is being evicted.

        Others that keep it at the same time write the same bytes, but for the record's salt: a record of two halves is
        none, and the object is fetched once more.

        Raises:
            OSError: It cannot be written.
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
        """Keeps bytes of a shard that were verified; does nothing while the file is being evicted.

        Raises:
            OSError: They cannot be written.
        """
        file_name = file_name_of(name, FileKind.SPARSE)
        fd = self._folder.lease(file_name, os.O_RDWR | os.O_CREAT)
        if fd is None:
            return
        try:
            if self._drive.status(fd).st_size < size:
                # New, or its maker was killed. A record that another process appends at this very moment may be cut
                # off: its bytes are then fetched once more.
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
        """Deletes a shard's sparse file: its bytes turned out wrong, or the whole shard is there."""
        self._folder.remove(file_name_of(name, FileKind.SPARSE))
        with self._guard:
            self._journals.pop(name, None)

    @staticmethod
    def cost_bytes(start: int, end: int) -> int:
        """What a range takes of the budget at most: its pages, and one of the journal."""
        return (end // _PAGE_BYTES - start // _PAGE_BYTES + 2) * _PAGE_BYTES

    def _covers(self, name: str, fd: int, start: int, end: int, size: int) -> bool:
        """Brings what is known of a file up to date, and says whether it holds a range."""
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
    """Reads an open sparse file's records from a position in the file on.

    Returns:
        The records, and the position from which to go on next time.

    Raises:
        OSError: It cannot be read, or is not a journal's length.
    """
    num_bytes = folder.drive.status(fd).st_size - position
    if num_bytes > _MAX_JOURNAL_BYTES:
        raise OSError(errno.EFBIG, "the journal of a sparse cache file is too long")
    records, done = parse_records(folder.drive.read(fd, max(0, num_bytes), position), size=size)
    return records, position + done
