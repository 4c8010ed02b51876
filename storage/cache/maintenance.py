"""Maintains a cache folder while other processes may use it: inspects, shrinks, clears and verifies it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import xxhash

from concurrent_loader.storage.cache.eviction import Resident, choose_victims
from concurrent_loader.storage.cache.folder import CachedFile, CacheFolder, FileKind
from concurrent_loader.storage.cache.range_journal import find_size
from concurrent_loader.storage.cache.sparse_file import read_journal

__all__ = [
    "CacheContent",
    "Collected",
    "VerifiedCache",
    "clear_cache",
    "collect_garbage",
    "inspect_cache",
    "verify_cache",
]

_PIECE_BYTES = 8 * 1024 * 1024
_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class CacheContent:
    """The contents of a cache folder.

    Attributes:
        root: Path of the folder.
        num_bytes: Share of the budget in bytes.
        num_shards: Number of whole shards.
        shard_bytes: Size of the whole shards in bytes.
        num_sparse: Number of files with parts of shards.
        sparse_bytes: Space of these files on the drive in bytes.
        num_incoming: Number of files being written or abandoned.
        incoming_bytes: Size of these files in bytes.
        num_locks: Number of lock files, held or abandoned.
        oldest_s: Last use of the least recently used file, in POSIX seconds; None without files.
        newest_s: Last use of the most recently used file, in POSIX seconds; None without files.
        free_bytes: Free space of the drive in bytes.
    """

    root: str
    num_bytes: int
    num_shards: int
    shard_bytes: int
    num_sparse: int
    sparse_bytes: int
    num_incoming: int
    incoming_bytes: int
    num_locks: int
    oldest_s: float | None
    newest_s: float | None
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of deleting files.

    Attributes:
        num_swept: Number of deleted files without use: abandoned files and locks, and superseded sparse files.
        num_evicted: Number of deleted intact files.
        num_in_use: Number of files that stay only because they are in use.
        freed_bytes: Number of bytes freed from the budget.
        num_bytes: Number of bytes left.
    """

    num_swept: int
    num_evicted: int
    num_in_use: int
    freed_bytes: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class VerifiedCache:
    """The result of a verification.

    Attributes:
        problems: One line for each damaged file.
        num_shards: Number of whole shards read.
        num_ranges: Number of ranges read from sparse files.
        num_bytes: Number of bytes read.
        num_removed: Number of damaged files deleted.
    """

    problems: tuple[str, ...]
    num_shards: int
    num_ranges: int
    num_bytes: int
    num_removed: int


def inspect_cache(folder: CacheFolder) -> CacheContent:
    """Counts the files of a folder.

    Raises:
        OSError: The folder cannot be read.
    """
    files = folder.files()
    kinds = {kind: [file for file in files if file.kind is kind] for kind in FileKind}
    used = [file.last_used_s for file in (*kinds[FileKind.SHARD], *kinds[FileKind.SPARSE])]
    drive = os.statvfs(folder.root)
    return CacheContent(
        root=str(folder.root),
        num_bytes=_sum(files),
        num_shards=len(kinds[FileKind.SHARD]),
        shard_bytes=_sum(kinds[FileKind.SHARD]),
        num_sparse=len(kinds[FileKind.SPARSE]),
        sparse_bytes=_sum(kinds[FileKind.SPARSE]),
        num_incoming=len(kinds[FileKind.INCOMING]),
        incoming_bytes=_sum(kinds[FileKind.INCOMING]),
        num_locks=len(kinds[FileKind.LOCK]),
        oldest_s=min(used, default=None),
        newest_s=max(used, default=None),
        free_bytes=drive.f_bavail * drive.f_frsize,
    )


def collect_garbage(folder: CacheFolder, *, budget_bytes: int | None = None) -> Collected:
    """Deletes files without use, and then the least recently used files until a budget is met.

    Files without use are abandoned incoming files and locks, and sparse files that are empty or whose whole shard is
    cached. Files in use stay. The call waits for processes that are making room.

    Raises:
        OSError: The folder cannot be read or written.
    """
    with _room(folder):
        before = folder.files()
        num_swept = folder.sweep()
        whole = {file.name for file in before if file.kind is FileKind.SHARD}
        for file in before:
            if file.kind is FileKind.SPARSE and (file.name in whole or not _has_records(folder, file)):
                num_swept += folder.evict(file)
        num_evicted = num_in_use = 0
        files = folder.files()
        need_bytes = 0 if budget_bytes is None else _sum(files) - budget_bytes
        by_name = {file.file_name: file for file in files if file.kind in (FileKind.SHARD, FileKind.SPARSE)}
        residents = [Resident(name, file.num_bytes, None, file.last_used_s) for name, file in by_name.items()]
        for victim in choose_victims(residents, need_bytes=min(need_bytes, sum(r.size for r in residents))) or ():
            if need_bytes <= 0:
                break
            if folder.evict(by_name[victim.name]):
                num_evicted += 1
                need_bytes -= victim.size
            else:
                num_in_use += 1
        left_bytes = _sum(folder.files())
    return Collected(num_swept, num_evicted, num_in_use, max(0, _sum(before) - left_bytes), left_bytes)


