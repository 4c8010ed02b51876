"""A cache folder for the workers of one loader, where the data set has none: each shard is fetched once for all.

It lies in the system's folder for temporary files (`tempfile`; ``TMPDIR`` names another) and is deleted with the
workers: by the loader, or, where its process has been killed, by the workers, which see that and end. Should all of
them be killed at once, the next loader of the same user sweeps it away: whoever has a folder holds a lock in it, which
ends with its process.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path

__all__ = ["PrivateCache"]

log = logging.getLogger(__name__)

_PREFIX = "concurrent-loader-workers-"
_OWNER = "owner"
_YOUNG_S = 60.0  # younger ones may be about to get their lock


class PrivateCache:
    """The folder, made at once.

    Args:
        parent: Where it is made; the system's folder for temporary files by default.

    Raises:
        OSError: It cannot be made.
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
        """Deletes the folder; files in use are read on. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def _sweep(where: Path) -> None:
    """Deletes what dead loaders of this user left there."""
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
            pass  # its lock was deleted first, by somebody who was killed then
        except OSError:
            continue  # somebody's
        log.info("deleting %s, which a loader left that was killed", folder)
        shutil.rmtree(folder, ignore_errors=True)
