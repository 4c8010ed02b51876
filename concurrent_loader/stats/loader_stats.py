"""Counts what a loader has delivered, and where its time went."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

from concurrent_loader.stats.trace import profiled
from concurrent_loader.stats.wait_attribution import CAUSES, BatchTrace, Spans, attribute_wait
from concurrent_loader.storage.cache import CacheStats
from concurrent_loader.storage.fetch import FetchStats
from concurrent_loader.storage.fork_safety import register_fork_handler
from concurrent_loader.storage.html_table import html_table
from concurrent_loader.storage.sizes import format_count, format_size
from concurrent_loader.storage.span_recorder import active

__all__ = ["WAIT_BOUNDS_S", "LoaderStats", "StageClock", "WallTime"]

WAIT_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds in seconds of the buckets of `LoaderStats.batch_waits`; the last bucket has no bound."""

_SHOWN_S = 0.005  # shorter times would be shown as zero
_TRACED_S = 2e-6  # a trace leaves shorter times of the consumer out


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """Snapshot of a loader's counters since it was built.

    Wall time adds up: ``total_s = wait_s + device_s + consumer_s``, and ``wait_s`` is the sum of the seven
    ``wait_…_s``. docs/how-to/waiting.md explains how to read them.

    Attributes:
        num_batches: Number of batches delivered.
        num_samples: Number of samples in these batches; of packed documents, the number of pieces.
        num_skipped: Number of samples skipped because an image failed to decode.
        num_replaced: Number of samples replaced by another one because an image failed to decode.
        first_batch_s: Seconds from the start of the newest iteration to its first batch.
        total_s: Wall time of all iterations in seconds, from the first request for a batch to the end.
        wait_s: Part of ``total_s`` in which the caller waited for a batch.
        device_s: Part of ``total_s`` for passing batches to the device.
        consumer_s: Part of ``total_s`` that the caller spent between batches.
        wait_store_s: Part of ``wait_s`` in which shards were fetched from the store, or waited for a free request.
        wait_disk_s: Part of ``wait_s`` in which shards were opened, read and verified on the local drive, or in memory
            without a cache.
        wait_decode_s: Part of ``wait_s`` in which threads decoded images.
        wait_transform_s: Part of ``wait_s`` in which threads ran the caller's transform.
        wait_collate_s: Part of ``wait_s`` in which threads collated batches.
        wait_device_s: Part of ``wait_s`` in which the device stage copied and decoded this batch or the one before it.
        wait_other_s: Rest of ``wait_s``: planning, starting, passing batches between threads, and the end of an epoch.
        read_s: Thread-seconds for reading and verifying samples.
        decode_s: Thread-seconds for decoding.
        transform_s: Thread-seconds in the caller's transform.
        collate_s: Thread-seconds for collating batches.
        fill_s: Seconds in which the device stage copied batches into page-locked memory.
        device_decode_s: Seconds in which the device stage decoded images on the device.
        device_augment_s: Seconds in which the CPU waited for cropping and augmenting on the device.
        num_device_decoded: Number of images decoded by the device.
        num_cpu_decoded: Number of images of the same columns that the device could not decode, and CPU threads did.
        device_bytes: Bytes copied to the device, encoded images included.
        num_tokens: Number of tokens in the rows of `Packed` made so far, without padding.
        num_padding_tokens: Number of padding tokens in these rows.
        batch_waits: (16,) number of batches by the caller's wait for them; bucket i holds waits of up to
            ``WAIT_BOUNDS_S[i]`` seconds, the last one all longer waits. Empty before the first batch.
        fetch: Counters of the dataset's requests.
        cache: Counters of the dataset's cache.

    Example:
        >>> from concurrent_loader import ConcurrentDataLoader, ShardDataset
        >>> with ShardDataset("photos") as dataset:
        ...     loader = ConcurrentDataLoader(dataset, batch_size=4)
        ...     num_batches = len(list(loader))
        ...     stats = loader.stats
        >>> stats.num_batches, stats.num_samples, stats.fetch.num_retries
        (5, 20, 0)
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
    num_tokens: int = 0
    num_padding_tokens: int = 0
    batch_waits: tuple[int, ...] = ()
    fetch: FetchStats = field(default_factory=FetchStats)
    cache: CacheStats = field(default_factory=CacheStats)

    @property
    def wait_share(self) -> float:
        """Share of the wall time in which the caller waited for data, 0 … 1."""
        return self.wait_s / self.total_s if self.total_s else 0.0

    @property
    def padding_share(self) -> float:
        """Share of padding in the rows of `Packed`, 0 … 1."""
        return self.num_padding_tokens / max(1, self.num_tokens + self.num_padding_tokens)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of wall time, without padding."""
        return self.num_tokens / self.total_s if self.total_s else 0.0

    @property
    def samples_per_s(self) -> float:
        """Samples per second of wall time."""
        return self.num_samples / self.total_s if self.total_s else 0.0

    @property
    def fetched_bytes_per_s(self) -> float:
        """Bytes fetched from the store per second of wall time."""
        return self.fetch.num_bytes / self.total_s if self.total_s else 0.0

    def batch_wait_s(self, share: float) -> float:
        """Returns an upper bound in seconds of the wait for a share (0 to 1) of the batches; infinite above 60 s."""
        left = share * sum(self.batch_waits)
        for bound_s, number in zip((*WAIT_BOUNDS_S, float("inf")), self.batch_waits, strict=False):
            left -= number
            if left <= 0:
                return bound_s
        return 0.0

    def to_dict(self) -> dict[str, object]:
        """Returns the counters as plain numbers, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """Returns a table: what was delivered, where the time went, and what was fetched."""
        rows = self._rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)

    def _repr_html_(self) -> str:
        """Shows the same table in a notebook."""
        return html_table("LoaderStats", self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        waits = {cause: getattr(self, f"wait_{cause}_s") for cause in CAUSES}
        parts = {"consumer": self.consumer_s, "device": self.device_s}
        parts |= {f"wait for {cause}": seconds for cause, seconds in waits.items()}
        median_s, tail_s = self.batch_wait_s(0.5), self.batch_wait_s(0.95)
        return [
            ("delivered", f"{format_count(self.num_batches, 'batch', 'batches')}, {self.num_samples:,} samples"),
            ("rates", f"{self.samples_per_s:,.0f} samples/s, {format_size(self.fetched_bytes_per_s)}/s fetched"),
            ("skipped or replaced", f"{self.num_skipped + self.num_replaced:,} samples"),
            ("wall time", f"{self.total_s:.2f} s, of which waiting {self.wait_share:.1%}"),
            *((name, f"{seconds:.2f} s") for name, seconds in parts.items() if seconds >= _SHOWN_S),
            *(
                [("tokens", f"{self.num_tokens:,}, {self.tokens_per_s:,.0f}/s, {self.padding_share:.1%} padding")]
                if self.num_tokens
                else []
            ),
            ("first batch", f"{self.first_batch_s:.2f} s"),
            ("wait for a batch", f"median at most {median_s:g} s, 95 % at most {tail_s:g} s"),
            ("fetched", f"{format_size(self.fetch.num_bytes)} in {self.fetch.num_gets:,} GETs"),
            ("retries", f"{self.fetch.num_retries:,}"),
            ("cache", f"{self.cache.num_hits:,} hits, {self.cache.num_misses:,} misses"),
        ]


_STAGES = ("read", "decode", "transform", "collate", "fill", "device decode", "device augment")
_COUNTERS = {
    "num_device_decoded": "images decoded by the device",
    "num_cpu_decoded": "images decoded by the CPU",
    "device_bytes": "device bytes",
    "num_tokens": "tokens",
    "num_padding_tokens": "padding tokens",
}


class StageClock:
    """Adds up seconds for each stage, from any thread.

    Args:
        now: Function that returns monotonic seconds, `time.monotonic` by default.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._batch_waits = [0] * (len(WAIT_BOUNDS_S) + 1)
        self._serving = threading.local()
        register_fork_handler(self)

    def after_fork_in_child(self) -> None:
        """Replaces the lock, which a decode thread of the parent may have held."""
        self._lock = threading.Lock()

    @contextmanager
    def serving(self, trace: BatchTrace) -> Iterator[None]:
        """Adds what the calling thread measures during the block to a batch's trace, too, and its processor time."""
        self._serving.trace = trace
        began_s = time.thread_time()
        try:
            yield
        finally:
            self._serving.trace = None
            self.add("thread_cpu", time.thread_time() - began_s)

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Adds the duration of the ``with`` block to a stage."""
        trace: BatchTrace | None = getattr(self._serving, "trace", None)
        began = self.now()
        try:
            with nullcontext() if trace is None else trace.working(stage), profiled(stage):
                yield
        finally:
            ended = self.now()
            self.add(stage, ended - began)
            if (recorder := active()) is not None:
                recorder.add("thread", stage, began, ended, **({} if trace is None else {"step": trace.step}))

    def add(self, stage: str, seconds: float) -> None:
        """Adds seconds to a stage."""
        with self._lock:
            self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds

    def add_batch(self, waited_s: float) -> None:
        """Counts a batch by the wait for it. For the consumer's thread only."""
        self._batch_waits[bisect_left(WAIT_BOUNDS_S, waited_s)] += 1

    @property
    def batch_waits(self) -> tuple[int, ...]:
        """Value of `LoaderStats.batch_waits`."""
        return tuple(self._batch_waits)

    def wall(self) -> dict[str, Any]:
        """Returns the wall time counted by `WallTime`, under the names of `LoaderStats`."""
        with self._lock:
            names = ("total", "wait", "device", "consumer", *(f"wait_{cause}" for cause in CAUSES))
            return {f"{name}_s": self._seconds.get(name, 0.0) for name in names}

    def stages(self) -> dict[str, Any]:
        """Returns the time of each stage, and the counters of device and tokens, under the names of `LoaderStats`."""
        with self._lock:
            seconds = {f"{name.replace(' ', '_')}_s": self._seconds.get(name, 0.0) for name in _STAGES}
            return seconds | {field: int(self._seconds.get(name, 0)) for field, name in _COUNTERS.items()}

    def stats(self, **counts: Any) -> LoaderStats:
        """Returns the counters of a loader: what this clock has measured, and the given fields of `LoaderStats`."""
        return LoaderStats(**self.wall(), **self.stages(), batch_waits=self.batch_waits, **counts)

    def seconds(self) -> dict[str, float]:
        """Returns the seconds of all stages."""
        with self._lock:
            return dict(self._seconds)

    def __getitem__(self, stage: str) -> float:
        with self._lock:
            return self._seconds.get(stage, 0.0)


