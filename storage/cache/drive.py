"""The system calls by which the cache touches the local drive, in one place: below the folder, above the kernel.

What fails on a real drive (full, broken, read-only, out of descriptors) fails in one of these methods, so a test puts a
`Drive` that fails, or that is killed at its n-th call, where the real one would be.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

__all__ = ["Drive"]

_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class Drive:
    """The real drive. Paths are names within an open folder; links are never followed.

    Raises:
        OSError: From every method, as the system has it.

    Thread-safety: All methods may be called from any thread.
    """

    def open_folder(self, path: str | os.PathLike[str]) -> int:
        """Opens a folder by its path; the last part may be a link, and what it leads to is what is checked."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open_again(self, folder: int) -> int:
        """Opens an open folder once more: a descriptor with a lock of its own."""
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)

    def may_write(self, folder: int) -> bool:
        """Whether files can be made in an open folder: by its permissions, on a file system that is not read-only."""
        return os.access(".", os.W_OK | os.X_OK, dir_fd=folder, effective_ids=True)

    def make_folder(self, path: Path) -> None:
        """Makes a folder that only its owner may enter, and those above it; one that is there is no error."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def names(self, folder: int) -> list[str]:
        """What is in a folder; nothing in one that was deleted."""
        return os.listdir(folder)

    def open(self, name: str, flags: int, *, folder: int) -> int:
        """Opens a file of the folder without following a link and without waiting for a pipe's other end."""
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=folder)

    def status(self, fd: int) -> os.stat_result:
        """What an open descriptor is."""
        return os.fstat(fd)

    def status_of(self, name: str, *, folder: int) -> os.stat_result:
        """What is under a name; a link is a link."""
        return os.stat(name, dir_fd=folder, follow_symlinks=False)

    def allocate(self, fd: int, num_bytes: int) -> None:
        """Makes a file this long and takes its blocks, so that a full drive says so before the transfer."""
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
        """Makes a file this long, with a hole where it grows."""
        os.ftruncate(fd, num_bytes)

    def read(self, fd: int, num_bytes: int, offset: int) -> bytes:
        """Reads up to so many bytes; fewer at the end of the file only."""
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

    def write(self, fd: int, data: memoryview, offset: int) -> None:
        """Writes all bytes at an offset."""
        while data:
            written = os.pwrite(fd, data, offset)
            data, offset = data[written:], offset + written

    def append(self, fd: int, data: bytes) -> None:
        """Writes a few bytes at the end of a file that was opened with O_APPEND, in one call; a part may be missing."""
        os.write(fd, data)

    def touch(self, fd: int) -> None:
        """Sets a file's times to now."""
        os.utime(fd)

    def rename(self, name: str, new: str, *, folder: int) -> None:
        """Gives a file another name, in place of what had it."""
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=folder)

    def remove(self, name: str, *, folder: int) -> None:
        """Deletes a file; that it is gone already is no error."""
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return

    def lock(self, fd: int, *, shared: bool = False, wait: bool = False) -> bool:
        """Takes the lock of an open file, which ends with the descriptor; False if another has it."""
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def close(self, fd: int) -> None:
        """Gives a file's lock back and closes it: a forked child has the descriptor, too, and would keep the lock."""
        with suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)
