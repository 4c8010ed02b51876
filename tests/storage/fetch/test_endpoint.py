"""Places in flight that several readers share, on one event loop and on several."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import secrets
import threading
import weakref

import pytest

from concurrent_loader.storage.errors import ConfigurationError, Throttled
from concurrent_loader.storage.fetch import FetchEngine, RetryPolicy
from concurrent_loader.storage.fetch import endpoint as endpoint_module
from concurrent_loader.storage.fetch.endpoint import Endpoint, Member
from concurrent_loader.storage.stores.backends.memory import MemoryStore
from concurrent_loader.storage.testing.faults.fault_store import Fail, FaultStore, Wait, in_order

SMALL = {"now_s": 0.0, "num_bytes": 10, "answer_s": 0.1}


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def an_endpoint(bound: int) -> tuple[Endpoint, Member]:
    endpoint = Endpoint()
    return endpoint, endpoint.join(bound)


async def test_places_go_by_order_of_arrival() -> None:
    endpoint, _member = an_endpoint(1)
    entered: list[int] = []

    async def visit(number: int) -> None:
        place = await endpoint.enter()
        entered.append(number)
        await asyncio.sleep(0)
        endpoint.leave(place, **SMALL)  # type: ignore[arg-type]

    await asyncio.gather(*(visit(number) for number in range(20)))
    assert entered == list(range(20))
    assert endpoint.num_active == 0


async def test_a_cancelled_waiter_leaves_and_one_just_admitted_gives_back() -> None:
    endpoint, _member = an_endpoint(1)
    place = await endpoint.enter()
    waiting = [asyncio.create_task(endpoint.enter()) for _ in range(3)]
    await settle()
    waiting[0].cancel()
    await settle()
    endpoint.leave(place, **SMALL)  # type: ignore[arg-type]
    waiting[1].cancel()  # it has been granted the place, but has not run since
    await settle()
    assert [task.cancelled() for task in waiting[:2]] == [True, True]
    endpoint.leave(await waiting[2], **SMALL)  # type: ignore[arg-type]
    assert endpoint.num_active == 0


async def test_doubles_take_places_beyond_the_limit_and_give_them_back() -> None:
    endpoint, _member = an_endpoint(1)
    place = await endpoint.enter()
    endpoint.enter_extra()
    waiting = asyncio.create_task(endpoint.enter())
    endpoint.leave(place, **SMALL)  # type: ignore[arg-type]
    await settle()
    assert not waiting.done()
    endpoint.leave_extra()
    endpoint.leave(await waiting, **SMALL)  # type: ignore[arg-type]
    assert endpoint.num_active == 0


def test_event_loops_of_several_threads_share_the_places() -> None:
    endpoint, _member = an_endpoint(5)
    lock = threading.Lock()
    num_now = num_most = num_done = 0

    async def visit(rng: random.Random) -> None:
        nonlocal num_now, num_most, num_done
        place = await endpoint.enter()
        with lock:
            num_now += 1
            num_most = max(num_most, num_now)
        try:
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
        finally:
            with lock:
                num_now -= 1
                num_done += 1
            endpoint.leave(place, **SMALL)  # type: ignore[arg-type]

    async def visit_often(seed: int) -> None:
        rng = random.Random(seed)
        tasks = [asyncio.create_task(visit(rng)) for _ in range(200)]
        for task in rng.sample(tasks, 50):
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait(tasks)

    threads = [threading.Thread(target=lambda seed=seed: asyncio.run(visit_often(seed))) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert 1 < num_most <= 5
    assert num_done >= 4 * 100
    assert endpoint.num_active == 0


def test_a_loop_that_was_closed_over_its_waiters_costs_no_place() -> None:
    endpoint, _member = an_endpoint(1)
    place = asyncio.run(endpoint.enter())
    loop = asyncio.new_event_loop()
    abandoned = loop.create_task(endpoint.enter())
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    endpoint.leave(place, **SMALL)  # type: ignore[arg-type]
    assert endpoint.num_active == 0
    asyncio.run(endpoint.enter())
    abandoned._log_destroy_pending = False  # type: ignore[attr-defined]
    del abandoned


def test_an_entry_dies_with_its_last_reader() -> None:
    url = f"memory://{secrets.token_hex(8)}"
    first, second = FetchEngine(MemoryStore(url)), FetchEngine(MemoryStore(f"{url}/prefix"))
    shared = weakref.ref(first._endpoint)
    assert second._endpoint is shared()
    del first
    gc.collect()
    assert shared() is second._endpoint
    before = len(endpoint_module._registry.endpoints)
    del second
    gc.collect()
    assert shared() is None
    assert len(endpoint_module._registry.endpoints) == before - 1


def test_readers_are_counted_while_they_live() -> None:
    endpoint, member = an_endpoint(20)
    other = endpoint.join(30)
    assert endpoint.limit == 50
    del other
    gc.collect()
    asyncio.run(_visit(endpoint))
    assert endpoint.limit == 20
    assert member.bound == 20


async def _visit(endpoint: Endpoint) -> None:
    endpoint.leave(await endpoint.enter(), **SMALL)  # type: ignore[arg-type]


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_begins_anew() -> None:
    engine = FetchEngine(MemoryStore(f"memory://{secrets.token_hex(8)}"), in_flight=1)
    asyncio.run(engine._endpoint.enter())  # never left
    pid = os.fork()
    if pid == 0:
        child = FetchEngine(MemoryStore(engine.store.url), in_flight=1)
        os._exit(0 if child._endpoint is not engine._endpoint and child._endpoint.num_active == 0 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert engine._endpoint.num_active == 1


# -- engines -----------------------------------------------------------------------------------------------------------


async def test_engines_of_one_endpoint_are_throttled_together() -> None:
    inner = MemoryStore(f"memory://{secrets.token_hex(8)}")
    await inner.put("k", bytes(100))
    never_again = RetryPolicy(base_delay_s=1e-6)
    first = FetchEngine(FaultStore(inner, in_order([Fail(Throttled)])), in_flight=40, retry=never_again)
    second = FetchEngine(inner, in_flight=60)
    assert first.stats.limit == second.stats.limit == 100
    await first.fetch("k", 0, 10)
    assert first.stats.limit == second.stats.limit == 70
    assert first.stats.num_throttled == 1


async def test_other_endpoints_are_not_concerned() -> None:
    inner = MemoryStore(f"memory://{secrets.token_hex(8)}")
    await inner.put("k", bytes(100))
    first = FetchEngine(FaultStore(inner, in_order([Fail(Throttled)])), retry=RetryPolicy(base_delay_s=1e-6))
    other = FetchEngine(MemoryStore(f"memory://{secrets.token_hex(8)}"))
    await first.fetch("k", 0, 10)
    assert (first.stats.limit, other.stats.limit) == (11, 16)


async def test_retries_beyond_the_budget_are_put_off() -> None:
    inner = MemoryStore(f"memory://{secrets.token_hex(8)}")
    await inner.put("k", bytes(100))
    pauses_s: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses_s.append(seconds)

    engine = FetchEngine(
        FaultStore(inner, in_order([Fail(Throttled)] * 40)),
        in_flight=40,
        retry=RetryPolicy(max_attempts=50),
        sleep=sleep,
        rng=lambda: 0.0,
    )
    await asyncio.gather(*(engine.fetch("k", 0, 10) for _ in range(40)))
    assert pauses_s.count(0.0) == 16
    assert set(pauses_s) == {0.0, 4.0}


async def test_the_snapshot_says_what_happens() -> None:
    inner = MemoryStore(f"memory://{secrets.token_hex(8)}")
    await inner.put("k", bytes(100))
    gate = asyncio.Event()
    engine = FetchEngine(FaultStore(inner, in_order([Wait(gate.wait)])), in_flight=7)
    task = asyncio.create_task(engine.fetch("k", 0, 100))
    await settle()
    assert (engine.stats.in_flight, engine.stats.limit, engine.stats.num_bytes) == (1, 7, 0)
    before = engine.stats
    gate.set()
    await task
    after = engine.stats
    assert before.num_bytes == 0
    assert (after.in_flight, after.num_gets, after.num_bytes) == (0, 1, 100)
    assert after.goodput_bytes_per_s > 0
    assert 0 < after.first_byte_p50_s <= after.first_byte_p95_s <= after.first_byte_p99_s
    assert after.wait_s >= after.first_byte_p50_s


@pytest.mark.parametrize("in_flight", [0, -1, "many", 1.5, True])
def test_senseless_numbers_are_refused(in_flight: object) -> None:
    with pytest.raises(ConfigurationError):
        FetchEngine(MemoryStore("memory://senseless"), in_flight=in_flight)  # type: ignore[arg-type]
