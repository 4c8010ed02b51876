from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from uuid import uuid4

import pytest
import xxhash

from concurrent_loader.storage.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    DigestMismatch,
    NotFound,
    ObjectChanged,
    ProtocolViolation,
    StorageError,
    Throttled,
)
from concurrent_loader.storage.fetch.engine import FetchEngine
from concurrent_loader.storage.fetch.retry import RetryPolicy
from concurrent_loader.storage.stores.objects import GetResult, ObjectMeta
from concurrent_loader.storage.stores.store import Store

DATA = bytes(range(200))
DIGEST = xxhash.xxh3_64_intdigest(DATA[10:20])

Answer = Callable[[bytes], bytes] | StorageError | asyncio.Event


class Scripted(Store):
    """Answers each get by the next line of a script, then truthfully."""

    def __init__(self, *script: Answer) -> None:
        super().__init__(f"memory://{uuid4().hex}")  # an endpoint of its own
        self.script = list(script)
        self.num_now = self.num_most = 0

    async def _get(self, key: str, span: tuple[int, int] | None, if_match: str | None) -> GetResult:
        self.num_now += 1
        self.num_most = max(self.num_most, self.num_now)
        try:
            await asyncio.sleep(0)
            start, end = span or (0, len(DATA))
            data = DATA[start:end]
            if self.script:
                answer = self.script.pop(0)
                if isinstance(answer, StorageError):
                    raise answer
                if isinstance(answer, asyncio.Event):
                    await answer.wait()
                else:
                    data = answer(data)
            return GetResult(memoryview(data), ObjectMeta(key, len(DATA), "etag"))
        finally:
            self.num_now -= 1

    async def _put(self, key: str, data: memoryview, *, if_absent: bool) -> ObjectMeta:
        raise AssertionError

    async def _head(self, key: str) -> ObjectMeta:
        return ObjectMeta(key, len(DATA), "etag")

    def _list(self, prefix: str) -> AsyncIterator[ObjectMeta]:
        raise AssertionError

    async def _delete(self, key: str) -> None:
        raise AssertionError


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses_s: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        self.now_s += seconds


def engine_over(store: Store, *, in_flight: int = 4, policy: RetryPolicy | None = None) -> tuple[FetchEngine, Clock]:
    clock = Clock()
    engine = FetchEngine(
        store, in_flight=in_flight, retry=policy or RetryPolicy(), clock=clock, sleep=clock.sleep, rng=lambda: 0.5
    )
    return engine, clock


async def test_brings_a_range_and_counts_it() -> None:
    engine, _ = engine_over(Scripted())
    result = await engine.fetch("k", 10, 20, digest=DIGEST, object_size=200)
    assert bytes(result.data) == DATA[10:20]
    assert (engine.stats.num_gets, engine.stats.num_bytes, engine.stats.num_retries) == (1, 10, 0)


async def test_insists_on_transient_errors_with_growing_pauses() -> None:
    engine, clock = engine_over(Scripted(ConnectionFailed("reset"), Throttled("slow down"), ConnectionFailed("reset")))
    assert bytes((await engine.fetch("k", 10, 20)).data) == DATA[10:20]
    assert clock.pauses_s == [0.05, 0.2, 0.2]
    assert (engine.stats.num_gets, engine.stats.num_retries, engine.stats.num_throttled) == (4, 3, 1)


async def test_gives_up_with_the_last_error_and_says_what_and_how_often() -> None:
    store = Scripted(*(ConnectionFailed(f"reset {n}") for n in range(3)))
    engine, _ = engine_over(store, policy=RetryPolicy(max_attempts=3))
    with pytest.raises(ConnectionFailed, match="reset 2") as caught:
        await engine.fetch("k", 10, 20)
    error = caught.value
    assert (error.url, error.key, error.start, error.end, error.attempts) == (store.url, "k", 10, 20, 3)


