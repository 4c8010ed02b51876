"""The folder of the local cache: private, with atomic files, and with leases and locks that end with their process.

The folder belongs to the cache alone, and the cache touches only these names::

    DIGEST.shard     a whole shard
    DIGEST.sparse    parts of a shard, see `concurrent_loader.storage.cache.sparse_file`
    DIGEST.lock      lock file, held by the process that fetches the shard
    tmp-RANDOM       a shard being written, locked by its writer

A shard becomes visible by ``rename`` and is therefore whole or absent. It is not fsynced, because an fsync per shard
would cost more than the fetch. After a power cut a file may hold zeros; the digests detect them, and the shard is
fetched again. docs/explanation/cache.md describes the design.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar

from concurrent_loader.storage.cache.blocking_io import Drive
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["CacheFolder", "CachedFile", "FileKind", "IncomingFile", "file_name_of"]

log = logging.getLogger(__name__)
T = TypeVar("T")

_MAX_LISTINGS = 10
_BLOCK_BYTES = 512  # unit of st_blocks on every file system


class FileKind(Enum):
    """Kind of a file in the folder."""

    SHARD = ".shard"
    SPARSE = ".sparse"
    LOCK = ".lock"
    INCOMING = "tmp-"


_NAME = re.compile(r"[0-9a-f]{16,64}")
_FILE = re.compile(r"([0-9a-f]{16,64})(\.shard|\.sparse|\.lock)")
_INCOMING = re.compile(r"tmp-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file of the cache.

    Attributes:
        file_name: Name of the file in the folder.
        name: Digest of the shard, in hex; empty for an incoming file.
        kind: Kind of the file.
        size: Length in bytes, holes included.
        num_bytes: Share of the budget in bytes, holes excluded.
        last_used_s: Time of the last use, in POSIX seconds.
    """

    file_name: str
    name: str
    kind: FileKind
    size: int
    num_bytes: int
    last_used_s: float


@dataclass(frozen=True, slots=True)
class IncomingFile:
    """A file that is being written: its temporary name, and a descriptor that the writer must close."""

    file_name: str
    fd: int


