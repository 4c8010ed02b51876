"""Temporary cache folder for the workers of one loader whose dataset has no cache, so that each shard is fetched once.

The folder is among the system's temporary files (`tempfile`; ``TMPDIR`` names another place). It is deleted with the
workers: by the loader, or by the workers if the loader's process was killed. If all of them are killed at once, the
next loader of the same user deletes it. The owner of a folder holds a lock in it, which the kernel releases with the
process.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path

__all__ = ["TempCache"]

log = logging.getLogger(__name__)

_PREFIX = "concurrent-loader-workers-"
_OWNER = "owner"
_YOUNG_S = 60.0  # the lock of a younger folder may not be taken yet


class TempCache:
    """Creates a temporary cache folder and locks it.

    Args:
        parent: Folder to create it in; default the system's folder for temporary files.

    Attributes:
        path: Path of the folder.

    Raises:
        OSError: The folder cannot be created.
    """

    def __init__(self, parent: str | os.PathLike[str] | None = None) -> None:
        where = Path(parent if parent is not None else tempfile.gettempdir())
        _sweep(where)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=where))
        try:
            self._lock = os.open(self.path / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def remove(self) -> None:
        """Deletes the folder. Open files stay readable. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def _sweep(where: Path) -> None:
    """Deletes folders that dead loaders of this user left behind."""
    for folder in where.glob(f"{_PREFIX}*"):
        try:
            status = folder.lstat()
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _YOUNG_S:
                continue
            lock = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            finally:
                os.close(lock)
        except FileNotFoundError:
            pass  # a process was killed after it had deleted the lock
        except OSError:
            continue  # in use, or not ours
        log.info("deleting %s, left behind by a killed loader", folder)
        shutil.rmtree(folder, ignore_errors=True)
