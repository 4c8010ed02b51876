"""Objects as files below a folder: the local drive, with the same promises as a bucket."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from concurrent_loader.storage.errors import (
    AccessDenied,
    AlreadyExists,
    ConfigurationError,
    NotFound,
    StorageError,
    StoreError,
)
from concurrent_loader.storage.stores.objects import GetResult, ObjectMeta, check_etag, check_key
from concurrent_loader.storage.stores.store import Store
from concurrent_loader.storage.unfinished import UNFINISHED, create_unfinished, sweep_unfinished, sync_folder

__all__ = ["LocalStore"]

_LIST_PAGE_KEYS = 1000
_MAKE_FOLDER_ATTEMPTS = 10
# Of one call. Longer ones take 160 µs in place of 60 for 56 KB on a virtual machine whose host takes free memory back
# (free page reporting), probably because the kernel then takes larger pages for its cache.
_WRITE_BYTES = 32 << 10


class LocalStore(Store):
    """A folder. Keys are paths below it; the folder itself is made by the first put.

    Unlike in a bucket, no key can be a folder of another (``a`` and ``a/b``), and a segment of a key has at most 255
    bytes. Symbolic links are followed to read; a put through a link that leaves the folder is refused.

    Args:
        root: Path of the folder, or a ``file:///`` URL.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        path = os.fspath(root).removeprefix("file://")
        if not path:
            raise ConfigurationError("a local store needs a path")
        self._root = Path(path).expanduser().absolute()
        super().__init__(f"file://{self._root}")
        self._swept: set[Path] = set()  # folders in which this store has looked for what killed writers left

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._url,)

    def path_of(self, key: str) -> Path:
        """Where an object lies, or would.

        Raises:
            ConfigurationError: Not a key.
        """
        check_key(key)
        return self._root / key

    def read_together(self, files: Sequence[tuple[str, int]]) -> list[bytes | None]:
        """Reads a few files on the calling thread, for callers that have a thread of their own.

        All are announced to the system first, so the drive reads the next ones while this call waits for one: less than
        half of the time and of the processor time where they are not in the page cache.

        Args:
            files: Key and expected size in bytes of each file.

        Returns:
            Bytes of each file; None for one that has another size or cannot be read, for which `get` says why.
        """
        with contextlib.ExitStack() as opened:
            found = [(self._announce(key, size, opened), size) for key, size in files]
            return [None if file is None else _read_whole(file, size) for file, size in found]

    async def _get(self, key: str, span: tuple[int, int] | None, if_match: str | None) -> GetResult:
        data, status = await asyncio.to_thread(self._read, key, span, if_match)
        return GetResult(memoryview(data), self._meta(key, status))

    async def _head(self, key: str) -> ObjectMeta:
        return await asyncio.to_thread(self._stat, key)

    async def _put(self, key: str, data: memoryview, *, if_absent: bool) -> ObjectMeta:
        if any(segment.startswith(UNFINISHED) for segment in key.split("/")):
            raise ConfigurationError(f"names that begin with {UNFINISHED!r} are taken", url=self.url, key=key)
        decision = _Decision()
        try:
            return await asyncio.to_thread(self._write, key, data, if_absent, decision)
        except asyncio.CancelledError:
            # The thread cannot be stopped; it must not replace the object later, when the caller believes it over.
            decision.withdraw()
            raise

    async def _delete(self, key: str) -> None:
        await asyncio.to_thread(self._remove, key)

    def _list(self, prefix: str) -> AsyncIterator[ObjectMeta | StorageError]:
        return self._list_after(prefix, "")

    async def _list_after(self, prefix: str, after: str) -> AsyncIterator[ObjectMeta | StorageError]:
        found = self._walk(prefix, os.fsencode(after))
        while page := await asyncio.to_thread(lambda: list(islice(found, _LIST_PAGE_KEYS))):
            for each in page:
                yield each

    # -- on a thread -----------------------------------------------------------------------------------------------

    def _announce(self, key: str, size: int, opened: contextlib.ExitStack) -> int | None:
        try:
            check_key(key)
            file = self._open(key)
        except (OSError, StorageError):
            return None
        opened.callback(os.close, file)
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):  # a pipe, or a file system without a cache
                os.posix_fadvise(file, 0, size, os.POSIX_FADV_WILLNEED)
        return file

    def _open(self, key: str) -> int:
        # O_NONBLOCK: opening a pipe must not wait for its writer.
        return os.open(f"{self._root}/{key}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def _read(self, key: str, span: tuple[int, int] | None, if_match: str | None) -> tuple[bytes, os.stat_result]:
        try:
            file = self._open(key)
            try:
                status = os.fstat(file)
                if if_match is not None or not stat.S_ISREG(status.st_mode):
                    check_etag(self._meta(key, status), if_match, url=self.url)
                start, end = span or (0, status.st_size)
                return _read_span(file, start, min(end, status.st_size)), status
            finally:
                os.close(file)
        except OSError as error:
            raise _translate(error, writing=False).locate(url=self.url, key=key) from error

    def _stat(self, key: str) -> ObjectMeta:
        try:
            return self._meta(key, os.stat(f"{self._root}/{key}"))  # noqa: PTH116 - a path object takes longer than the call
        except OSError as error:
            raise _translate(error, writing=False).locate(url=self.url, key=key) from error

    def _write(self, key: str, data: memoryview, if_absent: bool, decision: _Decision) -> ObjectMeta:
        target = self._root / key
        with self._translate_errors(key, writing=True):
            self._check_inside(key, target.parent)
            # Beside its target, because a rename is atomic within one file system only.
            file, unfinished = _create_beside(target)
            try:
                if target.parent not in self._swept:
                    self._swept.add(target.parent)
                    sweep_unfinished(target.parent)
                _write_all(file, data)
                os.fsync(file)
                meta = self._meta(key, os.fstat(file))
                if target.is_dir():
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
                with decision as stands:
                    if stands and if_absent:
                        os.link(unfinished, target)
                    elif stands:
                        unfinished.replace(target)
            finally:
                unfinished.unlink(missing_ok=True)
                os.close(file)
            sync_folder(target.parent)
            return meta

    def _remove(self, key: str) -> None:
        target = self._root / key
        try:
            with self._translate_errors(key):
                self._check_inside(key, target.parent)
                target.unlink()
        except NotFound:
            return
        # Empty folders are no objects: without this, "a" could not be put after "a/b" is gone.
        with contextlib.suppress(OSError):
            for folder in target.parents:
                if folder == self._root:
                    break
                folder.rmdir()

    def _walk(self, prefix: str, after: bytes) -> Iterator[ObjectMeta | StorageError]:
        """Yields what matches in order of the keys' UTF-8 bytes, reading no folder that cannot match."""
        if any(segment in ("", ".", "..") for segment in prefix.split("/")[:-1]):
            return
        yield from self._walk_folder(prefix.rpartition("/")[0], prefix, after, ())

    def _walk_folder(
        self, folder: str, prefix: str, after: bytes, above: tuple[tuple[int, int], ...]
    ) -> Iterator[ObjectMeta | StorageError]:
        path = self._root / folder
        try:
            status = path.stat()
            with os.scandir(path) as entries:
                found = [_Entry.of(entry) for entry in entries if not entry.name.startswith(UNFINISHED)]
            found.sort(key=_PLACE)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            problem = _translate(error, writing=False).locate(url=self.url, key=f"{folder}/")
            problem.__cause__ = error
            if not above:
                raise problem from error
            yield problem
            return
        identity = (status.st_dev, status.st_ino)
        if identity in above:  # a link to a folder that it lies in
            return
        for entry in found:
            key = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir:
                place = os.fsencode(f"{key}/")
                if place < after and not after.startswith(place):
                    continue
                if f"{key}/".startswith(prefix) or prefix.startswith(f"{key}/"):
                    yield from self._walk_folder(key, prefix, after, (*above, identity))
            elif (
                key.startswith(prefix)
                and (not after or os.fsencode(key) > after)
                and (listed := self._listed(key)) is not None
            ):
                yield listed

    def _listed(self, key: str) -> ObjectMeta | StorageError | None:
        """Returns the object, why there is none, or None where there is nothing to be read: a socket, or deleted."""
        try:
            return self._stat(key)
        except StorageError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                if not (self._root / key).is_symlink():
                    return None  # deleted meanwhile
                problem = NotFound("a symbolic link leads nowhere", url=self.url, key=key, got=cause.strerror)
                problem.__cause__ = cause
                return problem
            return None if isinstance(error, NotFound) else error

    # -- details ---------------------------------------------------------------------------------------------------

    def _meta(self, key: str, status: os.stat_result) -> ObjectMeta:
        if not stat.S_ISREG(status.st_mode):
            raise NotFound("no such key: the path is not a file", url=self.url, key=key)
        etag = f'"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}"'
        return ObjectMeta(key, status.st_size, etag, datetime.fromtimestamp(status.st_mtime, UTC))

    def _check_inside(self, key: str, folder: Path) -> None:
        if not folder.resolve().is_relative_to(self._root.resolve()):
            raise ConfigurationError("a symbolic link leads out of the store's folder", url=self.url, key=key)

    @contextlib.contextmanager
    def _translate_errors(self, key: str, *, writing: bool = False) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _translate(error, writing=writing).locate(url=self.url, key=key) from error


class _Decision:
    """Whether a put still stands; entered while it becomes visible, so that a withdrawal comes before or after that."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stands = True

    def __enter__(self) -> bool:
        self._lock.acquire()
        return self._stands

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def withdraw(self) -> None:
        with self._lock:
            self._stands = False


def _create_beside(target: Path) -> tuple[int, Path]:
    """Opens a new file in the target's folder, which a concurrent delete may be removing as empty."""
    for attempt in range(1, _MAKE_FOLDER_ATTEMPTS + 1):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            return create_unfinished(target.parent)
        except (FileNotFoundError, FileExistsError):
            # A file stands in the way, or the folder came or went under our hands.
            if attempt == _MAKE_FOLDER_ATTEMPTS or any(path.is_file() for path in target.parents):
                raise
    raise AssertionError(attempt)


def _read_whole(file: int, size: int) -> bytes | None:
    with contextlib.suppress(OSError):
        status = os.fstat(file)
        if stat.S_ISREG(status.st_mode) and status.st_size == size:  # before memory is taken: it may have grown
            return _read_span(file, 0, size)
    return None


def _read_span(file: int, start: int, end: int) -> bytes:
    # One call reads at most 2 GiB - 4 KiB on Linux.
    data = os.pread(file, max(0, end - start), start)
    if len(data) >= end - start:
        return data
    parts = [data]
    position = start + len(data)
    while position < end and (more := os.pread(file, end - position, position)):
        parts.append(more)
        position += len(more)
    return b"".join(parts)


def _write_all(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data[:_WRITE_BYTES]) :]