class CacheFolder:
    """A folder of files named by digests, shared by any number of processes.

    Args:
        root: Path of the folder; created with mode 0700 if missing, and again if it is deleted while in use.
        drive: System calls.

    Raises:
        ConfigurationError: Other users may write to the folder.
        PermissionError: The folder belongs to another user.
        OSError: The folder cannot be created or read.

    Thread-safety: All methods may be called from any thread. They block on the drive.
    """

    def __init__(self, root: str | os.PathLike[str], *, drive: Drive | None = None) -> None:
        self.root = Path(root).expanduser().absolute()
        self.drive = drive or Drive()
        self._guard = threading.Lock()
        self._folders = [self._open_root()]  # the last one counts; older ones were deleted while in use

    def _open_root(self) -> int:
        self.drive.make_folder(self.root)
        fd = self.drive.open_folder(self.root)
        try:
            # Check the open folder, not the path, which may lead elsewhere by now.
            status = self.drive.status(fd)
            if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ConfigurationError(
                    f"others may write into the cache folder; run: chmod go-w '{self.root}', or choose another folder",
                    got=oct(status.st_mode & 0o777),
                )
            if status.st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "the cache folder belongs to another user", str(self.root))
        except BaseException:
            self.drive.close(fd)
            raise
        return fd

    def close(self) -> None:
        """Closes the folder; no other method may be called afterwards. Idempotent."""
        with self._guard:
            while self._folders:
                self.drive.close(self._folders.pop())

    def may_write(self) -> bool:
        """Returns whether files can be created in the folder now."""
        return self._in_folder(self.drive.may_write)

    # -- shards ----------------------------------------------------------------------------------------------------

    def open(self, name: str, *, size: int) -> int | None:
        """Opens a whole shard under a lease: no process evicts the file while the descriptor is open.

        A file of the wrong length was truncated by another program, and is deleted.

        Returns:
            Descriptor, which the caller must close; None if the file is absent or being evicted.

        Raises:
            OSError: The file cannot be opened, or is not a regular file.
        """
        file_name = file_name_of(name, FileKind.SHARD)
        fd = self.lease(file_name, os.O_RDONLY)
        if fd is None:
            return None
        try:
            if self.drive.status(fd).st_size == size:
                self.mark_used(fd)
                return fd
            self.remove(file_name)
        except BaseException:
            self.drive.close(fd)
            raise
        self.drive.close(fd)
        return None

    def lease(self, file_name: str, flags: int) -> int | None:
        """Opens a file so that no process evicts it while it is open; None if it is absent or being evicted."""
        try:
            fd = self._in_folder(lambda folder: self.drive.open(file_name, flags, folder=folder))
        except FileNotFoundError:
            return None
        try:
            self._check_regular(fd, file_name)
            if self.drive.lock(fd, shared=True) and self.drive.status(fd).st_nlink:
                return fd
        except BaseException:
            self.drive.close(fd)
            raise
        self.drive.close(fd)
        return None

    def mark_used(self, fd: int) -> None:
        """Sets the time of a file's last use to now; only logs failures, so that a read-only drive stays usable."""
        try:
            self.drive.touch(fd)
        except OSError as error:
            log.info("cannot set the time of a cached file: %s", error)

    def begin(self, *, size: int) -> IncomingFile:
        """Creates a file of ``size`` bytes, and allocates all of its blocks.

        The writer leases the file at once, so that `sweep` can tell abandoned files from files in progress. The same
        lease protects the published file from eviction. If a sweep deletes the file before it is locked, another one is
        created under another name.
        """
        while (incoming := self._begin()) is None:
            pass
        try:
            self.drive.allocate(incoming.fd, size)
        except BaseException:
            self.abandon(incoming)
            raise
        return incoming

    def _begin(self) -> IncomingFile | None:
        """Creates a file and leases it; returns None if a sweep deleted it before the lease."""
        file_name = f"{FileKind.INCOMING.value}{secrets.token_hex(8)}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        incoming = IncomingFile(
            file_name, self._in_folder(lambda folder: self.drive.open(file_name, flags, folder=folder))
        )
        try:
            if self.drive.lock(incoming.fd, shared=True) and self.drive.status(incoming.fd).st_nlink:
                return incoming
        except BaseException:
            self.abandon(incoming)
            raise
        self.abandon(incoming)
        return None

    def publish(self, incoming: IncomingFile, name: str) -> None:
        """Gives a complete file its final name; the descriptor stays open, as a reader's lease."""
        file_name = file_name_of(name, FileKind.SHARD)
        self._in_folder(lambda folder: self.drive.rename(incoming.file_name, file_name, folder=folder))

    def abandon(self, incoming: IncomingFile, *, keep_open: bool = False) -> None:
        """Deletes an unfinished file; with ``keep_open`` its descriptor stays readable."""
        try:
            self.remove(incoming.file_name)
        except OSError as error:
            log.info("cannot delete %s: %s", incoming.file_name, error)  # `sweep` will, after its writer has ended
        finally:
            if not keep_open:
                self.drive.close(incoming.fd)

    # -- locks -----------------------------------------------------------------------------------------------------

    def lock_shard(self, name: str, *, wait: bool) -> int | None:
        """Acquires the lock of a shard, which excludes all other threads and processes, and ends with this process.

        The holder deletes the lock file. A waiter that then gets the lock of a deleted file starts over.

        Args:
            name: Digest of the shard.
            wait: Whether to block until the lock is free; otherwise a held lock returns None at once.

        Returns:
            Descriptor of the lock file, for `unlock_shard`.
        """
        file_name = file_name_of(name, FileKind.LOCK)
        flags = os.O_RDWR | os.O_CREAT
        while True:
            fd = self._in_folder(lambda folder: self.drive.open(file_name, flags, folder=folder))
            try:
                self._check_regular(fd, file_name)
                if not self.drive.lock(fd, wait=wait):
                    self.drive.close(fd)
                    return None
                if self.drive.status(fd).st_nlink:
                    self.drive.touch(fd)
                    return fd
            except BaseException:
                self.drive.close(fd)
                raise
            self.drive.close(fd)  # its last holder removed it between our open and our lock

    def unlock_shard(self, name: str, lock: int) -> None:
        """Releases a lock that `lock_shard` returned."""
        try:
            self.remove(file_name_of(name, FileKind.LOCK))
        except OSError as error:
            log.info("cannot delete the lock of %s: %s", name, error)  # `sweep` will
        finally:
            self.drive.close(lock)

    def heartbeat(self, name: str) -> object:
        """Returns a value that changes while the holder of a shard's lock makes progress and touches the lock file."""
        file_name = file_name_of(name, FileKind.LOCK)
        try:
            status = self._in_folder(lambda folder: self.drive.status_of(file_name, folder=folder))
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns

    def lock_room(self, *, wait: bool) -> int | None:
        """Acquires the lock of the whole folder, under which room is made; the caller closes the descriptor.

        The lock is on the folder itself, so it needs no file. It ends with the process.
        """
        fd = self._in_folder(self.drive.open_again)
        try:
            if self.drive.lock(fd, wait=wait):
                return fd
        except BaseException:
            self.drive.close(fd)
            raise
        self.drive.close(fd)
        return None

    # -- all files -------------------------------------------------------------------------------------------------

    def files(self) -> list[CachedFile]:
        """Lists the cache's files, and ignores all other names.

        Under the folder's lock no file is added meanwhile, but an incoming file may be renamed. So the listing starts
        over if an incoming file disappears before its status is read.
        """
        for _ in range(_MAX_LISTINGS):
            found, complete = self._list()
            if complete:
                break
        return list(found.values())

    def _list(self) -> tuple[dict[int, CachedFile], bool]:
        """Returns the files by inode, because a file may be seen under two names, and whether none was missed."""
        found: dict[int, CachedFile] = {}
        complete = True
        folder = self._folders[-1]
        for file_name in self.drive.names(folder):
            match = _FILE.fullmatch(file_name)
            if match is None and not _INCOMING.fullmatch(file_name):
                continue
            try:
                status = self.drive.status_of(file_name, folder=folder)
            except FileNotFoundError:
                complete = complete and match is not None
                continue
            if not stat.S_ISREG(status.st_mode):
                continue
            kind = FileKind(match[2]) if match else FileKind.INCOMING
            num_bytes = status.st_blocks * _BLOCK_BYTES if kind is FileKind.SPARSE else status.st_size
            name = match[1] if match else ""
            found[status.st_ino] = CachedFile(file_name, name, kind, status.st_size, num_bytes, status.st_mtime)
        return found, complete

    def evict(self, file: CachedFile) -> bool:
        """Deletes a file unless a process leases or writes it; returns whether the file was deleted.

        An incoming file or a lock file is deleted only if its process has ended.
        """
        try:
            fd = self._in_folder(lambda folder: self.drive.open(file.file_name, os.O_RDONLY, folder=folder))
        except FileNotFoundError:
            return False
        try:
            self._check_regular(fd, file.file_name)
            if not self.drive.lock(fd) or not self.drive.status(fd).st_nlink:
                return False
            self.remove(file.file_name)
            return True
        finally:
            self.drive.close(fd)

    def remove(self, file_name: str) -> None:
        """Deletes a file, even if it is in use; open descriptors stay readable."""
        self._in_folder(lambda folder: self.drive.remove(file_name, folder=folder))

    def sweep(self) -> int:
        """Deletes incoming files and locks whose processes have ended; returns the number of deleted files."""
        kinds = (FileKind.INCOMING, FileKind.LOCK)
        return sum(self.evict(file) for file in self.files() if file.kind in kinds)

    def _check_regular(self, fd: int, file_name: str) -> None:
        if not stat.S_ISREG(self.drive.status(fd).st_mode):
            raise OSError(
                errno.EEXIST,
                "a cache file name is taken by something other than a regular file",
                str(self.root / file_name),
            )

    def _in_folder(self, call: Callable[[int], T]) -> T:
        """Calls a function with the open folder; if that was deleted, creates the folder again and repeats the call."""
        with self._guard:
            if not self._folders:
                raise OSError(errno.EBADF, "the cache folder is closed", str(self.root))
            folder = self._folders[-1]
        try:
            return call(folder)
        except FileNotFoundError:
            with self._guard:
                if self._folders[-1:] == [folder]:
                    if not self._is_gone(folder):
                        raise
                    try:
                        # The old descriptor stays open: another thread may be using it.
                        self._folders.append(self._open_root())
                    except ConfigurationError as error:
                        # While a loader runs, an unsafe folder must not end it: the cache treats it as a failed drive.
                        raise PermissionError(errno.EPERM, error.what, str(self.root)) from error
                folder = self._folders[-1]
            return call(folder)

    def _is_gone(self, folder: int) -> bool:
        try:
            return not os.path.samestat(self.drive.status(folder), self.root.stat())
        except FileNotFoundError:
            return True


def file_name_of(name: str, kind: FileKind) -> str:
    """Returns the file name for a digest; other names raise ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"cache names are hex digests, got {name!r}")
    return name + kind.value