class WallTime:
    """Counts an iteration's wall time without gaps: each moment belongs to one category.

    Args:
        clock: Clock to add the time to.

    Thread-safety: For the consumer's thread only, except `pending`.
    """

    def __init__(self, clock: StageClock) -> None:
        self._clock = clock
        self._counted_until_s = clock.now()
        self._counted = "consumer"

    def count(self, category: str) -> tuple[float, float]:
        """Adds the time since the last call to a category, and returns its start and end."""
        start_s, end_s = self._counted_until_s, self._clock.now()
        self._counted_until_s, self._counted = end_s, category
        self._clock.add(category, end_s - start_s)
        self._clock.add("total", end_s - start_s)
        if end_s - start_s > _TRACED_S and (recorder := active()) is not None:
            recorder.add("consumer", category, start_s, end_s)
        return start_s, end_s

    def count_wait(self, spans: Spans) -> float:
        """Adds the time since the last call to the causes of a wait for a batch with these spans, and returns it."""
        start_s, end_s = self.count("wait")
        for cause, seconds in attribute_wait(spans, start_s, end_s).items():
            self._clock.add(f"wait_{cause}", seconds)
        return end_s - start_s

    def count_batch(self, waited_s: float) -> None:
        """Counts a batch by the wait for it."""
        self._clock.add_batch(waited_s)

    @property
    def pending(self) -> tuple[str, float]:
        """Category of the present moment, and the seconds of it that are not counted yet. For any thread."""
        return _NEXT.get(self._counted, "wait"), max(0.0, self._clock.now() - self._counted_until_s)


_NEXT = {"wait": "device", "device": "consumer", "consumer": "wait"}
