"""Bodies that break off: what comes again, what does not, and over which connection."""

from __future__ import annotations

import asyncio
import pickle
import resource
import secrets
import traceback
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.errors import (
    AccessDenied,
    ConnectionFailed,
    DeadlineExceeded,
    DigestMismatch,
    InvalidRange,
    NotFound,
    ObjectChanged,
    ServerError,
    StorageError,
    Throttled,
    TruncatedBody,
)
from concurrent_loader.storage.fetch import FetchEngine, RetryPolicy
from concurrent_loader.storage.redaction import remember
from concurrent_loader.storage.stores.backends.memory import MemoryStore
from concurrent_loader.storage.stores.objects import GetResult, ObjectMeta
from concurrent_loader.storage.testing.checks.secret_leaks import Canary
from concurrent_loader.storage.testing.faults.fault_store import (
    Call,
    ChangeEtag,
    Cut,
    Fail,
    Fault,
    FaultStore,
    FlipBit,
    Script,
    Stall,
    Truncate,
    Wait,
    in_order,
)
from concurrent_loader.storage.virtual_time import run_in_virtual_time

SIZE = 3 << 20
DATA = bytes(range(256)) * (SIZE // 256)
START, END = 1000, SIZE - 1000
DIGEST = xxhash.xxh3_64_intdigest(DATA[START:END])
QUICK = RetryPolicy(base_delay_s=1e-6, max_delay_s=1e-5)


async def a_store(script: Script, *, piece_bytes: int = 1 << 20) -> FaultStore:
    inner = MemoryStore(f"memory://{secrets.token_hex(8)}")
    await inner.put("k", DATA)
    return FaultStore(inner, script, piece_bytes=piece_bytes)


class Taken:
    """Takes pieces in order and each position once, or complains; a digest mismatch may send it back to the start."""

    def __init__(self, start: int = START) -> None:
        self.start = start
        self.data = bytearray()
        self.num_restarts = 0

    async def write(self, position: int, piece: memoryview) -> None:
        if position == self.start and self.data:
            self.num_restarts += 1
            self.data.clear()
        assert position == self.start + len(self.data)
        self.data += piece


def spans(store: FaultStore) -> list[tuple[int | None, int | None]]:
    return [(call.start, call.end) for call in store.calls]


@pytest.mark.parametrize("error", [TruncatedBody, ConnectionFailed])
async def test_a_body_that_is_cut_goes_on_where_it_ended(error: type[StorageError]) -> None:
    store = await a_store(in_order([Cut(2_000_000, error), Cut(500_000, error)]))
    engine = FetchEngine(store, retry=QUICK)
    taken = Taken()
    await engine.fetch_into("k", START, END, taken.write, digest=DIGEST, object_size=SIZE)
    assert taken.data == DATA[START:END]
    assert spans(store) == [(START, END), (START + 2_000_000, END), (START + 2_500_000, END)]
    stats = engine.stats
    assert (stats.num_gets, stats.num_retries, stats.num_resumed, stats.num_refetched) == (3, 2, 2, 0)
    assert (stats.num_bytes, stats.wasted_bytes) == (END - START, 0)


async def test_a_large_range_in_memory_goes_on_too() -> None:
    store = await a_store(in_order([Cut(2_000_000)]))
    result = await FetchEngine(store, retry=QUICK).fetch("k", START, END, digest=DIGEST)
    assert result.data == DATA[START:END]
    assert spans(store)[1] == (START + 2_000_000, END)


async def test_a_whole_object_goes_on_too() -> None:
    store = await a_store(in_order([Cut(2_000_000), None]))
    assert (await FetchEngine(store, retry=QUICK).fetch_object("k")).data == DATA
    assert spans(store) == [(None, None), (2_000_000, SIZE)]


async def test_a_small_range_comes_again_as_a_stream_that_keeps_what_it_gets() -> None:
    store = await a_store(in_order([Cut(10), *[Cut(30_000)] * 3]))
    taken = Taken()
    await FetchEngine(store, retry=QUICK).fetch_into("k", START, START + 100_000, taken.write)
    assert taken.data == DATA[START : START + 100_000]
    assert [start for start, _ in spans(store)] == [START, START, START + 30_000, START + 60_000, START + 90_000]


async def test_a_body_that_ends_early_goes_on() -> None:
    store = await a_store(in_order([Truncate(-1_000_000)]))
    taken = Taken()
    await FetchEngine(store, retry=QUICK).fetch_into("k", START, END, taken.write, digest=DIGEST)
    assert taken.data == DATA[START:END]
    assert spans(store)[1] == (END - 1_000_000, END)


def test_a_body_that_stalls_goes_on() -> None:
    async def main() -> None:
        store = await a_store(in_order([Stall(1_500_000, asyncio.Event().wait)]))
        policy = RetryPolicy(base_delay_s=1e-6, stall_window_s=0.02, min_bytes_per_s=1e9)
        engine = FetchEngine(store, retry=policy, clock=asyncio.get_running_loop().time)
        taken = Taken()
        await engine.fetch_into("k", START, END, taken.write, digest=DIGEST)
        assert taken.data == DATA[START:END]
        assert spans(store)[1] == (START + 1_500_000, END)

    run_in_virtual_time(main())


def test_a_slow_taker_is_no_stall() -> None:
    async def main() -> bytearray:
        store = await a_store(in_order([]), piece_bytes=1 << 19)
        policy = RetryPolicy(max_attempts=1, stall_window_s=0.05, min_bytes_per_s=1e9)
        taken = Taken()

        async def write(position: int, piece: memoryview) -> None:
            await asyncio.sleep(60)
            await taken.write(position, piece)

        engine = FetchEngine(store, retry=policy, clock=asyncio.get_running_loop().time)
        await engine.fetch_into("k", START, END, write)
        return taken.data

    assert run_in_virtual_time(main()) == DATA[START:END]


async def test_progress_makes_patience_new() -> None:
    # Twenty cuts, but never two in a row without a byte between them.
    store = await a_store(in_order([*[Cut(100_000), Fail(ConnectionFailed)] * 20]), piece_bytes=50_000)
    engine = FetchEngine(store, retry=RetryPolicy(max_attempts=3, base_delay_s=1e-6, max_delay_s=1e-5))
    taken = Taken()
    await engine.fetch_into("k", START, END, taken.write, digest=DIGEST)
    assert taken.data == DATA[START:END]


async def test_without_progress_patience_ends_and_the_error_says_where() -> None:
    store = await a_store(in_order([Cut(100_000), *[Cut(0)] * 9]))
    with pytest.raises(TruncatedBody) as caught:
        await FetchEngine(store, retry=RetryPolicy(max_attempts=3, base_delay_s=1e-6)).fetch_into(
            "k", START, END, Taken().write
        )
    error = caught.value
    assert (error.url, error.key, error.attempts) == (store.url, "k", 4)
    assert (error.start, error.end) is not None


def test_a_suspect_connection_is_not_used_again_but_an_answering_store_is() -> None:
    async def main() -> None:
        never = asyncio.Event()
        store = await a_store(
            in_order([Cut(0), Fail(Throttled), Fail(ServerError), Wait(never.wait), Fail(ConnectionFailed), None])
        )
        policy = RetryPolicy(base_delay_s=1e-6, first_byte_s=0.2, min_bytes_per_s=1e9)
        await FetchEngine(store, retry=policy, clock=asyncio.get_running_loop().time).fetch("k", START, END)
        assert [call.fresh for call in store.calls] == [False, True, False, False, True, True]

    run_in_virtual_time(main())


async def test_wrong_bytes_come_again_from_the_start_over_a_new_connection() -> None:
    store = await a_store(in_order([Cut(1_000_000), FlipBit(77)]))
    engine = FetchEngine(store, retry=QUICK)
    taken = Taken()
    await engine.fetch_into("k", START, END, taken.write, digest=DIGEST)
    assert taken.data == DATA[START:END]
    assert taken.num_restarts == 1
    assert spans(store)[2] == (START, END)
    assert store.calls[2].fresh
    assert (engine.stats.num_refetched, engine.stats.wasted_bytes) == (1, END - START)


async def test_bytes_that_stay_wrong_are_an_error_with_all_its_facts() -> None:
    store = await a_store(in_order([FlipBit(1), Cut(5), FlipBit(2)]))
    with pytest.raises(DigestMismatch) as caught:
        await FetchEngine(store, retry=QUICK).fetch("k", START, END, digest=DIGEST)
    error = caught.value
    assert (error.url, error.key, error.start, error.end, error.attempts) == (store.url, "k", START, END, 3)
    assert not error.is_steady  # other wrong bytes each time: damaged on the way
    assert not pickle.loads(pickle.dumps(error)).is_steady


@pytest.mark.parametrize("size", [100, SIZE])
async def test_the_same_wrong_bytes_twice_are_the_objects_fault(size: int) -> None:
    store = await a_store(in_order([FlipBit(1), Cut(0), FlipBit(1)]))
    with pytest.raises(DigestMismatch, match="both times alike") as caught:
        await FetchEngine(store, retry=QUICK).fetch("k", 0, size, digest=1)
    assert caught.value.is_steady
    assert pickle.loads(pickle.dumps(caught.value)).is_steady
    assert caught.value.expected == "0000000000000001"


async def test_the_error_says_since_when_the_object_is_like_that() -> None:
    written = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)

    class Dated(FaultStore):
        def _seen(self, meta: ObjectMeta, faults: Sequence[Fault], if_match: str | None) -> ObjectMeta:
            return replace(super()._seen(meta, faults, if_match), last_modified=written)

    store = await a_store(in_order([]))
    with pytest.raises(DigestMismatch, match="last written 2026-05-04T03:02:01"):
        await FetchEngine(Dated(store._inner, in_order([])), retry=QUICK).fetch("k", 0, 100, digest=1)


