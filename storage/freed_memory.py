"""Makes glibc keep the memory of large blocks that are freed, for the next ones."""

from __future__ import annotations

import numpy as np

__all__ = ["keep_freed_memory"]

_LARGEST_BYTES = 31 << 20  # just below glibc's limit for a dynamic threshold: 32 MiB, its own header included
_is_set = False


def keep_freed_memory() -> None:
    """Makes glibc keep freed memory for reuse, up to a limit. Takes no memory. Called before large blocks come and go.

    Freeing one large block raises glibc's threshold, below which memory is not returned to the system at once.
    """
    global _is_set
    if not _is_set:
        _is_set = True
        np.empty(_LARGEST_BYTES, np.uint8)  # freed at once, and never touched
