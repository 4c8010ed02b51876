"""The conformance tests of stores: inherit `StoreTests`, provide a store, and run pytest.

::

    class TestMyStore(StoreTests):
        @pytest.fixture
        def open_again(self, tmp_path):
            return lambda: MyStore(tmp_path)

The tests need pytest and pytest-asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest

from concurrent_loader.storage.errors import (
    AlreadyExists,
    ConfigurationError,
    InvalidRange,
    NotFound,
    StorageError,
    StoreError,
)
from concurrent_loader.storage.stores.objects import ObjectMeta
from concurrent_loader.storage.stores.store import Store
from concurrent_loader.storage.testing.conformance.store_lifecycle_tests import keys_of, pattern
from concurrent_loader.storage.testing.conformance.store_range_tests import StoreRangeTests

__all__ = ["ODD_KEYS", "StoreTests"]

ODD_KEYS = (
    "with space",
    " leading and trailing ",
    "ünïcödé/日本語/😀",
    "100%",
    "a%20b",
    "x%2Fy",
    "plus+plus",
    "tilde~",
    "hash#tag",
    "what?",
    "semi;colon:at@comma,",
    "amp&eq=",
    "star*[a]{b}",
    "quo'te\"s",
    "back\\slash",
    "<angle>|^`$!()",
    "dots../..x/...",
    ".hidden/.x",
    "deep/er/and/deep/er",
    "k" * 200,
)


@pytest.mark.asyncio
class StoreTests(StoreRangeTests):
    """The conformance tests of a store.

    Attributes:
        folders: Whether one key cannot be a folder of another, as on a drive (``"a"``, ``"a/b"``); None accepts both.
        exclusive: Whether `Store.put_if_absent` works; otherwise it must raise `ConfigurationError`.
        num_listed: Number of keys of a listing with more than one page.
    """

    folders: ClassVar[bool | None] = False
    exclusive: ClassVar[bool] = True
    num_listed: ClassVar[int] = 40

    # -- whole objects ---------------------------------------------------------------------------------------------

    async def test_get_returns_what_was_put(self, store: Store) -> None:
        data = pattern(100_000)
        await store.put("folder/object", data)
        result = await store.get("folder/object")
        assert bytes(result.data) == data
        assert isinstance(result.data, memoryview)
        assert result.data.format == "B"
        assert result.data.contiguous
        assert result.meta.key == "folder/object"
        assert result.meta.size == len(data)

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda b: memoryview(b"__" + b + b"__")[2:-2]])
    async def test_put_takes_any_buffer(self, store: Store, kind: Callable[[bytes], bytes]) -> None:
        await store.put("buffer", kind(b"some bytes"))
        assert bytes((await store.get("buffer")).data) == b"some bytes"

    async def test_an_empty_object(self, store: Store) -> None:
        await store.put("empty", b"")
        result = await store.get("empty")
        assert len(result.data) == 0
        assert result.meta.size == 0
        assert [(meta.key, meta.size) async for meta in store.list()] == [("empty", 0)]
        with pytest.raises(InvalidRange):
            await store.get_range("empty", 0, 1)

    async def test_put_replaces(self, store: Store) -> None:
        await store.put("key", b"a longer first version")
        before = await store.head("key")
        await store.put("key", b"second")
        after = await store.head("key")
        assert bytes((await store.get("key")).data) == b"second"
        assert after.size == len(b"second")
        assert before.etag is None or before.etag != after.etag

    async def test_large_objects(self, store: Store) -> None:
        data = pattern(self.large_bytes)
        meta = await store.put("large", data)
        assert meta.size == len(data)
        assert bytes((await store.get("large")).data) == data
        middle = len(data) // 2
        assert (
            bytes((await store.get_range("large", middle - 5000, middle + 5000)).data)
            == data[middle - 5000 : middle + 5000]
        )

    async def test_head_says_what_put_and_get_and_list_say(self, store: Store) -> None:
        put = await store.put("key", b"0123456789")
        head = await store.head("key")
        got = (await store.get("key")).meta
        (listed,) = [meta async for meta in store.list()]
        for meta in (put, got, listed):
            assert (meta.key, meta.size, meta.etag) == (head.key, head.size, head.etag)
        assert head.last_modified is None or head.last_modified.tzinfo is not None

    # -- exclusive writes ------------------------------------------------------------------------------------------

    async def test_put_if_absent(self, store: Store) -> None:
        if not self.exclusive:
            await self._check_refusal(store, b"first")
            return
        meta = await store.put_if_absent("key", b"first")
        assert meta.size == 5
        with pytest.raises(AlreadyExists) as caught:
            await store.put_if_absent("key", b"second")
        assert caught.value.key == "key"
        assert bytes((await store.get("key")).data) == b"first"
        await store.delete("key")
        await store.put_if_absent("key", b"third")
        assert bytes((await store.get("key")).data) == b"third"

    async def _check_refusal(self, store: Store, data: bytes, *, left: Sequence[str] = ()) -> None:
        """Checks that a store without exclusive writes refuses them, and writes nothing."""
        with pytest.raises(ConfigurationError):
            await store.put_if_absent("key", data)
        assert await keys_of(store) == list(left)

    async def test_put_if_absent_of_a_large_object(self, store: Store) -> None:
        data = pattern(self.large_bytes)
        if not self.exclusive:
            await self._check_refusal(store, data)
            return
        await store.put_if_absent("key", data)
        with pytest.raises(AlreadyExists):
            await store.put_if_absent("key", pattern(self.large_bytes, seed=1))
        assert bytes((await store.get("key")).data) == data

    async def test_put_if_absent_has_one_winner(self, store: Store) -> None:
        if not self.exclusive:
            await store.put("key", b"there")
            await self._check_refusal(store, b"writer 0", left=["key"])
            return
        results = await asyncio.gather(
            *(store.put_if_absent("key", b"writer %d" % n) for n in range(20)), return_exceptions=True
        )
        winners = [n for n, result in enumerate(results) if isinstance(result, ObjectMeta)]
        assert len(winners) == 1
        assert all(isinstance(result, AlreadyExists) for n, result in enumerate(results) if n != winners[0])
        assert bytes((await store.get("key")).data) == b"writer %d" % winners[0]

    # -- listing ---------------------------------------------------------------------------------------------------

    async def test_list_of_nothing(self, store: Store) -> None:
        assert await keys_of(store) == []
        assert await keys_of(store, "no/such/prefix") == []

    async def test_list_is_in_order_of_bytes(self, store: Store) -> None:
        # Folder by folder, "a/b" would come before "a.txt" and "a-b"; as UTF-16, the emoji before "\uffee".
        keys = ["a/b", "a.txt", "a-b", "a0", "B", "z", "a/b.c", "a/bc/d", "é", "￮", "😀", "a/B"]
        await asyncio.gather(*(store.put(key, b"x") for key in keys))
        assert await keys_of(store) == sorted(keys, key=str.encode)

    async def test_a_list_begins_after_a_text(self, store: Store) -> None:
        keys = ["a", "b/1", "b/2", "b/c/1", "b-", "c/x", "é"]
        for key in keys:
            await store.put(key, b"x")
        for prefix in ("", "b/", "c"):
            for after in ("a", "b", "b/", "b/1", "b/11", "b/c", "b/g", "c/x", "d", "\U0010ffff"):
                found = [meta.key async for meta in store.list(prefix, after=after)]
                wanted = [key for key in keys if key.startswith(prefix) and key.encode() > after.encode()]
                assert found == sorted(wanted, key=str.encode)

    async def test_a_prefix_is_plain_text(self, store: Store) -> None:
        keys = ["photos/a1", "photos/a2/x", "photos/b", "photos-old/a", "photo", "other"]
        for key in keys:
            await store.put(key, b"x")
        for prefix in (
            "",
            "p",
            "photo",
            "photos",
            "photos/",
            "photos/a",
            "photos/a2",
            "photos/a2/",
            "photos/a2/x",
            "q",
            "photos/a3",
        ):
            expected = sorted(key for key in keys if key.startswith(prefix))
            assert await keys_of(store, prefix) == sorted(expected, key=str.encode), prefix

    async def test_long_lists(self, store: Store) -> None:
        keys = [f"many/{n % 7}/{n:05d}" for n in range(self.num_listed)]
        gate = asyncio.Semaphore(64)

        async def put(key: str) -> None:
            async with gate:
                await store.put(key, key.encode())

        await asyncio.gather(*(put(key) for key in keys))
        assert await keys_of(store, "many/") == sorted(keys)
        assert await keys_of(store, "many/3/") == sorted(key for key in keys if key.startswith("many/3/"))

    async def test_a_list_may_be_left_early(self, store: Store) -> None:
        for n in range(5):
            await store.put(f"key{n}", b"x")
        listing = store.list()
        assert (await anext(listing)).key == "key0"
        await listing.aclose()  # type: ignore[attr-defined]
        assert len(await keys_of(store)) == 5

    # -- keys ------------------------------------------------------------------------------------------------------

    async def test_odd_keys(self, store: Store) -> None:
        for key in ODD_KEYS:
            await store.put(key, key.encode())
        assert await keys_of(store) == sorted(ODD_KEYS, key=str.encode)
        for key in ODD_KEYS:
            assert bytes((await store.get(key)).data) == key.encode()
            assert (await store.head(key)).key == key
            assert key in await keys_of(store, key)
            await store.delete(key)
        assert await keys_of(store) == []

    @pytest.mark.parametrize(
        "key",
        [
            "",
            "/",
            "/abs",
            "trailing/",
            "a//b",
            ".",
            "..",
            "../x",
            "a/../b",
            "a/./b",
            "a/..",
            "nul\x00",
            "new\nline",
            "k" * 1025,
        ],
    )
    async def test_refused_keys(self, store: Store, key: str) -> None:
        for attempt in (
            store.get(key),
            store.get_range(key, 0, 1),
            store.put(key, b"x"),
            store.put_if_absent(key, b"x"),
            store.head(key),
            store.delete(key),
        ):
            with pytest.raises(ConfigurationError):
                await attempt
        assert await keys_of(store) == []

    async def test_a_key_below_another(self, store: Store) -> None:
        await store.put("a", b"outer")
        if self.folders is None:
            # The server may accept or refuse the key; it must not raise a vendor's exception or damage another object.
            with contextlib.suppress(StorageError):
                await store.put("a/b", b"inner")
            assert bytes((await store.get("a")).data) == b"outer"
            return
        if self.folders:
            with pytest.raises(StoreError):
                await store.put("a/b", b"inner")
            with pytest.raises(NotFound):
                await store.get("a/b")
            assert await keys_of(store) == ["a"]
            await store.delete("a")
            await store.put("a/b", b"inner")
            with pytest.raises(StoreError):
                await store.put("a", b"outer")
            with pytest.raises(NotFound):
                await store.get("a")
            await store.delete("a/b")
            await store.put("a", b"outer")
        else:
            await store.put("a/b", b"inner")
            assert await keys_of(store) == ["a", "a/b"]
            assert bytes((await store.get("a/b")).data) == b"inner"
        assert bytes((await store.get("a")).data) == b"outer"

    async def test_missing_keys(self, store: Store) -> None:
        await store.put("folder/key", b"x")
        for key in ("missing", "folder", "folder/key2", "folder/key/below"):
            for attempt in (store.get(key), store.get_range(key, 0, 1), store.get_range(key, 0, 0), store.head(key)):
                with pytest.raises(NotFound) as caught:
                    await attempt
                assert caught.value.key == key
                assert caught.value.url == store.url
            await store.delete(key)
        assert await keys_of(store) == ["folder/key"]

    async def test_delete(self, store: Store) -> None:
        await store.put("a/b/c", b"x")
        await store.put("a/b/d", b"y")
        await store.delete("a/b/c")
        await store.delete("a/b/c")
        assert await keys_of(store) == ["a/b/d"]
        with pytest.raises(NotFound):
            await store.get("a/b/c")