async def test_an_object_replaced_between_two_attempts_is_noticed_by_if_match() -> None:
    inner = MemoryStore(f"memory://{secrets.token_hex(8)}")
    await inner.put("k", DATA)
    other = bytes(reversed(DATA))
    taken = Taken()

    def script(call: Call) -> Sequence[Fault]:
        return (Cut(1_000_000),) if call.number == 0 else ()

    async def write(position: int, piece: memoryview) -> None:
        await taken.write(position, piece)
        await inner.put("k", other)

    with pytest.raises(ObjectChanged):
        await FetchEngine(FaultStore(inner, script), retry=QUICK).fetch_into("k", START, END, write)
    assert taken.data == DATA[START : START + 1_000_000]


async def test_a_store_that_ignores_if_match_is_caught_by_its_etag() -> None:
    class Careless(FaultStore):
        async def _stream(self, key, span, if_match, piece_bytes):  # type: ignore[no-untyped-def]
            return await super()._stream(key, span, None, piece_bytes)

    store = await a_store(in_order([Cut(1_000_000, ServerError), ChangeEtag()]))
    careless = Careless(store._inner, store._script)
    with pytest.raises(ObjectChanged, match="while it was read"):
        await FetchEngine(careless, retry=QUICK).fetch_into("k", START, END, Taken().write)


