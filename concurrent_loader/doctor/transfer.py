"""How fast the store is from here: the way there and back, and bytes a second with many requests in flight."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from concurrent_loader.doctor.finding import Finding, Level
from storage.errors import DeadlineExceeded, StorageError
from storage.fetch import FetchEngine, RetryPolicy
from storage.ranges import ByteRange
from storage.sizes import format_count, format_size
from storage.stores.protocol import ObjectMeta, Store

__all__ = ["Throughput", "judge_round_trip", "measure_round_trip", "measure_throughput", "probe_ranges"]

_NUM_ROUND_TRIPS = 9
_FAR_S = 0.1
_SLOW_BYTES_S = 50e6
_PIECE_BYTES = 8 << 20
_IN_FLIGHT = 32


@dataclass(frozen=True, slots=True)
class Throughput:
    """What many requests in flight brought.

    Attributes:
        num_bytes: In all.
        seconds: From the first request to the last byte.
        num_requests: Ranges of which something came.
    """

    num_bytes: int
    seconds: float
    num_requests: int

    @property
    def bytes_s(self) -> float:
        """Bytes a second."""
        return self.num_bytes / self.seconds if self.seconds > 0 else 0.0


async def measure_round_trip(
    store: Store, meta: ObjectMeta, *, deadline_s: float, clock: Callable[[], float] = time.monotonic
) -> Finding:
    """Gets one byte a few times, one after the other, and judges the median; connecting is not counted.

    Cancellation: At any await.
    """
    seconds = []
    try:
        async with asyncio.timeout(deadline_s):
            for number in range(_NUM_ROUND_TRIPS + 1):
                begun = clock()
                await store.get_range(meta.key, 0, 1)
                if number:  # the first one connects
                    seconds.append(clock() - begun)
    except (TimeoutError, StorageError) as error:
        if not seconds:
            what = error.what if isinstance(error, StorageError) else f"no answer within {deadline_s:.3g} s"
            return Finding("round trip", Level.FAIL, what, "see get")
    return judge_round_trip(seconds)


def judge_round_trip(seconds: Sequence[float]) -> Finding:
    """Judges single requests' times; the loader hides them by having many in flight, up to a point."""
    median_s = statistics.median(seconds)
    facts = {"median_s": round(median_s, 5), "max_s": round(max(seconds), 5), "num_requests": len(seconds)}
    said = f"{median_s * 1e3:.1f} ms to a byte (median of {len(seconds)})"
    if median_s > _FAR_S:
        return Finding("round trip", Level.WARN, said, "is the bucket in this machine's region?", facts)
    return Finding("round trip", Level.OK, said, facts=facts)


def probe_ranges(objects: Sequence[ObjectMeta], *, num_bytes: int) -> list[tuple[str, ByteRange]]:
    """Chooses what to fetch: ranges of up to 8 MiB, of the largest objects first, ``num_bytes`` in all at most."""
    chosen: list[tuple[str, ByteRange]] = []
    left = num_bytes
    for meta in sorted(objects, key=lambda meta: (-meta.size, meta.key)):
        for start in range(0, meta.size, _PIECE_BYTES):
            size = min(_PIECE_BYTES, meta.size - start, left)
            if size <= 0:
                return chosen
            chosen.append((meta.key, ByteRange(start, start + size)))
            left -= size
    return chosen


async def measure_throughput(
    store: Store,
    objects: Sequence[ObjectMeta],
    *,
    num_bytes: int,
    deadline_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Finding, Throughput | None]:
    """Fetches ranges as the loader does, 32 in flight at most, and says how many bytes a second came.

    Args:
        store: Where from.
        objects: What there is.
        num_bytes: To fetch at most.
        deadline_s: When to stop; what has come by then counts.
        clock: Monotonic seconds.

    Returns:
        The finding, and the figures unless nothing came.

    Cancellation: At any await; all requests end with it.
    """
    ranges = probe_ranges(objects, num_bytes=num_bytes)
    engine = FetchEngine(store, in_flight=_IN_FLIGHT, retry=RetryPolicy(deadline_s=deadline_s))
    received: dict[tuple[str, int], int] = {}  # by range: what has come of it, also if the rest is late
    failure: StorageError | None = None

    async def fetch(key: str, span: ByteRange) -> None:
        async def count(position: int, piece: memoryview) -> None:
            received[key, span.start] = position + len(piece) - span.start

        await engine.fetch_into(key, span.start, span.end, count)

    begun = clock()
    try:
        async with asyncio.timeout(deadline_s), asyncio.TaskGroup() as tasks:
            for key, span in ranges:
                tasks.create_task(fetch(key, span))
    except* TimeoutError:
        failure = DeadlineExceeded(f"nothing came within {deadline_s:.3g} s")
    except* StorageError as errors:
        failure = _first(errors)
    result = Throughput(sum(received.values()), clock() - begun, len(received))
    if failure is not None and not received:
        return Finding("throughput", Level.FAIL, failure.what, "see get and endpoint"), None
    return _judge(result), result


def _judge(result: Throughput) -> Finding:
    facts = {"bytes_s": round(result.bytes_s), "num_bytes": result.num_bytes, "num_requests": result.num_requests}
    ranges = format_count(result.num_requests, "range")
    said = f"{format_size(round(result.bytes_s))}/s: {format_size(result.num_bytes)} in {ranges}"
    # A few small objects say little about a store.
    if result.bytes_s < _SLOW_BYTES_S and result.num_bytes >= 2 * _PIECE_BYTES:
        advice = "is the bucket in this machine's region, and is there an S3 endpoint instead of a NAT gateway?"
        return Finding("throughput", Level.WARN, said, advice, facts)
    return Finding("throughput", Level.OK, said, facts=facts)


def _first(group: BaseExceptionGroup[StorageError]) -> StorageError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
