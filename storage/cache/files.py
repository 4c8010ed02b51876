"""The folder of the local cache: private, whole files only, leases and locks that die with their process.

The folder belongs to the cache alone, but the cache touches only names of its own making::

    DIGEST.shard     a whole shard
    DIGEST.sparse    parts of a shard, see `storage.cache.sparse`
    DIGEST.lock      who fetches that shard holds the lock of this file
    tmp-RANDOM       a shard on its way, locked by its writer

A shard becomes visible by ``rename`` and is therefore whole or absent. It is not fsynced: after a power cut a file may
hold zeros, which the digests find, and the shard is fetched again; an fsync per shard would cost more than the fetch.
docs/cache.md has the whole picture.
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

from storage.cache.drive import Drive
from storage.errors import ConfigurationError

__all__ = ["CacheFolder", "CachedFile", "FileKind", "IncomingFile", "file_name_of"]

log = logging.getLogger(__name__)
T = TypeVar("T")

_MAX_LISTINGS = 10
_BLOCK_BYTES = 512  # st_blocks counts in these, whatever the file system's blocks are


class FileKind(Enum):
    """What a file of the folder is."""

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
        file_name: In the folder.
        name: The shard's digest, in hex; empty for an incoming file.
        kind: What it is.
        size: Its length in bytes, holes included.
        num_bytes: What it takes of the budget.
        last_used_s: When it was last wanted, in POSIX seconds.
    """

    file_name: str
    name: str
    kind: FileKind
    size: int
    num_bytes: int
    last_used_s: float


@dataclass(frozen=True, slots=True)
class IncomingFile:
    """A file that is being written: its temporary name, and a descriptor that its writer must close."""

    file_name: str
    fd: int


