"""Where the time went: counters of one loader, as a snapshot."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from time import perf_counter

from storage.cache import CacheStats
from storage.fetch import FetchStats
from storage.forking import tell_after_fork

__all__ = ["LoaderStats", "StageClock"]


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What a loader has done since it was built.

    Attributes:
        num_batches: Delivered.
        num_samples: In them.
        first_batch_s: From the start of the newest iteration to its first batch.
        total_s: Wall time that iterations have taken, between the first request for a batch and the end.
        wait_s: Part of it that the caller spent waiting for a batch.
        read_s: Thread-seconds spent on reading and verifying samples.
        decode_s: Thread-seconds spent on decoding.
        transform_s: Thread-seconds spent in the caller's transform.
        collate_s: Thread-seconds spent on making batches of samples.
        fetch: Requests and bytes of the data set's engine.
        cache: Hits and misses of its cache.
    """

    num_batches: int = 0
    num_samples: int = 0
    first_batch_s: float = 0.0
    total_s: float = 0.0
    wait_s: float = 0.0
    read_s: float = 0.0
    decode_s: float = 0.0
    transform_s: float = 0.0
    collate_s: float = 0.0
    fetch: FetchStats = field(default_factory=FetchStats)
    cache: CacheStats = field(default_factory=CacheStats)

    @property
    def wait_share(self) -> float:
        """Share of the wall time that the caller waited for data, 0 … 1."""
        return self.wait_s / self.total_s if self.total_s else 0.0

    def to_dict(self) -> dict[str, object]:
        """Plain numbers, for JSON."""
        return asdict(self)


class StageClock:
    """Adds up seconds by stage, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        tell_after_fork(self)

    def after_fork_in_child(self) -> None:
        """A decode thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Counts the time of the ``with`` block towards a stage."""
        began = perf_counter()
        try:
            yield
        finally:
            self.add(stage, perf_counter() - began)

    def add(self, stage: str, seconds: float) -> None:
        """Counts some seconds towards a stage."""
        with self._lock:
            self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds

    def seconds(self) -> dict[str, float]:
        """All stages so far."""
        with self._lock:
            return dict(self._seconds)

    def __getitem__(self, stage: str) -> float:
        with self._lock:
            return self._seconds.get(stage, 0.0)
