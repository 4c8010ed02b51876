"""Files of the local cache: private folder, whole files only, locks that die with their process.

The folder belongs to the cache alone, but the cache deletes only names of its own making. A file becomes visible by
``rename`` and is therefore whole or absent. It is not fsynced: after a power cut a file may hold zeros, which the
digests find, and the shard is fetched again; an fsync per shard would cost more than the fetch.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage.errors import ConfigurationError

__all__ = ["CacheFolder", "CachedFile"]

_NAME = re.compile(r"[0-9a-f]{16,64}")
_SHARD = ".shard"
_LOCK = ".lock"
_TEMP = re.compile(r"tmp-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A whole file in the cache: its name (a hex digest), size in bytes, when it was last wanted (POSIX seconds)."""

    name: str
    size: int
    last_used_s: float


class CacheFolder:
    """A folder of whole files named by digests, shared by any number of processes.

    Args:
        root: Made with mode 0700 where it is missing.

    Raises:
        ConfigurationError: The folder belongs to somebody else, or others may write into it.
        OSError: It cannot be made or read.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).expanduser().absolute()
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self.root.stat()
        if status.st_uid != os.geteuid():
            raise ConfigurationError("the cache folder belongs to another user", got=str(self.root))
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigurationError(
                f"others may write into the cache folder; run: chmod go-w '{self.root}', or name a folder of your own",
                got=oct(status.st_mode & 0o777),
            )

    def open(self, name: str, *, size: int) -> int | None:
        """Opens a whole file for reading; None when it is absent or has another size. The caller closes it."""
        try:
            fd = os.open(self._path(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode) and status.st_size == size:
            os.utime(fd)
            return fd
        os.close(fd)
        return None

    @contextmanager
    def create(self, name: str, *, size: int) -> Iterator[int]:
        """Gives a descriptor to write ``size`` bytes to; the file appears under its name when the block ends well.

        The temporary file is locked for as long as its writer lives, so that `sweep` can tell the dead ones.
        """
        temp = self.root / f"tmp-{secrets.token_hex(8)}"
        fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield fd
            if os.fstat(fd).st_size != size:
                raise OSError(f"{temp} has {os.fstat(fd).st_size} bytes instead of {size}")
            temp.rename(self._path(name))
        except BaseException:
            temp.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    def remove(self, name: str) -> None:
        """Deletes a file; those who have it open read on."""
        self._path(name).unlink(missing_ok=True)

    def acquire_lock(self, name: str, *, wait: bool) -> int | None:
        """Takes the one lock of a name, among threads and processes; it ends with the process at the latest.

        Args:
            name: A file's name.
            wait: Block until the lock is free (so call it from a thread), or return None when it is not.

        Returns:
            What `release_lock` needs. The lock file is removed by its holder; whoever then gets the lock of a file
            that is no longer in the folder starts over.
        """
        path = self._lock_path(name)
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                if os.path.samestat(os.fstat(fd), path.stat(follow_symlinks=False)):
                    return fd
            except BlockingIOError:
                os.close(fd)
                return None
            except FileNotFoundError:
                pass  # its last holder removed it between our open and our lock
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def release_lock(self, name: str, lock: int) -> None:
        """Gives back what `acquire_lock` returned."""
        self._lock_path(name).unlink(missing_ok=True)
        os.close(lock)

    def files(self) -> list[CachedFile]:
        """Lists the whole files that are there."""
        found = []
        with os.scandir(self.root) as entries:
            for entry in entries:
                stem, dot, suffix = entry.name.partition(".")
                if dot + suffix != _SHARD or not _NAME.fullmatch(stem):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    found.append(CachedFile(stem, status.st_size, status.st_mtime))
        return found

    def sweep(self) -> int:
        """Deletes temporary files whose writers are dead; returns how many."""
        count = 0
        for path in self.root.iterdir():
            if not _TEMP.fullmatch(path.name):
                continue
            try:
                fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            else:
                path.unlink(missing_ok=True)
                count += 1
            finally:
                os.close(fd)
        return count

    def _lock_path(self, name: str) -> Path:
        return self._path(name).with_suffix(_LOCK)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ValueError(f"cache names are hex digests, got {name!r}")
        return self.root / (name + _SHARD)
