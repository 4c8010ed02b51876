"""Warnings about the cache's folder: each cause is logged once as a warning, and the work goes on without the cache."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

from concurrent_loader.storage.errors import CorruptData

__all__ = ["CacheWarnings"]

log = logging.getLogger(__name__)


class CacheWarnings:
    """Logs the first occurrence of each cause as a warning, and later ones at level INFO.

    Args:
        root: Folder of the cache.

    Thread-safety: All methods may be called from any thread. Two threads that meet the same cause at once may both log
    a warning.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._logged: set[object] = set()

    def drive_failed(self, error: OSError) -> None:
        """Logs a failed system call."""
        self._log(
            error.errno,
            "the cache folder %s failed (%s: %s); the affected shards are kept in memory instead",
            self._root, errno.errorcode.get(error.errno or 0, "?"), error,
        )  # fmt: skip

    def file_corrupt(self, error: CorruptData) -> None:
        """Logs a file whose bytes are wrong or unreadable."""
        self._log("corrupt", "a file in the cache folder %s is corrupt and is fetched again: %s", self._root, error)

    def lock_timed_out(self, what: str, timeout_s: float) -> None:
        """Logs a lock whose holder, another process, made no progress."""
        self._log(
            "lock",
            "another process holds the lock of %s in the cache folder %s and made no progress for %g s; "
            "continuing without the lock",
            what, self._root, timeout_s,
        )  # fmt: skip

    def _log(self, cause: object, text: str, *arguments: object) -> None:
        is_known = cause in self._logged
        self._logged.add(cause)
        log.log(logging.INFO if is_known else logging.WARNING, text, *arguments)
