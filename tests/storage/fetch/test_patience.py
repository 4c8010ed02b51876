"""Waiting for a place in flight: as long as the store works, and no longer than the deadline when it does not."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable

import pytest

from concurrent_loader.storage.errors import DeadlineExceeded, NotFound, StorageError
from concurrent_loader.storage.fetch import FetchEngine, RetryPolicy
from concurrent_loader.storage.fetch.deadlines import wait_with_renewable_deadline
from concurrent_loader.storage.stores.backends.memory import MemoryStore
from concurrent_loader.storage.testing.faults.fault_store import Call, Fail, Fault, FaultStore, Script, Stall, Wait
from concurrent_loader.storage.virtual_time import run_in_virtual_time

SIZE = 4 << 20
DATA = bytes(range(256)) * (SIZE // 256)


def seconds() -> Callable[[], float]:
    return asyncio.get_running_loop().time


async def never() -> None:
    await asyncio.Event().wait()


async def an_engine(script: Script, policy: RetryPolicy, *, in_flight: int = 1) -> FetchEngine:
    inner = MemoryStore(f"memory://{secrets.token_hex(8)}")
    await inner.put("k", DATA)
    return FetchEngine(
        FaultStore(inner, script), in_flight=in_flight, retry=policy, hedge=None, clock=seconds(), rng=lambda: 0.5
    )


async def outcome(call: Awaitable[object]) -> tuple[float, BaseException | None]:
    """When it ended, and with what error."""
    try:
        await call
    except StorageError as error:
        return seconds()(), error
    return seconds()(), None


# -- `wait_with_renewable_deadline` alone -----------------------------------------------------------------------------


def test_patience_that_becomes_new_is_asked_for_only_when_the_old_one_has_passed() -> None:
    async def main() -> tuple[int, float]:
        now_s, asked = seconds(), 0
        until_s = 10.0

        def left_s() -> float:
            nonlocal asked, until_s
            asked += 1
            if asked < 4:
                until_s = now_s() + 10
            return until_s - now_s()

        with pytest.raises(TimeoutError):
            await wait_with_renewable_deadline(left_s, never)
        return asked, now_s()

    assert run_in_virtual_time(main()) == (4, 30.0)


def test_what_comes_in_time_is_returned_and_no_timer_is_left() -> None:
    async def main() -> tuple[int, float]:
        async def wait() -> int:
            await asyncio.sleep(3)
            return 7

        return await wait_with_renewable_deadline(lambda: 5.0, wait), seconds()()

    assert run_in_virtual_time(main()) == (7, 3.0)


@pytest.mark.parametrize("left_s", [0.0, -5.0, -math.inf])
def test_no_patience_at_all_is_no_endless_loop(left_s: float) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await wait_with_renewable_deadline(lambda: left_s, never)

    run_in_virtual_time(main())


# -- engines -----------------------------------------------------------------------------------------------------------


def test_who_waits_at_a_dead_store_is_told_by_the_deadline() -> None:
    async def main() -> None:
        engine = await an_engine(lambda call: (Wait(never),), RetryPolicy(first_byte_s=60, deadline_s=60))
        ends = await asyncio.gather(*(outcome(engine.fetch("k", n, n + 10)) for n in range(20)))
        for number, (ended_s, error) in enumerate(ends):
            assert isinstance(error, DeadlineExceeded)
            assert (error.url, error.key, error.start, error.end) == (engine.store.url, "k", number, number + 10)
            assert error.attempts == (0 if number else 1)
            assert ended_s == pytest.approx(60)
        assert (engine.stats.in_flight, engine.stats.num_gets) == (0, 1)
        assert engine._endpoint.num_active == 0

    run_in_virtual_time(main())


def test_attempts_that_change_places_do_not_add_up() -> None:
    async def main() -> None:
        # Each attempt gives its place to the next one after 5 s: they all get theirs, and none of them longer for it.
        engine = await an_engine(lambda call: (Wait(never),), RetryPolicy(first_byte_s=5, deadline_s=60))
        ends = await asyncio.gather(*(outcome(engine.fetch("k", n, n + 10)) for n in range(30)))
        assert all(isinstance(error, DeadlineExceeded) for _, error in ends)
        assert max(ended_s for ended_s, _ in ends) == pytest.approx(60)

    run_in_virtual_time(main())


def test_a_store_that_dies_is_given_up_a_deadline_after_its_last_byte() -> None:
    async def main() -> None:
        def script(call: Call) -> tuple[Fault, ...]:
            return (Wait(lambda: asyncio.sleep(10)),) if call.number < 5 else (Wait(never),)

        engine = await an_engine(script, RetryPolicy(first_byte_s=60, deadline_s=60))
        ends = await asyncio.gather(*(outcome(engine.fetch("k", n, n + 10)) for n in range(20)))
        assert [ended_s for ended_s, error in ends if error is None] == pytest.approx([10, 20, 30, 40, 50])
        assert [ended_s for ended_s, error in ends if error is not None] == pytest.approx([110] * 15)

    run_in_virtual_time(main())


def test_a_queue_longer_than_the_deadline_at_a_store_that_works_is_no_error() -> None:
    async def main() -> float:
        engine = await an_engine(
            lambda call: (Wait(lambda: asyncio.sleep(50)),), RetryPolicy(first_byte_s=60, deadline_s=60)
        )
        ends = await asyncio.gather(*(outcome(engine.fetch("k", n, n + 10)) for n in range(20)))
        assert [error for _, error in ends] == [None] * 20
        return max(ended_s for ended_s, _ in ends)

    assert run_in_virtual_time(main()) == pytest.approx(1000)


def test_the_bytes_of_a_long_body_are_signs_of_life_while_they_arrive() -> None:
    async def main() -> None:
        # 4 MiB in four pieces, one in 50 s: nobody else's request ends for longer than the deadline of who waits.
        def script(call: Call) -> tuple[Fault, ...]:
            return tuple(Stall(n << 20, lambda: asyncio.sleep(50)) for n in range(4)) if call.number == 0 else ()

        patient = RetryPolicy(stall_window_s=60, min_bytes_per_s=10_000, first_byte_s=60, deadline_s=300)
        engine = await an_engine(script, patient)
        slow = asyncio.create_task(outcome(engine.fetch("k", 0, SIZE)))
        await asyncio.sleep(1)
        engine.policy = RetryPolicy(deadline_s=60)
        ends = await asyncio.gather(*(outcome(engine.fetch("k", n, n + 10)) for n in range(3)))
        assert (await slow)[1] is None
        assert [error for _, error in ends] == [None] * 3
        assert ends[0][0] == pytest.approx(200)

    run_in_virtual_time(main())


def test_refusals_are_answers() -> None:
    async def main() -> None:
        engine = await an_engine(
            lambda call: (Wait(lambda: asyncio.sleep(50)), Fail(NotFound)),
            RetryPolicy(first_byte_s=60, deadline_s=60),
        )
        ends = await asyncio.gather(*(outcome(engine.fetch("k", n, n + 10)) for n in range(5)))
        assert [type(error) for _, error in ends] == [NotFound] * 5

    run_in_virtual_time(main())


def test_other_calls_wait_no_longer_either() -> None:
    async def main() -> None:
        engine = await an_engine(lambda call: (Wait(never),), RetryPolicy(first_byte_s=60, deadline_s=60))
        ends = await asyncio.gather(
            *(outcome(engine.call_with_retries(lambda: engine.store.head("k"), "k")) for _ in range(5)),
        )
        for ended_s, error in ends:
            assert isinstance(error, DeadlineExceeded)
            assert (error.url, error.key) == (engine.store.url, "k")
            assert ended_s == pytest.approx(60)

    run_in_virtual_time(main())


def test_other_calls_that_work_are_signs_of_life() -> None:
    async def main() -> None:
        engine = await an_engine(
            lambda call: (Wait(lambda: asyncio.sleep(50)),), RetryPolicy(first_byte_s=60, deadline_s=60)
        )
        ends = await asyncio.gather(
            *(outcome(engine.call_with_retries(lambda: engine.store.head("k"), "k")) for _ in range(5)),
        )
        assert [error for _, error in ends] == [None] * 5

    run_in_virtual_time(main())


def test_engines_of_one_endpoint_hear_for_each_other() -> None:
    async def main() -> None:
        first = await an_engine(
            lambda call: (Wait(lambda: asyncio.sleep(50)),), RetryPolicy(first_byte_s=60, deadline_s=60)
        )
        second = FetchEngine(
            first.store, in_flight=1, retry=RetryPolicy(first_byte_s=60, deadline_s=60), hedge=None, clock=seconds()
        )
        ends = await asyncio.gather(*(outcome(engine.fetch("k", 0, 9)) for engine in (first, second) for _ in range(4)))
        assert [error for _, error in ends] == [None] * 8

    run_in_virtual_time(main())


@pytest.mark.parametrize("num_steps", range(12))
def test_who_gives_up_or_is_cancelled_while_waiting_holds_no_place(num_steps: int) -> None:
    async def main() -> None:
        policy = RetryPolicy(first_byte_s=60, deadline_s=60)
        is_dead = True
        engine = await an_engine(lambda call: (Wait(never),) if is_dead else (), policy, in_flight=2)
        tasks = [asyncio.create_task(engine.fetch("k", n, n + 10)) for n in range(6)]
        if num_steps % 2:
            await asyncio.sleep(60)  # just when the deadline is reached
        for _ in range(num_steps):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (engine.stats.in_flight, engine._endpoint.num_active) == (0, 0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        is_dead = False
        assert bytes((await engine.fetch("k", 0, 10)).data) == DATA[:10]

    run_in_virtual_time(main())
