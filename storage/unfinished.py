"""Temporary files: locked by their writer, and deleted by a later process if the writer was killed.

A file is written under a temporary name in the target folder, and renamed when it is complete. A killed process leaves
it behind. The writer holds a lock (`flock`), which ends with the process and tells abandoned files from files in
progress. Locks do not always work across machines that share a folder. So a file of another machine, or from before
this machine was started, must also be a day old.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import time
from functools import cache
from pathlib import Path

__all__ = ["UNFINISHED", "create_unfinished", "sweep_unfinished", "sync_folder"]

UNFINISHED = ".unfinished-"

_NAME = re.compile(r"\.unfinished-(?:([0-9a-f]{8})-|\d{1,7}-)[0-9a-f]{16}")  # the second form: a pid, up to version 0.1
_ELSEWHERE_S = 24 * 3600.0


def create_unfinished(folder: Path, *, mode: int = 0o666) -> tuple[int, Path]:
    """Creates a file in a folder and locks it until its descriptor is closed.

    Returns:
        Descriptor, and path. Close the descriptor after the file was renamed or deleted.

    Raises:
        OSError: The file cannot be created.
    """
    while True:
        path = folder / f"{UNFINISHED}{_machine()}-{secrets.token_hex(8)}"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: others delete the file only after a day
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:
                return file, path
        except BaseException:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        os.close(file)  # another process deleted it before it was locked


def sweep_unfinished(folder: Path) -> int:
    """Deletes this user's abandoned files in a folder; returns the number of deleted files."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, match) for entry in entries if (match := _NAME.fullmatch(entry.name))]
    except OSError:
        return 0
    return sum(_remove_abandoned(folder / name, is_local=match[1] == _machine()) for name, match in found)


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder survive a power cut, if the file system can do that. A deleted folder is no error."""
    with contextlib.suppress(FileNotFoundError):
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(file)


def _remove_abandoned(path: Path, *, is_local: bool) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False  # it was renamed meanwhile, or belongs to another user
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return False
        if not is_local and time.time() - status.st_mtime < _ELSEWHERE_S:
            return False
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except OSError:
        return False  # it is being written
    finally:
        os.close(file)
    return True


@cache
def _machine() -> str:
    """Returns eight hex digits of the kernel's boot id, because locks work among all processes of one kernel."""
    try:
        found = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    except OSError:
        found = ""
    return found if re.fullmatch(r"[0-9a-f]{8}", found) else secrets.token_hex(4)
