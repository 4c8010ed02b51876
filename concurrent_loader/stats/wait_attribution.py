"""Attributes the consumer's waits to causes, from a record of where each batch spent its time.

A `BatchTrace` records what a batch waits for while it is being made: a shard that is being fetched, or work in threads.
The result is a sequence of time spans. A wait for the batch is divided along these spans: each moment counts for the
cause that held the batch up at that moment. Time that no span explains counts as ``"other"``: planning, and passing
the batch to the consumer's thread.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["CAUSES", "BatchStatus", "BatchTrace", "Span", "Spans", "attribute_wait", "batch_status", "spans_for"]

CAUSES = ("store", "disk", "decode", "transform", "collate", "device", "other")
_CAUSE_OF_STAGE = {"read": "disk", "decode": "decode", "transform": "transform", "collate": "collate"}
_DOING = {
    "read": "reading and verifying samples",
    "decode": "decoding",
    "transform": "in the transform",
    "collate": "collating a batch",
}


@dataclass(frozen=True, slots=True)
class Span:
    """A period in the making of a batch.

    Attributes:
        start_s: Start of the period, by the monotonic clock.
        end_s: End of the period.
        shares: Share of the period for each cause, 1 at most in total. The rest counts as ``"other"``.
    """

    start_s: float
    end_s: float
    shares: Mapping[str, float]


Spans = tuple[Span, ...]  # in order of time, without overlap


def spans_for(cause: str) -> Spans:
    """Returns the spans of a batch that one cause held up all the time."""
    return (Span(-math.inf, math.inf, {cause: 1.0}),)


def attribute_wait(spans: Spans, start_s: float, end_s: float) -> dict[str, float]:
    """Divides a wait for a batch among the causes.

    Args:
        spans: Spans of the batch.
        start_s: Start of the wait.
        end_s: End of the wait.

    Returns:
        Seconds for each of `CAUSES`; they add up to the wait.
    """
    seconds = dict.fromkeys(CAUSES, 0.0)
    left = end_s - start_s
    for span in spans:
        common = min(span.end_s, end_s) - max(span.start_s, start_s)
        if common > 0:
            for cause, share in span.shares.items():
                seconds[cause] += common * share
                left -= common * share
    seconds["other"] += max(0.0, left)
    return seconds


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """What the next batch is waiting for.

    Attributes:
        cause: Cause of the wait, one of `CAUSES`.
        what: The same for a person, as a clause without its subject.
        for_s: Seconds since the batch began to wait for this.
        num_batches: Number of batches that are being made.
    """

    cause: str = "other"
    what: str = "is not being made yet"
    for_s: float = 0.0
    num_batches: int = 0


class BatchTrace:
    """Records what one batch waits for while it is being made.

    Args:
        step: Number of the batch in its epoch.
        clock: Function that returns monotonic seconds.

    Thread-safety: `waiting`, `in_threads` and `spans` are for the event loop. `working`, `held_up` and `busy` may be
    called from any thread.
    """

    def __init__(self, step: int, clock: Callable[[], float]) -> None:
        self.step = step
        self._clock = clock
        self._spans: list[Span] = []
        self._since_s = clock()
        self._shard: tuple[str, Callable[[], tuple[float, float | None] | None]] | None = None
        self._in_threads = False
        self._done: list[tuple[str, float]] = []  # (stage, seconds) of threads; appending needs no lock
        self._now: dict[int, tuple[str, float]] = {}  # thread → (stage, since)

    @property
    def spans(self) -> Spans:
        """Spans recorded so far."""
        return tuple(self._spans)

    @contextmanager
    def waiting(self, key: str, fetch_times: Callable[[], tuple[float, float | None] | None]) -> Iterator[None]:
        """Records that the batch waits for a shard during the block.

        Args:
            key: Key of the shard.
            fetch_times: Function that returns the start and the end of the shard's fetch from the store. The end is
                None while the fetch is under way; the result is None if there was no fetch.
        """
        self._since_s, self._shard = self._clock(), (key, fetch_times)
        try:
            yield
        finally:
            now_s = self._clock()
            begun, ended = _fetch_within(fetch_times(), self._since_s, now_s)
            for start_s, end_s, cause in (
                (self._since_s, begun, "disk"),
                (begun, ended, "store"),
                (ended, now_s, "disk"),
            ):
                if end_s > start_s:
                    self._spans.append(Span(start_s, end_s, {cause: 1.0}))
            self._since_s, self._shard = now_s, None

    @contextmanager
    def in_threads(self) -> Iterator[None]:
        """Records that threads work on the batch during the block, or that it waits for a free thread.

        All threads of an iteration do the same kind of work for every batch. The block is therefore divided among the
        causes in proportion to the threads' seconds for this batch, its wait for a free thread included.
        """
        self._since_s, self._in_threads = self._clock(), True
        try:
            yield
        finally:
            now_s = self._clock()
            shares = dict.fromkeys(CAUSES, 0.0)
            total_s = sum(seconds for _, seconds in self._done)
            for stage, seconds in self._done:
                if total_s:
                    shares[_cause(stage)] += seconds / total_s
            self._spans.append(Span(self._since_s, now_s, shares))
            self._since_s, self._in_threads = now_s, False

    @contextmanager
    def working(self, stage: str) -> Iterator[None]:
        """Records that the calling thread works on a stage during the block."""
        me, began = threading.get_ident(), self._clock()
        self._now[me] = (stage, began)
        try:
            yield
        finally:
            del self._now[me]
            self._done.append((stage, self._clock() - began))

    def held_up(self, busy: Sequence[tuple[str, float]]) -> tuple[str, str, float]:
        """Returns what the batch is waiting for.

        Args:
            busy: Stage and start of all work under way in threads, for any batch.

        Returns:
            The cause, a clause for a person, and the start of the wait.
        """
        shard, mine = self._shard, list(self._now.values())
        if shard is not None:
            key, fetch_times = shard
            span = fetch_times()
            if span is not None and span[1] is None:
                return "store", f"waits for shard {key} from the store", max(span[0], self._since_s)
            return "disk", f"waits for shard {key} from the local drive", self._since_s
        if mine:
            stage, since_s = min(mine, key=lambda work: work[1])
            return _cause(stage), f"is {_DOING.get(stage, stage)}, with {_threads(len(mine))}", since_s
        if self._in_threads and busy:
            stage, _ = min(busy, key=lambda work: work[1])
            what = f"waits for a free thread; {_threads(len(busy))} busy, the longest {_DOING.get(stage, stage)}"
            return _cause(stage), what, self._since_s
        return "other", "waits for its turn", self._since_s

    def busy(self) -> list[tuple[str, float]]:
        """Returns the stage and the start of all work under way in threads for this batch."""
        return list(self._now.values())


def batch_status(traces: Iterable[BatchTrace], now_s: float) -> BatchStatus:
    """Returns what the earliest batch that is being made is waiting for.

    Args:
        traces: Traces of all batches that are being made.
        now_s: Current time in monotonic seconds.
    """
    under_way = list(traces)
    if not under_way:
        return BatchStatus()
    busy = [work for trace in under_way for work in trace.busy()]
    first = min(under_way, key=lambda trace: trace.step)
    cause, what, since_s = first.held_up(busy)
    return BatchStatus(cause, what, max(0.0, now_s - since_s), len(under_way))


def _fetch_within(fetch: tuple[float, float | None] | None, start_s: float, end_s: float) -> tuple[float, float]:
    """Clips a fetch to a period. Without a fetch, returns an empty one at the start of the period."""
    if fetch is None:
        return start_s, start_s
    begun, ended = fetch
    return min(max(begun, start_s), end_s), min(max(end_s if ended is None else ended, start_s), end_s)


def _cause(stage: str) -> str:
    return _CAUSE_OF_STAGE.get(stage, "other")


def _threads(number: int) -> str:
    return "1 thread" if number == 1 else f"{number} threads"
