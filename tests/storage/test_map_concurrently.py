from __future__ import annotations

import asyncio

import pytest

from concurrent_loader.storage.map_concurrently import map_concurrently


async def test_results_are_in_the_order_of_the_items() -> None:
    async def later(number: int) -> int:
        for _ in range(number % 7):
            await asyncio.sleep(0)
        return number * 2

    assert await map_concurrently(later, range(2000)) == list(range(0, 4000, 2))
    assert await map_concurrently(later, []) == []


async def test_tasks_are_bounded_and_the_first_error_ends_all() -> None:
    started: list[int] = []
    gate = asyncio.Event()

    async def fail(number: int) -> None:
        started.append(number)
        await gate.wait()
        raise LookupError(number)

    call = asyncio.create_task(map_concurrently(fail, range(100_000)))
    while len(started) < 512:
        await asyncio.sleep(0)
    gate.set()
    with pytest.raises(LookupError):
        await call
    assert len(started) < 1100


async def test_others_have_their_turn_while_nothing_waits() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def at_once(number: int) -> int:
        return number

    other = asyncio.create_task(count_turns())
    await map_concurrently(at_once, range(20_000))
    other.cancel()
    assert turns > 20
