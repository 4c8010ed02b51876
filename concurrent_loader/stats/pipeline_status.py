"""How full the stages of a loader are at one moment: batches, prefetched bytes, threads, requests that take long."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, fields

from concurrent_loader.stats.wait_attribution import BatchStatus

__all__ = ["MAX_SLOW", "PipelineStatus", "SlowRequest", "sum_status"]

MAX_SLOW = 5


@dataclass(frozen=True, slots=True)
class SlowRequest:
    """A shard or object that is being fetched from the store.

    Attributes:
        key: Key of the object.
        for_s: Seconds since the fetch began; of a worker's fetch, at its newest report.
        worker: Number of the worker process; None for this process.
    """

    key: str
    for_s: float
    worker: int | None = None


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """Fill levels of one iteration's stages. All zero if no iteration is running.

    Attributes:
        num_ready: Number of finished batches that wait for the consumer.
        num_making: Number of batches that are being made.
        max_batches: Largest sum of the two.
        prefetched_bytes: Bytes of shards that were requested ahead of their first use.
        max_prefetched_bytes: Budget for these bytes.
        num_busy_threads: Number of decode threads at work.
        num_threads: Number of decode threads.
        num_on_device: Number of batches in the device stage.
        max_on_device: Largest number of batches there; 0 without a device stage.
        slow: Fetches under way that began first, five at most. Of workers, as they last reported.
        batch: What the next batch is waiting for. None with worker processes.

    Example:
        >>> from concurrent_loader.stats.pipeline_status import PipelineStatus
        >>> PipelineStatus(num_ready=3, max_batches=4).buffer_share
        0.75
    """

    num_ready: int = 0
    num_making: int = 0
    max_batches: int = 0
    prefetched_bytes: int = 0
    max_prefetched_bytes: int = 0
    num_busy_threads: int = 0
    num_threads: int = 0
    num_on_device: int = 0
    max_on_device: int = 0
    slow: tuple[SlowRequest, ...] = ()
    batch: BatchStatus | None = None

    @property
    def buffer_share(self) -> float:
        """Share of the room for batches that holds finished ones, 0 … 1."""
        return min(1.0, self.num_ready / self.max_batches) if self.max_batches else 0.0


def sum_status(each: Iterable[PipelineStatus]) -> PipelineStatus:
    """Returns the fill levels of several processes together, number by number, and the slowest of all fetches."""
    together = list(each)
    names = [field.name for field in fields(PipelineStatus) if field.name not in ("slow", "batch")]
    slow = heapq.nlargest(MAX_SLOW, (each for one in together for each in one.slow), key=lambda each: each.for_s)
    return PipelineStatus(**{name: sum(getattr(one, name) for one in together) for name in names}, slow=tuple(slow))
