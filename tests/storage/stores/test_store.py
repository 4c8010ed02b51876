from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.errors import (
    ConfigurationError,
    InvalidRange,
    ObjectChanged,
    ProtocolViolation,
    StoreError,
    TruncatedBody,
)
from concurrent_loader.storage.stores.objects import GetResult, ObjectMeta, check_etag, check_key
from concurrent_loader.storage.stores.store import Store


class Liar(Store):
    """Says that its object has a size, and hands out other bytes."""

    def __init__(self, size, data, listed=()):
        super().__init__("liar://")
        self.size, self.data, self.listed = size, data, listed

    async def _get(self, key, span, if_match):
        return GetResult(memoryview(self.data), await self._head(key))

    async def _put(self, key, data, *, if_absent):
        return await self._head(key)

    async def _head(self, key):
        return ObjectMeta(key, self.size, '"1"')

    async def _list(self, prefix):
        for key in self.listed:
            yield ObjectMeta(key, 1)

    async def _delete(self, key):
        pass


@pytest.mark.parametrize("data", [b"", b"short", b"too long for that"])
async def test_a_whole_object_has_its_size(data):
    with pytest.raises(TruncatedBody):
        await Liar(10, data).get("key")


@pytest.mark.parametrize(
    ("data", "error"), [(b"", TruncatedBody), (b"123", TruncatedBody), (b"12345", ProtocolViolation)]
)
async def test_a_range_has_its_length(data, error):
    with pytest.raises(error) as caught:
        await Liar(10, data).get_range("key", 2, 6)
    assert caught.value.retryable
    assert (caught.value.start, caught.value.end, caught.value.got) == (2, 6, len(data))


async def test_a_range_beyond_the_object_is_no_truncation():
    with pytest.raises(InvalidRange) as caught:
        await Liar(10, b"12").get_range("key", 8, 12)
    assert caught.value.got == 10


async def test_a_zero_length_range_honours_if_match():
    with pytest.raises(ObjectChanged):
        await Liar(10, b"").get_range("key", 2, 2, if_match='"2"')
    assert len((await Liar(10, b"").get_range("key", 2, 2, if_match='"1"')).data) == 0


@pytest.mark.parametrize("key", ["a//b", "/a", "../up", "a/", "new\nline", "surrogate\udc80"])
async def test_a_list_never_skips_a_key_that_it_cannot_name(key):
    with pytest.raises(StoreError, match="invalid key"):
        [meta async for meta in Liar(1, b"", listed=["good", key]).list()]


async def test_a_store_without_a_way_to_pickle_says_so():
    with pytest.raises(TypeError, match="Liar"):
        pickle.dumps(Liar(1, b""))


def test_without_etags_nothing_can_be_compared():
    check_etag(ObjectMeta("key", 1), '"1"', url="x")
    check_etag(ObjectMeta("key", 1, '"1"'), None, url="x")


@given(st.text(max_size=40))
def test_what_check_key_accepts_is_safe_as_a_path(key):
    try:
        check_key(key)
    except ConfigurationError:
        return
    segments = key.split("/")
    assert all(segment not in ("", ".", "..") for segment in segments)
    assert key.encode()
    assert not any(ord(character) < 32 or ord(character) == 127 for character in key)
