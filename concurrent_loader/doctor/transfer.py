"""Measures the store from this machine: round-trip time, and throughput with many requests in flight."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from concurrent_loader.doctor.finding import Finding, Level
from concurrent_loader.storage.errors import DeadlineExceeded, StorageError
from concurrent_loader.storage.fetch import FetchEngine, RetryPolicy
from concurrent_loader.storage.ranges import ByteRange
from concurrent_loader.storage.sizes import format_count, format_size
from concurrent_loader.storage.stores.objects import ObjectMeta
from concurrent_loader.storage.stores.store import Store

__all__ = ["Throughput", "check_round_trip", "measure_round_trip", "measure_throughput", "probe_ranges"]

_NUM_ROUND_TRIPS = 9
_FAR_S = 0.1
_SLOW_BYTES_S = 50e6
_PIECE_BYTES = 8 << 20
_IN_FLIGHT = 32


@dataclass(frozen=True, slots=True)
class Throughput:
    """Stores the result of fetching with many requests in flight.

    Attributes:
        num_bytes: Bytes received.
        seconds: Time from the first request to the last byte in seconds.
        num_requests: Number of ranges that returned any bytes.
    """

    num_bytes: int
    seconds: float
    num_requests: int

    @property
    def bytes_s(self) -> float:
        """Bytes per second."""
        return self.num_bytes / self.seconds if self.seconds > 0 else 0.0


async def measure_round_trip(
    store: Store, meta: ObjectMeta, *, deadline_s: float, clock: Callable[[], float] = time.monotonic
) -> Finding:
    """Gets one byte several times in sequence and checks the median, without the time to connect.

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
            what = error.what if isinstance(error, StorageError) else f"no response within {deadline_s:.3g} s"
            return Finding("round trip", Level.FAIL, what, "see the advice for get")
    return check_round_trip(seconds)


def check_round_trip(seconds: Sequence[float]) -> Finding:
    """Checks the times of single requests, which the loader hides by keeping many in flight."""
    median_s = statistics.median(seconds)
    facts = {"median_s": round(median_s, 5), "max_s": round(max(seconds), 5), "num_requests": len(seconds)}
    message = f"{median_s * 1e3:.1f} ms to one byte (median of {len(seconds)})"
    if median_s > _FAR_S:
        return Finding(
            "round trip", Level.WARN, message, "check that the bucket is in the region of this machine", facts
        )
    return Finding("round trip", Level.OK, message, facts=facts)


def probe_ranges(objects: Sequence[ObjectMeta], *, num_bytes: int) -> list[tuple[str, ByteRange]]:
    """Chooses ranges to fetch: up to 8 MiB each, largest objects first, at most ``num_bytes`` in total."""
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
    """Fetches ranges as the loader does, at most 32 in flight, and measures bytes per second.

    Args:
        store: Store to fetch from.
        objects: Objects to choose from.
        num_bytes: Maximum number of bytes to fetch.
        deadline_s: Time limit in seconds; bytes received by then count.
        clock: Function that returns monotonic seconds.

    Returns:
        The finding, and the figures; None if no bytes were received.

    Cancellation: At any await; all requests are cancelled.
    """
    ranges = probe_ranges(objects, num_bytes=num_bytes)
    engine = FetchEngine(store, in_flight=_IN_FLIGHT, retry=RetryPolicy(deadline_s=deadline_s))
    received: dict[tuple[str, int], int] = {}  # range → bytes received, even if the rest is late
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
        failure = DeadlineExceeded(f"no bytes were received within {deadline_s:.3g} s")
    except* StorageError as errors:
        failure = _first(errors)
    result = Throughput(sum(received.values()), clock() - begun, len(received))
    if failure is not None and not received:
        return Finding("throughput", Level.FAIL, failure.what, "see the advice for get and endpoint"), None
    return _check_throughput(result, is_cut=failure is not None), result


def _check_throughput(result: Throughput, *, is_cut: bool) -> Finding:
    facts = {"bytes_s": round(result.bytes_s), "num_bytes": result.num_bytes, "num_requests": result.num_requests}
    ranges = format_count(result.num_requests, "range")
    message = f"{format_size(round(result.bytes_s))}/s: {format_size(result.num_bytes)} in {ranges}"
    # A few small objects are too little to measure a store, unless even they did not come in time.
    if result.bytes_s < _SLOW_BYTES_S and (is_cut or result.num_bytes >= 2 * _PIECE_BYTES):
        advice = "check that the bucket is in this machine's region, and use a gateway endpoint, not a NAT gateway"
        return Finding("throughput", Level.WARN, message, advice, facts)
    return Finding("throughput", Level.OK, message, facts=facts)


def _first(group: BaseExceptionGroup[StorageError]) -> StorageError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
