"""Files under construction: locked by their writer, and deleted by the next one if that was killed.

A file is written under a name of its own beside its final place and renamed when it is whole. A killed process leaves
it behind. The writer holds a lock (`flock`) on it, which ends with the process, so that whoever comes next can tell
what is abandoned from what is being written. Locks do not always cross machines that share a folder: a file that was
begun elsewhere, or before this machine was started, also has to be a day old.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
import time
from functools import cache
from pathlib import Path

__all__ = ["UNFINISHED", "create_unfinished", "sweep_unfinished"]

UNFINISHED = ".unfinished-"

_NAME = re.compile(r"\.unfinished-(?:([0-9a-f]{8})-|\d{1,7}-)[0-9a-f]{16}")  # the second: up to version 0.1, a pid
_ELSEWHERE_S = 24 * 3600.0


def create_unfinished(folder: Path, *, mode: int = 0o666) -> tuple[int, Path]:
    """Creates a file in a folder, and locks it until its descriptor is closed.

    Returns:
        The descriptor, and the path. Close the descriptor after the file was renamed or deleted.

    Raises:
        OSError: The file cannot be created.
    """
    while True:
        path = folder / f"{UNFINISHED}{_machine()}-{secrets.token_hex(8)}"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: there nobody deletes it before its day
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:
                return file, path
        except BaseException:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        os.close(file)  # swept away in the moment before it was locked


def sweep_unfinished(folder: Path) -> int:
    """Deletes the files of this user in a folder whose writers are gone; returns how many."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, match) for entry in entries if (match := _NAME.fullmatch(entry.name))]
    except OSError:
        return 0
    return sum(_remove_abandoned(folder / name, is_local=match[1] == _machine()) for name, match in found)


def _remove_abandoned(path: Path, *, is_local: bool) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False  # it has its final name by now, or is somebody else's
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
    """Eight hex digits of the kernel's boot: locks work among all its processes, containers included."""
    try:
        found = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    except OSError:
        found = ""
    return found if re.fullmatch(r"[0-9a-f]{8}", found) else secrets.token_hex(4)