class CacheFolder:
    """A folder of files named by digests, shared by any number of processes.

    Args:
        root: Made with mode 0700 where it is missing, and again should it be deleted meanwhile.
        drive: The system calls.

    Raises:
        ConfigurationError: Others may write into the folder.
        PermissionError: It belongs to another user.
        OSError: It cannot be made or read.

    Thread-safety: All methods may be called from any thread. They block, for the drive only unless they say otherwise.
    """

    def __init__(self, root: str | os.PathLike[str], *, drive: Drive | None = None) -> None:
        self.root = Path(root).expanduser().absolute()
        self.drive = drive or Drive()
        self._guard = threading.Lock()
        self._folders = [self._open_root()]  # the last one counts; older ones were deleted under us

    def _open_root(self) -> int:
        self.drive.make_folder(self.root)
        fd = self.drive.open_folder(self.root)
        try:
            # Of what was opened, not of the path: that may lead elsewhere by now.
            status = self.drive.status(fd)
            if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ConfigurationError(
                    f"others may write into the cache folder; run: chmod go-w '{self.root}', or name one of your own",
                    got=oct(status.st_mode & 0o777),
                )
            if status.st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "the cache folder belongs to another user", str(self.root))
        except BaseException:
            self.drive.close(fd)
            raise
        return fd

    def close(self) -> None:
        """Lets go of the folder; nothing else may be called afterwards. Idempotent."""
        with self._guard:
            while self._folders:
                self.drive.close(self._folders.pop())

    def may_write(self) -> bool:
        """Whether files can be made in the folder now."""
        return self._in_folder(self.drive.may_write)

    # -- shards ----------------------------------------------------------------------------------------------------

    def open(self, name: str, *, size: int) -> int | None:
        """Opens a whole shard under a lease: while the descriptor is open, no process evicts it. The caller closes it.

        A file of another length was cut by something foreign, and is deleted.

        Returns:
            None when it is absent or on its way out.

        Raises:
            OSError: It cannot be opened, or something that is no file is in its place.
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
        """Opens a file so that it is not evicted while it is open; None if it is absent or being evicted."""
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
        """Notes that a file was wanted now; a drive that cannot be written to is read all the same."""
        try:
            self.drive.touch(fd)
        except OSError as error:
            log.info("cannot note the use of a cached file: %s", error)

    def begin(self, *, size: int) -> IncomingFile:
        """Starts a file of ``size`` bytes, all of them taken from the drive at once.

        The file is under its writer's lease from its first moment on, so that `sweep` can tell the dead ones; the same
        lease keeps the published file from eviction. A file that a sweep took between its creation and its lock is
        started again under another name.
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
        """Creates a file and leases it; None if a sweep was faster than the lease."""
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
        """Makes a file visible that is complete; its descriptor stays open, as a reader's lease."""
        file_name = file_name_of(name, FileKind.SHARD)
        self._in_folder(lambda folder: self.drive.rename(incoming.file_name, file_name, folder=folder))

    def abandon(self, incoming: IncomingFile, *, keep_open: bool = False) -> None:
        """Deletes a file that was begun; whoever has its descriptor reads on if ``keep_open``."""
        try:
            self.remove(incoming.file_name)
        except OSError as error:
            log.info("cannot delete %s: %s", incoming.file_name, error)  # `sweep` will, once its writer is gone
        finally:
            if not keep_open:
                self.drive.close(incoming.fd)

    # -- locks -----------------------------------------------------------------------------------------------------

    def lock_shard(self, name: str, *, wait: bool) -> int | None:
        """Takes the one lock of a shard, among threads and processes; it ends with the process at the latest.

        Args:
            name: The shard's digest.
            wait: Block until the lock is free (so call it from a thread), or return None when it is not.

        Returns:
            What `unlock_shard` needs. The lock's file is removed by its holder; whoever then gets the lock of a file
            that is no longer in the folder starts over.
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
        """Gives back what `lock_shard` returned."""
        try:
            self.remove(file_name_of(name, FileKind.LOCK))
        except OSError as error:
            log.info("cannot delete the lock of %s: %s", name, error)  # `sweep` will
        finally:
            self.drive.close(lock)

    def pulse(self, name: str) -> object:
        """Something that changes while the holder of a shard's lock makes progress (it touches the lock's file)."""
        file_name = file_name_of(name, FileKind.LOCK)
        try:
            status = self._in_folder(lambda folder: self.drive.status_of(file_name, folder=folder))
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns

    def lock_room(self, *, wait: bool) -> int | None:
        """Takes the lock of the whole folder, under which room is made; the caller closes the descriptor.

        The lock is on the folder itself: it needs no file, and ends with its process.
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
        """Lists the cache's files; others in the folder are not seen.

        Under the folder's lock nothing is added meanwhile. An incoming file may get its final name, though, so one that
        is gone when it is looked at makes the list start over.
        """
        for _ in range(_MAX_LISTINGS):
            found, complete = self._list()
            if complete:
                break
        return list(found.values())

    def _list(self) -> tuple[dict[int, CachedFile], bool]:
        """Returns the files by inode (one that is renamed meanwhile may be seen twice), and whether none was missed."""
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
        """Deletes a file unless any process has a lease on it or writes it; says whether it did.

        Of an incoming file or a lock this deletes what a dead process left.
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
        """Deletes a file whoever uses it; those who have it open read on."""
        self._in_folder(lambda folder: self.drive.remove(file_name, folder=folder))

    def sweep(self) -> int:
        """Deletes incoming files and locks whose processes are dead; returns how many."""
        left = (FileKind.INCOMING, FileKind.LOCK)
        return sum(self.evict(file) for file in self.files() if file.kind in left)

    def _check_regular(self, fd: int, file_name: str) -> None:
        if not stat.S_ISREG(self.drive.status(fd).st_mode):
            raise OSError(errno.EEXIST, "something that is no regular file is in the way", str(self.root / file_name))

    def _in_folder(self, call: Callable[[int], T]) -> T:
        """Makes a call on the open folder; if that was deleted meanwhile, on a new one in its place."""
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
                        # In the middle of the work there is nobody to refuse it to; it is gone round.
                        raise PermissionError(errno.EPERM, error.what, str(self.root)) from error
                folder = self._folders[-1]
            return call(folder)

    def _is_gone(self, folder: int) -> bool:
        try:
            return not os.path.samestat(self.drive.status(folder), self.root.stat())
        except FileNotFoundError:
            return True


def file_name_of(name: str, kind: FileKind) -> str:
    """Returns the name of a shard's file; nothing but a digest becomes one."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"cache names are hex digests, got {name!r}")
    return name + kind.value
