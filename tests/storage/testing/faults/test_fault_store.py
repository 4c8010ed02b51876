from __future__ import annotations

import asyncio
import pickle
import secrets
from contextlib import aclosing

import pytest

from concurrent_loader.storage.errors import ConnectionFailed, ObjectChanged, StorageError, Throttled, TruncatedBody
from concurrent_loader.storage.stores.backends.memory import MemoryStore
from concurrent_loader.storage.testing.conformance.store_tests import StoreTests
from concurrent_loader.storage.testing.faults.fault_store import (
    ChangeEtag,
    Cut,
    Fail,
    FaultStore,
    FlipBit,
    Stall,
    Truncate,
    Wait,
    in_order,
    seeded,
)


class TestWithoutFaults(StoreTests):
    @pytest.fixture
    def open_again(self):
        url = f"memory://{secrets.token_hex(8)}"
        return lambda: FaultStore(MemoryStore(url), lambda call: ())

    async def test_pickling(self, store):
        with pytest.raises(TypeError):  # a script may be anything
            pickle.dumps(store)


@pytest.fixture
async def inner():
    store = MemoryStore(f"memory://{secrets.token_hex(8)}")
    await store.put("key", b"0123456789")
    return store


async def test_a_script_in_order(inner):
    store = FaultStore(inner, in_order([Fail(Throttled), None, Truncate(4), FlipBit(9)]))
    with pytest.raises(Throttled) as caught:
        await store.get_range("key", 2, 8)
    assert (caught.value.key, caught.value.start, caught.value.end) == ("key", 2, 8)
    assert bytes((await store.get("key")).data) == b"0123456789"
    with pytest.raises(TruncatedBody):
        await store.get("key")
    assert bytes((await store.get("key")).data) == b"0" + bytes([ord("1") ^ 2]) + b"23456789"
    assert bytes((await store.get("key")).data) == b"0123456789"
    assert [(call.operation, call.start, call.end) for call in store.calls] == [("get", 2, 8)] + [
        ("get", None, None)
    ] * 4
    assert bytes((await inner.get("key")).data) == b"0123456789"


async def pieces_of(store, start, end):
    async with aclosing(await store.open_range("key", start, end)) as opened:
        return [bytes(piece) async for piece in opened]


async def test_a_body_in_pieces_that_breaks_and_pauses(inner):
    gate = asyncio.Event()
    store = FaultStore(inner, in_order([None, Cut(5), Stall(3, gate.wait), FlipBit(0)]), piece_bytes=4)
    assert await pieces_of(store, 0, 10) == [b"0123", b"4567", b"89"]
    taken = b""
    with pytest.raises(TruncatedBody):
        async with aclosing(await store.open_range("key", 1, 9)) as opened:
            async for piece in opened:
                taken += piece
    assert taken == b"12345"
    paused = asyncio.create_task(pieces_of(store, 0, 10))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not paused.done()
    gate.set()
    assert await paused == [b"012", b"3456", b"789"]
    assert (await pieces_of(store, 0, 2)) == [bytes([ord("0") ^ 1]) + b"1"]


async def test_cuts_and_pauses_of_what_is_read_at_once(inner):
    gate = asyncio.Event()
    gate.set()
    store = FaultStore(inner, in_order([Cut(5, ConnectionFailed), Stall(3, gate.wait)]))
    with pytest.raises(ConnectionFailed):
        await store.get("key")
    assert bytes((await store.get("key")).data) == b"0123456789"


async def test_it_says_which_calls_came_over_fresh_connections(inner):
    store = FaultStore(inner, in_order([None, Fail(Throttled)]))
    await store.get("key")
    with pytest.raises(Throttled):
        await store.on_fresh_connections().get("key")
    assert [(call.number, call.fresh) for call in store.calls] == [(0, False), (1, True)]


async def test_a_changed_object(inner):
    store = FaultStore(inner, in_order([ChangeEtag(), ChangeEtag('"new"')]))
    etag = (await store.head("key")).etag
    with pytest.raises(ObjectChanged):
        await store.get("key", if_match=etag)
    assert (await store.get("key")).meta.etag == '"new"'
    assert (await store.get("key", if_match=etag)).meta.etag == etag


async def test_a_wait_is_the_tests_to_end(inner):
    gate = asyncio.Event()
    store = FaultStore(inner, in_order([Wait(gate.wait)]))
    task = asyncio.create_task(store.get("key"))
    await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    assert len((await task).data) == 10


async def test_a_write_may_happen_although_it_fails(inner):
    store = FaultStore(inner, in_order([Fail(ConnectionFailed, after=True)], operation="put"))
    with pytest.raises(ConnectionFailed):
        await store.put_if_absent("new", b"x")
    assert bytes((await inner.get("new")).data) == b"x"


async def test_seeded_faults_depend_on_seed_and_number_only(inner):
    async def outcomes(seed):
        store = FaultStore(inner, seeded(seed, fail=0.3, truncate=0.2, flip=0.2))
        seen = []
        for _ in range(60):
            try:
                seen.append(bytes((await store.get("key")).data))
            except StorageError as error:
                seen.append(type(error))
        return seen

    first = await outcomes(1)
    assert first == await outcomes(1)
    assert first != await outcomes(2)
    assert {TruncatedBody, ConnectionFailed, Throttled, b"0123456789"} <= set(first)
    assert len({data for data in first if isinstance(data, bytes)}) > 3


async def test_no_rates_no_faults(inner):
    store = FaultStore(inner, seeded(0))
    assert all([bytes((await store.get("key")).data) == b"0123456789" for _ in range(20)])
