"""What the cache says about its folder: each cause once, as a warning; the work goes on without it."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

from storage.errors import CorruptData

__all__ = ["Complaints"]

log = logging.getLogger(__name__)


class Complaints:
    """Warns once for each cause.

    Args:
        root: The folder.

    Thread-safety: any thread; two that find the same cause at the same moment may both say it.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._said: set[object] = set()

    def of_drive(self, error: OSError) -> None:
        """The drive refuses something."""
        self._say(
            error.errno,
            "the cache folder %s cannot be used as it should (%s: %s); going on without it where need be",
            self._root, errno.errorcode.get(error.errno or 0, "?"), error,
        )  # fmt: skip

    def of_decay(self, error: CorruptData) -> None:
        """Bytes of a file are wrong, or cannot be read."""
        self._say("decay", "a file in the cache folder %s has decayed and is fetched again: %s", self._root, error)

    def of_hanging(self, what: str, patience_s: float) -> None:
        """Another process holds the lock of something and does not get on."""
        self._say(
            "hanging",
            "another process holds the lock of %s in the cache folder %s and has not got on for %g s; "
            "going on without it",
            what, self._root, patience_s,
        )  # fmt: skip

    def _say(self, cause: object, text: str, *arguments: object) -> None:
        known = cause in self._said
        self._said.add(cause)
        log.log(logging.INFO if known else logging.WARNING, text, *arguments)
