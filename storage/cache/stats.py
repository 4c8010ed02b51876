"""Counters of a cache: written while it works, read as a frozen snapshot."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

__all__ = ["CacheCounters", "CacheStats"]


@dataclass(frozen=True, slots=True)
class CacheStats:
    """A snapshot of a cache's counters.

    Attributes:
        num_hits: Shards found locally.
        num_misses: Shards fetched.
        num_evicted: Files deleted to make room.
        num_quarantined: Files deleted because their bytes were corrupt.
        num_bypassed: Shards kept in memory because the drive failed, or because other files were needed sooner.
        num_sparse_hits: Ranges of shards (single samples, indexes) and raw objects found locally.
        num_sparse_misses: Ranges of shards and raw objects fetched.

    Example:
        >>> from concurrent_loader.storage.cache import CacheStats
        >>> CacheStats(num_hits=3, num_misses=1).num_hits
        3
    """

    num_hits: int = 0
    num_misses: int = 0
    num_evicted: int = 0
    num_quarantined: int = 0
    num_bypassed: int = 0
    num_sparse_hits: int = 0
    num_sparse_misses: int = 0


class CacheCounters:
    """The counters while they change.

    Thread-safety: All methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stats = CacheStats()

    def add(self, **counts: int) -> None:
        """Adds to counters, by their names in `CacheStats`."""
        with self._lock:
            now = self._stats
            self._stats = replace(now, **{name: getattr(now, name) + count for name, count in counts.items()})

    def snapshot(self) -> CacheStats:
        """Returns the counters as they are now."""
        return self._stats