async def test_what_the_taker_raises_is_not_tried_again_even_if_it_looks_like_the_stores() -> None:
    store = await a_store(in_order([]))

    async def write(position: int, piece: memoryview) -> None:
        raise ConnectionFailed("the taker's own")

    engine = FetchEngine(store, retry=QUICK)
    with pytest.raises(ConnectionFailed, match="the taker's own") as caught:
        await engine.fetch_into("k", START, END, write)
    assert caught.value.key is None
    assert (len(store.calls), engine.stats.in_flight) == (1, 0)


async def test_a_final_error_in_the_body_is_final() -> None:
    store = await a_store(in_order([Cut(1_000_000, AccessDenied)]))
    with pytest.raises(AccessDenied):
        await FetchEngine(store, retry=QUICK).fetch("k", START, END)
    assert len(store.calls) == 1


async def test_an_empty_range_is_a_question_like_any_other() -> None:
    store = await a_store(in_order([]))
    engine = FetchEngine(store, retry=QUICK)
    assert len((await engine.fetch("k", 10, 10)).data) == 0
    with pytest.raises(NotFound):
        await engine.fetch("no", 10, 10)
    await store._inner.put("empty", b"")
    assert len((await engine.fetch_object("empty")).data) == 0


@pytest.mark.parametrize("size", [None, SIZE])
async def test_an_empty_range_is_asked_for_again(size: int | None) -> None:
    """It cannot be streamed, as other ranges are after a failure."""
    store = await a_store(in_order([Fail(Throttled)], operation="head"))
    found = await FetchEngine(store, retry=QUICK).fetch("k", 10, 10, object_size=size)
    assert (len(found.data), len(store.calls)) == (0, 2)