async def test_does_not_insist_on_what_is_final() -> None:
    engine, clock = engine_over(Scripted(NotFound("no such key")))
    with pytest.raises(NotFound):
        await engine.fetch("k", 10, 20)
    assert clock.pauses_s == []


async def test_a_body_of_wrong_length_is_fetched_again() -> None:
    engine, _ = engine_over(Scripted(lambda data: data[:-1], lambda data: data + b"x"))
    assert bytes((await engine.fetch("k", 10, 20)).data) == DATA[10:20]
    assert engine.stats.num_retries == 2


async def test_wrong_bytes_are_fetched_once_more() -> None:
    engine, _ = engine_over(Scripted(lambda data: b"?" * len(data)))
    assert bytes((await engine.fetch("k", 10, 20, digest=DIGEST)).data) == DATA[10:20]
    assert engine.stats.num_refetched == 1


async def test_bytes_that_stay_wrong_are_an_error_that_names_them() -> None:
    engine, _ = engine_over(Scripted(lambda data: b"?" * len(data), lambda data: b"?" * len(data)))
    with pytest.raises(DigestMismatch) as caught:
        await engine.fetch("k", 10, 20, digest=DIGEST)
    assert (caught.value.key, caught.value.start, caught.value.end) == ("k", 10, 20)


async def test_an_object_of_another_size_is_a_changed_object() -> None:
    engine, _ = engine_over(Scripted())
    with pytest.raises(ObjectChanged):
        await engine.fetch("k", 10, 20, object_size=199)


async def test_an_attempt_that_hangs_is_cut_off_and_tried_again() -> None:
    # The deadline of an attempt runs on the event loop's clock: keep it short.
    engine, _ = engine_over(Scripted(asyncio.Event()), policy=RetryPolicy(first_byte_s=0.2, min_bytes_per_s=1e9))
    assert bytes((await engine.fetch("k", 10, 20)).data) == DATA[10:20]
    assert engine.stats.num_retries == 1


async def test_the_deadline_ends_a_range_whatever_attempts_are_left() -> None:
    store = Scripted(*(asyncio.Event() for _ in range(5)))
    engine, clock = engine_over(
        store,
        policy=RetryPolicy(
            max_attempts=100, first_byte_s=0.1, min_bytes_per_s=1e9, base_delay_s=10, max_delay_s=10, deadline_s=12
        ),
    )
    with pytest.raises(DeadlineExceeded) as caught:
        await engine.fetch("k", 10, 20)
    assert caught.value.attempts == 3
    assert clock.now_s < 12.1


async def test_no_more_requests_than_allowed_are_in_flight() -> None:
    store = Scripted()
    engine, _ = engine_over(store, in_flight=3)
    await asyncio.gather(*(engine.fetch("k", n, n + 1) for n in range(50)))
    assert store.num_most == 3
    assert engine.stats.in_flight == 0


async def test_a_pause_holds_no_place() -> None:
    store = Scripted(ConnectionFailed("reset"))
    asleep, wake = asyncio.Event(), asyncio.Event()

    async def sleep(_: float) -> None:
        asleep.set()
        await wake.wait()

    engine = FetchEngine(store, in_flight=1, sleep=sleep)
    failing = asyncio.create_task(engine.fetch("k", 0, 1))
    await asleep.wait()
    assert bytes((await engine.fetch("k", 1, 2)).data) == DATA[1:2]
    wake.set()
    assert bytes((await failing).data) == DATA[0:1]


async def test_cancelling_gives_the_place_back() -> None:
    store = Scripted(asyncio.Event())
    engine, _ = engine_over(store, in_flight=1)
    hanging = asyncio.create_task(engine.fetch("k", 0, 1))
    while store.script:
        await asyncio.sleep(0)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert bytes((await engine.fetch("k", 1, 2)).data) == DATA[1:2]
    assert (store.num_now, engine.stats.in_flight) == (0, 0)


