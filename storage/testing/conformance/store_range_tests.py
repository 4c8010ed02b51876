"""The part of `StoreTests` about ranges, streamed bodies and preconditions."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from concurrent_loader.storage.errors import InvalidRange, NotFound, ObjectChanged
from concurrent_loader.storage.stores.store import Store
from concurrent_loader.storage.testing.conformance.store_lifecycle_tests import StoreLifecycleTests, pattern

__all__ = ["StoreRangeTests"]


@pytest.mark.asyncio
class StoreRangeTests(StoreLifecycleTests):
    """Tests of reading parts of objects; `StoreTests` inherits them."""

    # -- ranges ----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("start", "end"), [(0, 1), (0, 10_000), (1, 2), (9_999, 10_000), (4_090, 4_100), (17, 9_983), (0, 9_999)]
    )
    async def test_ranges_are_exact(self, store: Store, start: int, end: int) -> None:
        data = pattern(10_000)
        await store.put("key", data)
        result = await store.get_range("key", start, end)
        assert bytes(result.data) == data[start:end]
        assert result.meta.size == len(data)

    @pytest.mark.parametrize("position", [0, 5, 10])
    async def test_zero_length_ranges(self, store: Store, position: int) -> None:
        await store.put("key", b"0123456789")
        result = await store.get_range("key", position, position)
        assert len(result.data) == 0
        assert result.meta.size == 10

    @pytest.mark.parametrize(
        ("start", "end"), [(0, 11), (9, 11), (10, 11), (50, 60), (11, 11), (5, 4), (-1, 3), (-3, -1)]
    )
    async def test_ranges_beyond_the_object_are_refused(self, store: Store, start: int, end: int) -> None:
        await store.put("key", b"0123456789")
        with pytest.raises(InvalidRange) as caught:
            await store.get_range("key", start, end)
        assert (caught.value.key, caught.value.start, caught.value.end) == ("key", start, end)
        assert not caught.value.retryable

    async def test_a_range_piece_by_piece(self, store: Store) -> None:
        data = pattern(self.large_bytes)
        await store.put("key", data)
        for start, end in ((0, len(data)), (1, 2), (len(data) // 3, len(data)), (0, None)):
            for piece_bytes in (1 << 20, 1 << 16):
                async with aclosing(await store.open_range("key", start, end, piece_bytes=piece_bytes)) as opened:
                    assert opened.meta.size == len(data)
                    assert opened.end == (len(data) if end is None else end)
                    assert b"".join([bytes(piece) async for piece in opened]) == data[start:end]

    async def test_an_empty_object_piece_by_piece(self, store: Store) -> None:
        await store.put("key", b"")
        async with aclosing(await store.open_range("key", 0, None)) as opened:
            assert b"".join([bytes(piece) async for piece in opened]) == b""

    async def test_an_open_range_may_be_left_unread(self, store: Store) -> None:
        await store.put("key", pattern(self.large_bytes))
        for _ in range(3):
            unread = await store.open_range("key", 0, self.large_bytes)
            await unread.aclose()
            async with aclosing(await store.open_range("key", 0, self.large_bytes, piece_bytes=1 << 16)) as begun:
                await anext(begun)
        assert (await store.get("key")).meta.size == self.large_bytes

    async def test_piece_by_piece_fails_as_a_whole_range_does(self, store: Store) -> None:
        await store.put("key", b"0123456789")
        for key, start, end, error in (
            ("no", 0, 1, NotFound),
            ("no", 0, None, NotFound),
            ("key", 5, 11, InvalidRange),
            ("key", 5, 5, InvalidRange),
            ("key", 5, None, InvalidRange),
        ):
            with pytest.raises(error):
                await store.open_range(key, start, end)
        assert bytes((await store.get("key")).data) == b"0123456789"

    async def test_the_same_over_fresh_connections(self, store: Store) -> None:
        await store.put("key", b"0123456789")
        fresh = store.on_fresh_connections()
        assert fresh is store.on_fresh_connections()
        for _ in range(2):
            assert bytes((await fresh.get_range("key", 2, 4)).data) == b"23"
        assert (fresh.url, fresh.endpoint) == (store.url, store.endpoint)

    # -- preconditions ---------------------------------------------------------------------------------------------

    async def test_if_match_accepts_the_object_that_it_names(self, store: Store) -> None:
        await store.put("key", b"0123456789")
        etag = (await store.head("key")).etag
        assert bytes((await store.get("key", if_match=etag)).data) == b"0123456789"
        assert bytes((await store.get_range("key", 2, 4, if_match=etag)).data) == b"23"

    async def test_if_match_refuses_another_object(self, store: Store) -> None:
        await store.put("key", b"0123456789")
        etag = (await store.head("key")).etag
        await store.put("key", b"abcdefghij")
        if etag is None:  # without an ETag nothing can be compared
            assert bytes((await store.get("key", if_match="any")).data) == b"abcdefghij"
            return
        for attempt in (
            store.get("key", if_match=etag),
            store.get_range("key", 2, 4, if_match=etag),
            store.get_range("key", 2, 2, if_match=etag),
        ):
            with pytest.raises(ObjectChanged) as caught:
                await attempt
            assert caught.value.key == "key"