class _Entry(NamedTuple):
    """An entry of a folder. ``"a/"`` sorts behind ``"a.txt"``, and so do the keys in it."""

    place: bytes
    name: str
    is_dir: bool

    @staticmethod
    def of(entry: os.DirEntry[str]) -> _Entry:
        try:
            is_dir = entry.is_dir()
        except (
            OSError
        ):  # a link in a circle, or into a folder that must not be read: said where its facts are asked for
            is_dir = False
        place = os.fsencode(entry.name)
        return _Entry(place + b"/" if is_dir else place, entry.name, is_dir)


_PLACE = attrgetter("place")


def _translate(error: OSError, *, writing: bool) -> StorageError:
    reason = error.strerror or type(error).__name__
    match error:
        case FileExistsError() if writing and error.filename2 is not None:  # from os.link
            return AlreadyExists("the key exists")
        case FileNotFoundError() | NotADirectoryError() | IsADirectoryError() if not writing:
            return NotFound("no such key")
        case NotADirectoryError() | FileExistsError():
            return StoreError("a local key cannot run through another key: a file stands where a folder is needed")
        case IsADirectoryError():
            return StoreError("a local key cannot be a folder of other keys: a folder stands where the file belongs")
        case _ if error.filename2 is not None and error.errno in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            return ConfigurationError("put_if_absent needs a file system with hard links", got=reason)
        case PermissionError():
            return AccessDenied("access denied", got=reason)
        case _ if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StoreError("the local drive is full: free space, and run it again", got=reason)
        case _ if error.errno == errno.ENAMETOOLONG:
            return StoreError("a segment of a local key has at most 255 bytes")
        case _:
            return StoreError("the local drive failed", got=reason)
