"""What a loader has done until one moment, and since the moment before: the only thing that an observer receives."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from concurrent_loader.metrics.running import Place, iterations
from concurrent_loader.stats.loader_stats import LoaderStats
from concurrent_loader.stats.pipeline_status import PipelineStatus

__all__ = ["Snapshot", "take_snapshot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A loader's counters and fill levels.

    Attributes:
        name: Name of the loader, as given to `observe`.
        rank: Rank of the process.
        place: Epoch and step.
        time_s: Time of the snapshot in seconds since 1970.
        stats: Counters since the loader was built.
        before: Counters at the previous snapshot.
        interval_s: Seconds since the previous snapshot.
        pipeline: Fill levels now.

    Example:
        >>> from concurrent_loader import LoaderStats
        >>> from concurrent_loader.metrics.snapshot import Snapshot
        >>> Snapshot(name="train", stats=LoaderStats(num_samples=640), interval_s=2.0).samples_per_s
        320.0
    """

    name: str
    rank: int = 0
    place: Place = field(default_factory=Place)
    time_s: float = 0.0
    stats: LoaderStats = field(default_factory=LoaderStats)
    before: LoaderStats = field(default_factory=LoaderStats)
    interval_s: float = 0.0
    pipeline: PipelineStatus = field(default_factory=PipelineStatus)

    @property
    def samples_per_s(self) -> float:
        """Samples delivered per second since the previous snapshot."""
        return self._rate(self.stats.num_samples - self.before.num_samples)

    @property
    def batches_per_s(self) -> float:
        """Batches delivered per second since the previous snapshot."""
        return self._rate(self.stats.num_batches - self.before.num_batches)

    @property
    def fetched_bytes_per_s(self) -> float:
        """Bytes fetched from the store per second since the previous snapshot."""
        return self._rate(self.stats.fetch.num_bytes - self.before.fetch.num_bytes)

    @property
    def wait_share(self) -> float:
        """Share of the iterations' time since the previous snapshot in which the caller waited for data, 0 … 1."""
        total_s = self.stats.total_s - self.before.total_s
        return (self.stats.wait_s - self.before.wait_s) / total_s if total_s > 0 else 0.0

    def _rate(self, number: float) -> float:
        return max(0.0, number) / self.interval_s if self.interval_s > 0 else 0.0


def take_snapshot(loader: Any, name: str, *, before: Snapshot | None = None, place: Place | None = None) -> Snapshot:
    """Returns a snapshot of a loader.

    Args:
        loader: Native loader or drop-in.
        name: Name of the loader.
        before: Previous snapshot; None if this is the first.
        place: Position; None for that of the running iteration.
    """
    running, now_s = iterations.of(loader), time.time()
    if place is None:
        place = running.place() if running is not None else before.place if before is not None else Place()
    return Snapshot(
        name=name,
        rank=getattr(loader, "rank", 0),
        place=place,
        time_s=now_s,
        stats=loader.stats,
        before=LoaderStats() if before is None else before.stats,
        interval_s=0.0 if before is None else now_s - before.time_s,
        pipeline=PipelineStatus() if running is None else running.status(),
    )