@pytest.mark.parametrize("large", [False, True])
async def test_what_the_client_was_doing_when_a_deadline_cut_it_off_shows_no_secret(
    large: bool, canary: Canary
) -> None:
    secret = secrets.token_hex(20)
    canary.watch(secret)
    remember(secret)

    async def recover() -> None:
        try:
            raise OSError(5, f"http://store/k?sig={secret}")
        except OSError:
            await asyncio.Event().wait()

    store = await a_store(lambda call: (Stall(0, recover),) if large else (Wait(recover),))
    policy = RetryPolicy(max_attempts=1, first_byte_s=0.01, stall_window_s=0.01, min_bytes_per_s=1e9)
    engine = FetchEngine(store, retry=policy)
    with pytest.raises(DeadlineExceeded) as caught:
        await engine.fetch("k", 0, SIZE if large else 100)
    shown = "".join(traceback.format_exception(caught.value))
    assert "OSError" in shown
    assert secret not in shown


async def test_few_descriptors_mean_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    num_now = num_most = 0

    async def count() -> None:
        nonlocal num_now, num_most
        num_now += 1
        num_most = max(num_most, num_now)
        await asyncio.sleep(0)
        num_now -= 1

    store = await a_store(lambda call: (Wait(count),))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    engine = FetchEngine(store, in_flight=100)
    await asyncio.gather(*(engine.fetch("k", n, n + 1) for n in range(60)))
    assert num_most == 16


async def test_the_deadline_ends_even_a_body_that_makes_progress() -> None:
    now_s = 0.0

    async def pass_time() -> None:
        nonlocal now_s
        now_s += 1.0

    store = await a_store(lambda call: (Stall(0, pass_time), Cut(1000)), piece_bytes=1000)
    policy = RetryPolicy(base_delay_s=1e-6, deadline_s=20)
    engine = FetchEngine(store, retry=policy, clock=lambda: now_s)
    with pytest.raises((TruncatedBody, DeadlineExceeded)) as caught:
        await engine.fetch_into("k", START, END, Taken().write)
    assert caught.value.attempts == 20


async def test_waiting_for_a_place_does_not_use_up_the_deadline() -> None:
    now_s = 0.0

    async def pass_time() -> None:
        nonlocal now_s
        now_s += 6.0

    store = await a_store(lambda call: (Wait(pass_time),))
    engine = FetchEngine(store, in_flight=1, retry=RetryPolicy(deadline_s=10), clock=lambda: now_s)
    results = await asyncio.gather(*(engine.fetch("k", n, n + 1) for n in range(8)))
    assert [bytes(result.data) for result in results] == [DATA[n : n + 1] for n in range(8)]
    assert now_s == 48


async def test_cancelling_in_the_body_gives_the_place_back() -> None:
    begun = asyncio.Event()

    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    store = await a_store(in_order([Stall(1_000_000, hang)]))
    engine = FetchEngine(store, in_flight=1, retry=QUICK)
    task = asyncio.create_task(engine.fetch("k", START, END))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.stats.in_flight == 0
    assert bytes((await engine.fetch("k", 0, 10)).data) == DATA[:10]


