from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.doctor.finding import Level
from concurrent_loader.doctor.transfer import (
    Throughput,
    check_round_trip,
    measure_round_trip,
    measure_throughput,
    probe_ranges,
)
from concurrent_loader.storage.errors import AccessDenied, NotFound
from concurrent_loader.storage.stores import GetResult, MemoryStore, ObjectMeta
from concurrent_loader.storage.testing.faults.fault_store import FaultStore, Stall, in_order

MIB = 1 << 20


async def store_of(*sizes: int) -> tuple[MemoryStore, list[ObjectMeta]]:
    store = MemoryStore(f"memory://{uuid4().hex}")
    return store, [await store.put(f"{number}", bytes(size)) for number, size in enumerate(sizes)]


@given(st.lists(st.integers(0, 40 * MIB), max_size=20), st.integers(0, 100 * MIB))
def test_ranges_are_within_objects_and_budget(sizes: list[int], num_bytes: int) -> None:
    objects = [ObjectMeta(key=str(number), size=size, etag=None) for number, size in enumerate(sizes)]
    chosen = probe_ranges(objects, num_bytes=num_bytes)
    assert sum(span.end - span.start for _, span in chosen) == min(num_bytes, sum(sizes))
    for key, span in chosen:
        assert 0 <= span.start < span.end <= sizes[int(key)]
        assert span.end - span.start <= 8 * MIB
    assert len(set(chosen)) == len(chosen)


async def test_throughput_counts_what_came() -> None:
    store, objects = await store_of(3 * MIB, 9 * MIB)
    finding, result = await measure_throughput(store, objects, num_bytes=11 * MIB, deadline_s=30)
    assert result is not None
    assert (result.num_bytes, result.num_requests) == (11 * MIB, 3)
    assert finding.name == "throughput"
    assert finding.facts["num_bytes"] == 11 * MIB


async def test_throughput_of_what_is_gone() -> None:
    store, objects = await store_of(MIB)
    await store.delete(objects[0].key)
    finding, result = await measure_throughput(store, objects, num_bytes=MIB, deadline_s=30)
    assert result is None
    assert finding.level is Level.FAIL
    with pytest.raises(NotFound):
        await store.get(objects[0].key)


async def test_throughput_of_a_silent_store_ends_at_the_deadline(no_leaks: None) -> None:
    class Silent(MemoryStore):
        async def _get(self, key: str, span: tuple[int, int] | None, if_match: str | None) -> GetResult:
            await asyncio.Event().wait()
            raise AssertionError

    store = Silent(f"memory://{uuid4().hex}")
    objects = [await store.put("key", bytes(MIB))]
    finding, result = await measure_throughput(store, objects, num_bytes=MIB, deadline_s=0.1)
    assert result is None
    assert finding.level is Level.FAIL


async def test_throughput_counts_what_came_of_ranges_that_are_late(no_leaks: None) -> None:
    inner, objects = await store_of(8 * MIB)
    store = FaultStore(inner, in_order([Stall(3 * MIB, asyncio.Event().wait)]))
    finding, result = await measure_throughput(store, objects, num_bytes=8 * MIB, deadline_s=2.0)
    assert result is not None
    assert (result.num_bytes, result.num_requests) == (3 * MIB, 1)
    assert finding.level is Level.WARN  # 1.5 MB/s


def test_a_rate_is_bytes_by_seconds() -> None:
    assert Throughput(100, 2.0, 1).bytes_s == 50
    assert Throughput(0, 0.0, 0).bytes_s == 0


async def test_round_trips_are_timed_without_the_first() -> None:
    store, objects = await store_of(10)
    ticks = iter(range(1000))
    finding = await measure_round_trip(store, objects[0], deadline_s=30, clock=lambda: next(ticks) / 1000)
    assert finding.facts == {"median_s": 0.001, "max_s": 0.001, "num_requests": 9}
    assert finding.level is Level.OK


async def test_round_trips_that_are_refused() -> None:
    class Refusing(MemoryStore):
        async def _get(self, key: str, span: tuple[int, int] | None, if_match: str | None) -> GetResult:
            raise AccessDenied("access denied")

    store = Refusing(f"memory://{uuid4().hex}")
    finding = await measure_round_trip(store, await store.put("key", b"x"), deadline_s=30)
    assert finding.level is Level.FAIL


def test_a_far_store_is_a_warning() -> None:
    assert check_round_trip([0.01, 0.2, 0.3]).level is Level.WARN
