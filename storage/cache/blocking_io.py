"""The system calls with which the cache uses the local drive, in one class.

Every failure of a real drive (full, broken, read-only, no descriptors left) appears in one of these methods. So tests
replace `Drive` by one that fails, or that is killed at its n-th call.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

__all__ = ["Drive", "cut_values", "in_thread"]

_logger = logging.getLogger(__name__)

_native: Any
try:  # built where there is a C compiler
    _native = import_module("concurrent_loader.storage.cache._reads")
except ImportError as _error:
    _native = None
    _logger.info("cached values are read one by one, because the native module cannot be loaded: %s", _error)

Indices = npt.NDArray[np.int64]

_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class Drive:
    """The real drive. Paths are names within an open folder. Symbolic links are never followed.

    Raises:
        OSError: Any method may raise it, as the system reports it.

    Thread-safety: All methods may be called from any thread.
    """

    def open_folder(self, path: str | os.PathLike[str]) -> int:
        """Opens a folder by its path. The last part may be a link; later checks apply to its target."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open_again(self, folder: int) -> int:
        """Opens an open folder again and returns a descriptor with its own lock."""
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)

    def may_write(self, folder: int) -> bool:
        """Returns whether files can be created in an open folder, by permissions and mount options."""
        return os.access(".", os.W_OK | os.X_OK, dir_fd=folder, effective_ids=True)

    def make_folder(self, path: Path) -> None:
        """Creates a folder with mode 0700, and its parents; an existing folder is not an error."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def names(self, folder: int) -> list[str]:
        """Lists the names in a folder; a deleted folder is empty."""
        return os.listdir(folder)

    def open(self, name: str, flags: int, *, folder: int) -> int:
        """Opens a file of the folder; never follows a link, and never waits for the other end of a pipe."""
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=folder)

    def status(self, fd: int) -> os.stat_result:
        """Returns the status of an open descriptor."""
        return os.fstat(fd)

    def status_of(self, name: str, *, folder: int) -> os.stat_result:
        """Returns the status of a name, without following a link."""
        return os.stat(name, dir_fd=folder, follow_symlinks=False)

    def allocate(self, fd: int, num_bytes: int) -> None:
        """Sets a file's length and allocates its blocks, so that a full drive fails before the transfer."""
        if num_bytes and hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(fd, 0, num_bytes)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
            else:
                return
        os.ftruncate(fd, num_bytes)

    def truncate(self, fd: int, num_bytes: int) -> None:
        """Sets a file's length; a file that grows gets a hole."""
        os.ftruncate(fd, num_bytes)

    def read(self, fd: int, num_bytes: int, offset: int) -> bytes:
        """Reads ``num_bytes`` at an offset; returns fewer only at the end of the file."""
        data = os.pread(fd, num_bytes, offset)
        if len(data) in (0, num_bytes):
            return data
        parts = [data]
        while part := os.pread(fd, num_bytes - len(data), offset + len(data)):
            parts.append(part)
            data = b"".join(parts)
            if len(data) == num_bytes:
                break
        return data

    def read_many(self, fds: Indices, starts: Indices, ends: Indices) -> list[bytes | None]:
        """Reads several ranges; None stands for one that cannot be read to its end, for which `read` says why.

        The native module does it with the GIL released once. A subclass with a `read` of its own reads with that.

        Args:
            fds: (n,) int64, descriptor of each range's file.
            starts: (n,) int64, first byte of each range.
            ends: (n,) int64, one past the last byte of each range.
        """
        if _native is not None and getattr(self.read, "__func__", None) is Drive.read:
            try:
                found: list[bytes | None] = _native.read_many(
                    np.ascontiguousarray(fds), np.ascontiguousarray(starts), np.ascontiguousarray(ends)
                )
            except MemoryError:
                return [None] * len(starts)
            return found
        places = zip(fds.tolist(), starts.tolist(), ends.tolist(), strict=True)
        return [self._read_or_none(*place) for place in places]

    def _read_or_none(self, fd: int, start: int, end: int) -> bytes | None:
        try:
            data = self.read(fd, end - start, start)
        except (OSError, MemoryError):
            return None
        return data if len(data) == end - start else None

    def write(self, fd: int, data: memoryview, offset: int) -> None:
        """Writes all bytes at an offset."""
        while data:
            written = os.pwrite(fd, data, offset)
            data, offset = data[written:], offset + written

    def append(self, fd: int, data: bytes) -> None:
        """Appends a few bytes in one call to a file opened with O_APPEND; the write may be partial."""
        os.write(fd, data)

    def touch(self, fd: int) -> None:
        """Sets a file's times to now."""
        os.utime(fd)

    def rename(self, name: str, new: str, *, folder: int) -> None:
        """Renames a file and replaces any file of the new name."""
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=folder)

    def remove(self, name: str, *, folder: int) -> None:
        """Deletes a file; a missing file is not an error."""
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return

    def lock(self, fd: int, *, shared: bool = False, wait: bool = False) -> bool:
        """Acquires the lock of an open file; returns False if it is held. Closing the descriptor releases the lock."""
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def close(self, fd: int) -> None:
        """Unlocks and closes a file. Closing alone is not enough: a forked child may hold a copy of the descriptor."""
        with suppress(OSError):  # the file system has no locks
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


T = TypeVar("T")


def cut_values(data: bytes | memoryview, starts: Indices, ends: Indices) -> list[bytes]:
    """Returns copies of the ranges [start, end) of some bytes.

    Args:
        data: Bytes.
        starts: (n,) int64.
        ends: (n,) int64.
    """
    if _native is not None:
        return cast("list[bytes]", _native.cut(data, starts, ends))
    return [bytes(data[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


async def in_thread(call: Callable[[], T], dispose: Callable[[T], object] = lambda result: None) -> T:
    """Runs a short blocking call on a thread of the event loop's executor.

    Args:
        call: Function to run.
        dispose: Function that releases the result if the caller was cancelled.

    Cancellation: The call itself cannot be stopped. The cancellation is raised only after the call has ended and its
    result is released, because a descriptor that a thread still writes to must be neither closed nor reused.
    """
    future = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            try:
                await asyncio.wait({future})
            except asyncio.CancelledError:
                continue  # the first cancellation is raised below
        if not future.cancelled() and future.exception() is None:
            dispose(future.result())
        raise
