"""The part of `StoreTests` about a store's life cycle: concurrency, cancellation, closing, pickling, forking."""

from __future__ import annotations

import asyncio
import os
import pickle
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import ClassVar

import pytest
import pytest_asyncio

from concurrent_loader.storage.errors import StoreClosed, TransientError
from concurrent_loader.storage.stores.store import Store

__all__ = ["StoreLifecycleTests", "keys_of", "pattern"]


def pattern(num_bytes: int, seed: int = 0) -> bytes:
    """Returns bytes in which neighbours and blocks differ, so that off-by-one errors show."""
    block = bytes((seed + 7 * i + i // 251) % 256 for i in range(4096))
    blocks = num_bytes // 4096 + 1
    return b"".join(number.to_bytes(4, "little") + block[4:] for number in range(blocks))[:num_bytes]


async def keys_of(store: Store, prefix: str = "") -> list[str]:
    """Returns the keys of a listing, in its order."""
    return [meta.key async for meta in store.list(prefix)]


@pytest.mark.asyncio
class StoreLifecycleTests:
    """Tests of a store's life cycle; `StoreTests` inherits them.

    Attributes:
        large_bytes: Size of an object that is uploaded in parts, if the store does so.
        over_network: Whether a server may execute a put that was cancelled by the client, even after a later put of the
            same key.
        survives_fork: Whether a store that was used before a fork works in the child; if not, the store must refuse.
    """

    large_bytes: ClassVar[int] = 1 << 20
    over_network: ClassVar[bool] = False
    survives_fork: ClassVar[bool] = False

    @pytest.fixture
    def open_again(self) -> Callable[[], Store]:
        """Returns a function that opens a store, always at the same URL, which is empty at the start of a test."""
        raise NotImplementedError

    @pytest_asyncio.fixture
    async def store(self, open_again: Callable[[], Store]) -> AsyncIterator[Store]:
        """Opens the store under test."""
        async with open_again() as store:
            yield store

    # -- concurrency -----------------------------------------------------------------------------------------------

    async def test_concurrent_use(self, store: Store) -> None:
        blobs = {f"key{n}": pattern(2_000 + n, seed=n) for n in range(40)}

        async def round_trip(key: str, data: bytes) -> None:
            await store.put(key, data)
            whole, part = await asyncio.gather(store.get(key), store.get_range(key, 100, 200))
            assert bytes(whole.data) == data
            assert bytes(part.data) == data[100:200]

        await asyncio.gather(*(round_trip(key, data) for key, data in blobs.items()))
        assert await keys_of(store) == sorted(blobs)

    async def test_readers_see_the_old_object_or_the_new_one(self, store: Store) -> None:
        versions = [bytes([n]) * (10_000 + n) for n in range(8)]
        await store.put("key", versions[0])

        async def write() -> None:
            for version in versions:
                await store.put("key", version)

        writing = asyncio.create_task(write())
        num_read = 0
        while not writing.done() or not num_read:
            try:
                result = await store.get("key")
            except TransientError:  # a read during a change may fail with a transient error
                continue
            assert bytes(result.data) in versions
            num_read += 1
        await writing

    async def test_a_cancelled_get_leaves_the_store_usable(self, store: Store) -> None:
        data = pattern(self.large_bytes)
        await store.put("key", data)
        assert any([await _cancelled_after(steps, store.get("key")) for steps in range(1, 13)])
        results = await asyncio.gather(*(store.get_range("key", n, n + 1000) for n in range(40)))
        assert [bytes(result.data) for result in results] == [data[n : n + 1000] for n in range(40)]

    async def test_a_cancelled_put_leaves_the_old_object_or_the_new_one(self, store: Store) -> None:
        old, new = pattern(self.large_bytes, seed=1), pattern(self.large_bytes, seed=2)
        await store.put("key", old)
        num_cancelled = 0
        for steps in (1, 2, 5, 10, 20):
            num_cancelled += await _cancelled_after(steps, store.put("key", new))
            assert bytes((await store.get("key")).data) in (old, new)
        assert num_cancelled
        await store.put("another", b"last")
        assert bytes((await store.get("another")).data) == b"last"
        assert await keys_of(store) == ["another", "key"]

    async def test_what_is_put_after_a_cancelled_put_stays(self, store: Store) -> None:
        cancelled = b"cancelled" * 50_000
        for n in range(1, 10):
            await _cancelled_after(n, store.put("key", cancelled))
            await store.put("key", b"last %d" % n)
            allowed = [b"last %d" % n, *([cancelled] if self.over_network else [])]
            assert bytes((await store.get("key")).data) in allowed

    # -- life ------------------------------------------------------------------------------------------------------

    async def test_two_stores_on_one_url_see_the_same_objects(
        self, store: Store, open_again: Callable[[], Store]
    ) -> None:
        async with open_again() as other:
            await store.put("key", b"x")
            assert await keys_of(other) == ["key"]
            await other.put("key", b"yz")
            assert bytes((await store.get("key")).data) == b"yz"

    async def test_a_closed_store_refuses(self, store: Store) -> None:
        await store.put("key", b"x")
        await store.close()
        await store.close()
        for attempt in (
            store.get("key"),
            store.get_range("key", 0, 1),
            store.put("key", b""),
            store.head("key"),
            store.delete("key"),
        ):
            with pytest.raises(StoreClosed):
                await attempt
        with pytest.raises(StoreClosed):
            await keys_of(store)

    async def test_pickling(self, store: Store) -> None:
        await store.put("key", b"x")
        async with pickle.loads(pickle.dumps(store)) as again:  # noqa: S301
            assert (type(again), again.url) == (type(store), store.url)
            assert bytes((await again.get("key")).data) == b"x"

    async def test_a_used_store_after_a_fork(self, store: Store) -> None:
        await store.put("key", b"x")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the test forks with threads on purpose
            child = os.fork()
        if child == 0:
            os._exit(_outcome_in_child(store, works=self.survives_fork))
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert bytes((await store.get("key")).data) == b"x"

    async def test_repr_names_the_url(self, store: Store) -> None:
        assert store.url in repr(store)


async def _cancelled_after(steps: int, call: Coroutine[object, object, object]) -> bool:
    """Cancels a call after ``steps`` turns of the event loop; returns False if it was done by then."""
    task = asyncio.ensure_future(call)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


def _outcome_in_child(store: Store, *, works: bool) -> int:
    """Returns 0 if the store works or refuses, as expected. Runs the coroutine by hand: no loop survives a fork."""
    try:
        if works:
            return 0 if asyncio.run(_get_and_close(store)) == b"x" else 3
        store.get("key").send(None)
    except StoreClosed:
        return 0
    except BaseException:  # noqa: BLE001
        return 2
    return 1


async def _get_and_close(store: Store) -> bytes:
    async with store:
        return bytes((await store.get("key")).data)
