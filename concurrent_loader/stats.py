"""Where the time went: counters of one loader, as a snapshot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field

from concurrent_loader.waiting import CAUSES, Journey, Trail, divide
from storage.cache import CacheStats
from storage.fetch import FetchStats
from storage.forking import tell_after_fork

__all__ = ["LoaderStats", "StageClock", "WallTime"]


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What a loader has done since it was built.

    Wall time adds up: ``total_s = wait_s + device_s + consumer_s``; ``wait_s`` is the sum of the seven ``wait_…_s``.

    Attributes:
        num_batches: Delivered.
        num_samples: In them.
        num_skipped: Samples left out for broken pictures.
        num_replaced: Samples in whose place others stand, for the same reason.
        first_batch_s: From the start of the newest iteration to its first batch.
        total_s: Wall time that iterations have taken, between the first request for a batch and the end.
        wait_s: Part of it that the caller spent waiting for a batch.
        device_s: Part of it that handing batches over to the device took.
        consumer_s: Part of it that the caller spent between batches.
        wait_store_s: Part of ``wait_s`` while shards came from the store, waiting for a free request included.
        wait_disk_s: While shards were opened, read and verified on the local drive (without a cache: in memory).
        wait_decode_s: While threads decoded.
        wait_transform_s: While they were in the caller's transform.
        wait_collate_s: While they put batches together.
        wait_device_s: While the device stage copied the batch to the device and decoded it there, or was busy with the
            one before it.
        wait_other_s: The rest: planning, starting, handing over between threads, and the end of an epoch.
        read_s: Thread-seconds spent on reading and verifying samples.
        decode_s: Thread-seconds spent on decoding.
        transform_s: Thread-seconds spent in the caller's transform.
        collate_s: Thread-seconds spent on making batches of samples.
        fill_s: Seconds that the device stage spent on putting batches into page-locked memory.
        device_decode_s: Seconds that it spent on decoding pictures on the device.
        device_augment_s: Seconds that it spent on cropping and augmenting them, as far as the CPU waits for that.
        num_device_decoded: Pictures that the device decoded.
        num_cpu_decoded: Pictures of the same columns that CPU threads decoded, because the device could not.
        device_bytes: What was copied to the device, compressed pictures included.
        fetch: Requests and bytes of the data set's engine.
        cache: Hits and misses of its cache.
    """

    num_batches: int = 0
    num_samples: int = 0
    num_skipped: int = 0
    num_replaced: int = 0
    first_batch_s: float = 0.0
    total_s: float = 0.0
    wait_s: float = 0.0
    device_s: float = 0.0
    consumer_s: float = 0.0
    wait_store_s: float = 0.0
    wait_disk_s: float = 0.0
    wait_decode_s: float = 0.0
    wait_transform_s: float = 0.0
    wait_collate_s: float = 0.0
    wait_device_s: float = 0.0
    wait_other_s: float = 0.0
    read_s: float = 0.0
    decode_s: float = 0.0
    transform_s: float = 0.0
    collate_s: float = 0.0
    fill_s: float = 0.0
    device_decode_s: float = 0.0
    device_augment_s: float = 0.0
    num_device_decoded: int = 0
    num_cpu_decoded: int = 0
    device_bytes: int = 0
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
    """Adds up seconds by stage, from any thread.

    Args:
        now: Monotonic seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._serving = threading.local()
        tell_after_fork(self)

    def after_fork_in_child(self) -> None:
        """A decode thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    @contextmanager
    def serving(self, journey: Journey) -> Iterator[None]:
        """During the block, what the calling thread measures is noted for this batch, too."""
        self._serving.journey = journey
        try:
            yield
        finally:
            self._serving.journey = None

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Counts the time of the ``with`` block towards a stage."""
        journey: Journey | None = getattr(self._serving, "journey", None)
        began = self.now()
        try:
            with nullcontext() if journey is None else journey.working(stage):
                yield
        finally:
            self.add(stage, self.now() - began)

    def add(self, stage: str, seconds: float) -> None:
        """Counts some seconds towards a stage."""
        with self._lock:
            self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds

    def wall(self) -> dict[str, float]:
        """What a `WallTime` has counted so far, as `LoaderStats` names it."""
        with self._lock:
            names = ("total", "wait", "device", "consumer", *(f"wait_{cause}" for cause in CAUSES))
            return {f"{name}_s": self._seconds.get(name, 0.0) for name in names}

    def seconds(self) -> dict[str, float]:
        """All stages so far."""
        with self._lock:
            return dict(self._seconds)

    def __getitem__(self, stage: str) -> float:
        with self._lock:
            return self._seconds.get(stage, 0.0)


class WallTime:
    """Counts an iteration's wall time, without a gap: each moment belongs to what it is spent on.

    Args:
        clock: Where it is counted.

    Thread-safety: The consumer's thread only.
    """

    def __init__(self, clock: StageClock) -> None:
        self._clock = clock
        self._at_s = clock.now()

    def spend(self, on: str) -> tuple[float, float]:
        """Counts the time since the last call; returns from when to when it was."""
        start_s, self._at_s = self._at_s, self._clock.now()
        self._clock.add(on, self._at_s - start_s)
        self._clock.add("total", self._at_s - start_s)
        return start_s, self._at_s

    def spend_waiting(self, trail: Trail) -> None:
        """Counts it as a wait for a batch that has come this way."""
        for cause, seconds in divide(trail, *self.spend("wait")).items():
            self._clock.add(f"wait_{cause}", seconds)
