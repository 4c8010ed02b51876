"""Attributes the wait for an object that has not arrived yet."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np

from concurrent_loader.datasets.object_source import ObjectSource
from concurrent_loader.stats.wait_attribution import BatchTrace, attribute_wait, batch_status
from concurrent_loader.storage.listing import Listing, Texts


class Cache:
    """Gives an object when the test says so."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def read_object(self, entry: object) -> memoryview:
        await self.go.wait()
        return memoryview(b"data")


def make_source(cache: Any, *, with_payload: bool = True) -> ObjectSource:
    ends = np.array([1, 2])
    listing = Listing(Texts(b"ab", ends), np.array([4, 4]), Texts(b"12", ends))
    return ObjectSource(
        "memory://objects",
        listing,
        None,
        cache,
        payload="image",
        selection=None,
        with_payload=with_payload,
        in_flight=lambda: 100,
    )


async def test_an_object_that_waits_for_its_turn_waits_for_the_store() -> None:
    now = SimpleNamespace(s=10.0)
    cache = Cache()
    source = make_source(cache)
    trace = BatchTrace(0, lambda: now.s)
    with trace.waiting("b", lambda: source.fetch_times(1)):
        now.s = 13.0
        assert batch_status([trace], now.s).cause == "store"
        coming = asyncio.create_task(source.acquire(1))
        await asyncio.sleep(0)
        now.s = 14.0
        assert batch_status([trace], now.s).cause == "store"
    waited = attribute_wait(trace.spans, 10, 14)
    assert (waited["store"], waited["disk"]) == (4, 0)
    cache.go.set()
    await coming
    began_s, ended_s = source.fetch_times(1) or (None, None)
    assert began_s is not None
    assert ended_s is not None


async def test_without_payload_nothing_is_fetched() -> None:
    source = make_source(Cache(), with_payload=False)
    assert source.fetch_times(1) is None


def test_more_are_asked_for_at_once_than_may_be_in_flight() -> None:
    assert make_source(None).max_concurrent == 125
