"""What the consumer waits for: where each batch has been on its way, and so what a wait for it was spent on.

While a batch is made its `Journey` notes the places where it is: waiting for a shard that is on its way, or in threads.
Once it is made that is its *trail*. A wait for a batch is divided by the trail: each moment counts for what held the
batch up at that moment, and what no place explains is ``"other"`` (planning, handing over to the consumer's thread).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["CAUSES", "Journey", "Span", "Trail", "Whereabouts", "always", "divide", "whereabouts"]

CAUSES = ("store", "disk", "decode", "transform", "collate", "device", "other")
_CAUSE_OF_STAGE = {"read": "disk", "decode": "decode", "transform": "transform", "collate": "collate"}
_DOING = {
    "read": "reading and verifying samples",
    "decode": "decoding",
    "transform": "in the transform",
    "collate": "putting a batch together",
}


@dataclass(frozen=True, slots=True)
class Span:
    """Some time of a batch's way.

    Attributes:
        start_s: When it began, by the monotonic clock.
        end_s: When it ended.
        shares: Cause → share of this time, together 1 at most; the rest is ``"other"``.
    """

    start_s: float
    end_s: float
    shares: Mapping[str, float]


Trail = tuple[Span, ...]  # in order of time, none over another


def always(cause: str) -> Trail:
    """The trail of a batch that was held up by one cause all the time."""
    return (Span(-math.inf, math.inf, {cause: 1.0}),)


def divide(trail: Trail, start_s: float, end_s: float) -> dict[str, float]:
    """Divides a wait from ``start_s`` to ``end_s`` for a batch with this trail into seconds for each of `CAUSES`.

    The seconds add up to the wait.
    """
    seconds = dict.fromkeys(CAUSES, 0.0)
    left = end_s - start_s
    for span in trail:
        common = min(span.end_s, end_s) - max(span.start_s, start_s)
        if common > 0:
            for cause, share in span.shares.items():
                seconds[cause] += common * share
                left -= common * share
    seconds["other"] += max(0.0, left)
    return seconds


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where the batch is that comes next.

    Attributes:
        cause: What holds it up, of `CAUSES`.
        what: The same as a sentence without a subject, for a person.
        for_s: How long it has been there.
        num_batches: How many batches are being made.
    """

    cause: str = "other"
    what: str = "is not being made yet"
    for_s: float = 0.0
    num_batches: int = 0


class Journey:
    """Notes where one batch is.

    Args:
        step: Its number in the epoch.
        clock: Monotonic seconds.

    Thread-safety: `waiting`, `in_threads` and `trail` are the loop's, `working` is any thread's; `whereabouts` reads it
    from any thread.
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
    def trail(self) -> Trail:
        """Where it has been so far."""
        return tuple(self._spans)

    @contextmanager
    def waiting(self, key: str, fetched: Callable[[], tuple[float, float | None] | None]) -> Iterator[None]:
        """Notes that the batch waits for a shard during the block.

        Args:
            key: Of the shard.
            fetched: Says when its fetch from the store began and ended (None: not yet); None if there was none.
        """
        self._since_s, self._shard = self._clock(), (key, fetched)
        try:
            yield
        finally:
            now_s = self._clock()
            begun, ended = _fetch_within(fetched(), self._since_s, now_s)
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
        """Notes that the batch is worked on by threads during the block, or waits for a free one.

        The threads of an iteration do the same to every batch. So this time counts for causes as the threads' seconds
        for this batch are distributed, those before a thread was free included: what it waited for was the same work.
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
        """Notes that the calling thread is at a stage during the block."""
        me, began = threading.get_ident(), self._clock()
        self._now[me] = (stage, began)
        try:
            yield
        finally:
            del self._now[me]
            self._done.append((stage, self._clock() - began))

    def held_up(self, busy: Sequence[tuple[str, float]]) -> tuple[str, str, float]:
        """Returns the cause, the sentence and since when; ``busy``: what threads do for all batches, and since when."""
        shard, mine = self._shard, list(self._now.values())
        if shard is not None:
            key, fetched = shard
            span = fetched()
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
        """What threads are doing for this batch at this moment, and since when."""
        return list(self._now.values())


def whereabouts(journeys: Iterable[Journey], now_s: float) -> Whereabouts:
    """Says where the first of the batches is that are being made.

    Args:
        journeys: Of the batches that are being made.
        now_s: Monotonic seconds.
    """
    under_way = list(journeys)
    if not under_way:
        return Whereabouts()
    busy = [work for journey in under_way for work in journey.busy()]
    first = min(under_way, key=lambda journey: journey.step)
    cause, what, since_s = first.held_up(busy)
    return Whereabouts(cause, what, max(0.0, now_s - since_s), len(under_way))


def _fetch_within(fetch: tuple[float, float | None] | None, start_s: float, end_s: float) -> tuple[float, float]:
    """Clips a fetch to a span of time; empty, at its start, if there was none."""
    if fetch is None:
        return start_s, start_s
    begun, ended = fetch
    return min(max(begun, start_s), end_s), min(max(end_s if ended is None else ended, start_s), end_s)


def _cause(stage: str) -> str:
    return _CAUSE_OF_STAGE.get(stage, "other")


def _threads(number: int) -> str:
    return "1 thread" if number == 1 else f"{number} threads"