def clear_cache(folder: CacheFolder) -> Collected:
    """Deletes all files of the cache that are not in use; keeps other files and the folder.

    Raises:
        OSError: The folder cannot be read or written.
    """
    with _room(folder):
        before = folder.files()
        num_swept = folder.sweep()
        stored = [file for file in before if file.kind in (FileKind.SHARD, FileKind.SPARSE)]
        num_evicted = sum(folder.evict(file) for file in stored)
        left = folder.files()
    return Collected(num_swept, num_evicted, len(left), max(0, _sum(before) - _sum(left)), _sum(left))


def verify_cache(
    folder: CacheFolder, *, fix: bool = False, on_progress: Callable[[int, int], object] = lambda done, total: None
) -> VerifiedCache:
    """Verifies all files: whole shards against their names, ranges against their journals.

    Args:
        folder: Folder of the cache.
        fix: Whether to delete damaged files.
        on_progress: Callback for the number of bytes read, and of bytes to read.

    Raises:
        OSError: The folder cannot be read.
    """
    files = [file for file in folder.files() if file.kind in (FileKind.SHARD, FileKind.SPARSE)]
    total_bytes = _sum(files)
    problems: list[str] = []
    num_shards = num_ranges = num_bytes = num_removed = 0
    for file in files:
        fd = folder.lease(file.file_name, os.O_RDONLY)
        if fd is None:
            continue  # evicted meanwhile
        try:
            if file.kind is FileKind.SHARD:
                num_shards += 1
                problem = _check_shard(folder, file, fd, lambda done: on_progress(num_bytes + done, total_bytes))  # noqa: B023
            else:
                problem, num = _check_sparse(folder, file, fd)
                num_ranges += num
        except OSError as error:
            problem = f"it cannot be read: {error}"
        finally:
            folder.drive.close(fd)
        num_bytes += file.num_bytes
        on_progress(num_bytes, total_bytes)
        if problem is not None:
            problems.append(f"{file.file_name}: {problem}")
            if fix:
                folder.remove(file.file_name)
                num_removed += 1
    return VerifiedCache(tuple(problems), num_shards, num_ranges, num_bytes, num_removed)


def _check_shard(folder: CacheFolder, file: CachedFile, fd: int, on_bytes: Callable[[int], object]) -> str | None:
    hashed = xxhash.xxh3_128()
    done = 0
    while piece := folder.drive.read(fd, _PIECE_BYTES, done):
        hashed.update(piece)
        done += len(piece)
        on_bytes(done)
    return None if hashed.hexdigest() == file.name else f"its digest is {hashed.hexdigest()}"


def _check_sparse(folder: CacheFolder, file: CachedFile, fd: int) -> tuple[str | None, int]:
    size = _shard_size(folder, fd)
    if size is None:
        return None, 0  # a range was written but not recorded yet, which is harmless
    records, _ = read_journal(folder, fd, size, position=size)
    for record in records:
        data = folder.drive.read(fd, record.end - record.start, record.start)
        if len(data) != record.end - record.start or xxhash.xxh3_64_intdigest(data) != record.digest:
            return f"the bytes [{record.start}, {record.end}) do not match the digest in its journal", len(records)
    return None, len(records)


def _has_records(folder: CacheFolder, file: CachedFile) -> bool:
    fd = folder.lease(file.file_name, os.O_RDONLY)
    if fd is None:
        return True
    try:
        return _shard_size(folder, fd) is not None
    finally:
        folder.drive.close(fd)


def _shard_size(folder: CacheFolder, fd: int) -> int | None:
    length = folder.drive.status(fd).st_size
    start = max(0, length - _TAIL_BYTES)
    return find_size(folder.drive.read(fd, length - start, start))


def _sum(files: list[CachedFile]) -> int:
    return sum(file.num_bytes for file in files)


@contextmanager
def _room(folder: CacheFolder) -> Iterator[None]:
    lock = folder.lock_room(wait=True)
    try:
        yield
    finally:
        if lock is not None:
            folder.drive.close(lock)