@pytest.mark.parametrize("large", [False, True])
async def test_cancelling_at_any_await_leaves_nothing_in_flight(large: bool) -> None:
    store = await a_store(lambda call: (Cut(700_000), Wait(asyncio.Event().wait)) if call.number % 3 == 2 else ())
    engine = FetchEngine(store, in_flight=2, retry=RetryPolicy(base_delay_s=1e-6, first_byte_s=0.01))
    finished = 0
    for num_steps in range(60):
        tasks = [asyncio.create_task(engine.fetch("k", 0, SIZE if large else 100)) for _ in range(4)]
        for _ in range(num_steps):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        finished += sum(not task.cancelled() and task.exception() is None for task in tasks)
        assert (engine.stats.in_flight, engine._endpoint.num_active) == (0, 0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
    assert finished > 0


@given(st.data())
async def test_any_faults_in_any_place_leave_the_right_bytes_once(data: st.DataObject) -> None:
    size = 2000
    body = bytes(value % 251 for value in range(size))
    fault = st.one_of(
        st.none(),
        st.builds(Cut, st.integers(0, size), st.sampled_from([TruncatedBody, ConnectionFailed])),
        st.builds(Fail, st.sampled_from([Throttled, ServerError, ConnectionFailed])),
        st.builds(Truncate, st.integers(-size, -1)),
    )
    faults = data.draw(st.lists(fault, max_size=9))
    start = data.draw(st.integers(0, size - 1))
    end = data.draw(st.integers(start + 1, size))
    inner = MemoryStore(f"memory://{secrets.token_hex(8)}")
    await inner.put("k", body)
    store = FaultStore(inner, in_order(faults), piece_bytes=data.draw(st.integers(1, 700)))
    engine = FetchEngine(store, retry=QUICK)
    taken = Taken(start)
    digest = xxhash.xxh3_64_intdigest(body[start:end])
    await engine.fetch_into("k", start, end, taken.write, digest=digest)
    assert taken.data == body[start:end]
    assert (taken.num_restarts, engine.stats.wasted_bytes, engine.stats.num_bytes) == (0, 0, end - start)


class Liar(MemoryStore):
    """Says in its first answers to ranges what ``lies`` make of the object's size; None refuses as a 416 does."""

    def __init__(self, *lies: int | None) -> None:
        super().__init__(f"memory://{secrets.token_hex(8)}")
        self.lies = list(lies)
        self.num_ranges = 0

    async def _get(self, key: str, span: tuple[int, int] | None, if_match: str | None) -> GetResult:
        result = await super()._get(key, span, if_match)
        self.num_ranges += 1
        if not self.lies:
            return result
        size = self.lies.pop(0)
        if size is None:
            raise InvalidRange("the object is shorter", got=416)
        return replace(result, meta=replace(result.meta, size=size))


@pytest.mark.parametrize("lie", [SIZE - 1, SIZE + 1, 10, None])
async def test_one_answer_that_names_another_size_is_asked_again(lie: int | None) -> None:
    store = Liar(lie)
    await store.put("k", DATA)
    for start, end in [(START, START + 10), (START, END)]:
        store.lies, store.num_ranges = [lie], 0
        engine = FetchEngine(store, retry=QUICK)
        result = await engine.fetch("k", start, end, object_size=SIZE)
        assert result.data == DATA[start:end]
        assert (store.num_ranges, engine.stats.num_retries) == (2, 1)


@pytest.mark.parametrize("lie", [SIZE - 1, None])
async def test_two_answers_that_name_another_size_are_another_object(lie: int | None) -> None:
    store = Liar(lie, lie)
    await store.put("k", DATA)
    with pytest.raises(ObjectChanged, match="its size differs") as caught:
        await FetchEngine(store, retry=QUICK).fetch("k", START, END, object_size=SIZE)
    assert caught.value.attempts == 2
    assert (caught.value.key, caught.value.start, caught.value.end) == ("k", START, END)