# -- piece by piece ----------------------------------------------------------------------------------------------------


class Page:
    """Takes pieces, as a file would."""

    def __init__(self, *, fail: Exception | None = None) -> None:
        self.data = bytearray(len(DATA))
        self.fail = fail

    async def write(self, position: int, piece: memoryview) -> None:
        if self.fail is not None:
            raise self.fail
        self.data[position : position + len(piece)] = piece


async def test_hands_a_range_on_and_checks_it() -> None:
    engine, _ = engine_over(Scripted(ConnectionFailed("reset"), lambda data: data[:-1], lambda data: b"?" * len(data)))
    page = Page()
    meta = await engine.fetch_into("k", 10, 20, page.write, digest=DIGEST, object_size=200)
    assert page.data[10:20] == DATA[10:20]
    assert meta.size == 200
    assert (engine.stats.num_gets, engine.stats.num_retries, engine.stats.num_refetched) == (4, 2, 1)


async def test_no_byte_beyond_the_range_is_handed_on() -> None:
    engine, _ = engine_over(Scripted(lambda data: data + b"x"), policy=RetryPolicy(max_attempts=1))
    page = Page()
    with pytest.raises(ProtocolViolation):
        await engine.fetch_into("k", 10, 20, page.write)
    assert page.data == bytes(len(DATA))


async def test_bytes_that_stay_wrong_are_an_error_however_they_are_taken() -> None:
    engine, _ = engine_over(Scripted(lambda data: b"?" * len(data), lambda data: b"!" * len(data)))
    with pytest.raises(DigestMismatch):
        await engine.fetch_into("k", 10, 20, Page().write, digest=DIGEST)


@pytest.mark.parametrize("object_size", [199, 300])
async def test_a_replaced_object_is_noticed_however_it_is_taken(object_size: int) -> None:
    engine, _ = engine_over(Scripted())
    with pytest.raises(ObjectChanged):
        await engine.fetch_into("k", 10, 20, Page().write, object_size=object_size)


async def test_what_the_taker_raises_goes_through() -> None:
    engine, clock = engine_over(Scripted())
    with pytest.raises(OSError, match="No space"):
        await engine.fetch_into("k", 10, 20, Page(fail=OSError(28, "No space left")).write)
    assert clock.pauses_s == []
    assert engine.stats.in_flight == 0


def refused() -> ConnectionFailed:
    error = ConnectionFailed("cannot connect to http://127.0.0.1:9: connection refused")
    error.is_unreachable = True
    return error


async def test_an_address_where_nobody_listens_is_given_up_within_seconds_at_first_contact() -> None:
    engine, clock = engine_over(Scripted(*(refused() for _ in range(30))), policy=RetryPolicy(max_attempts=30))
    with pytest.raises(ConnectionFailed, match="cannot connect to http://127"):
        await engine.fetch("k", 0, 5)
    assert 2.0 <= clock.now_s <= 2.5
    assert len(clock.pauses_s) > 5


async def test_an_endpoint_that_has_answered_is_waited_for() -> None:
    store = Scripted()
    engine, clock = engine_over(store)
    await engine.fetch("k", 0, 5)
    store.script = [refused() for _ in range(8)]
    await engine.fetch("k", 0, 5)
    assert clock.now_s > 5


async def test_so_is_one_that_answered_in_another_process() -> None:
    clock = Clock()
    store = Scripted(*(refused() for _ in range(8)))
    engine = FetchEngine(store, is_known=True, clock=clock, sleep=clock.sleep, rng=lambda: 0.5)
    await engine.fetch("k", 0, 5)
    assert clock.now_s > 5


async def test_a_connection_that_breaks_at_first_contact_is_tried_as_long_as_any() -> None:
    engine, clock = engine_over(Scripted(*(ConnectionFailed("reset") for _ in range(8))))
    await engine.fetch("k", 0, 5)
    assert clock.now_s > 5
