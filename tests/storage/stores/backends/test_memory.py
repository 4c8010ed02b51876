from __future__ import annotations

import secrets

import pytest

from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.stores.backends.memory import MemoryStore
from concurrent_loader.storage.testing.conformance.store_tests import StoreTests


class TestMemoryStore(StoreTests):
    num_listed = 2500

    @pytest.fixture
    def open_again(self):
        url = f"memory://{secrets.token_hex(8)}/below"
        return lambda: MemoryStore(url)


async def test_prefixes_of_one_name_share_objects():
    name = secrets.token_hex(8)
    outer, inner = MemoryStore(f"memory://{name}"), MemoryStore(f"memory://{name}/inner")
    await inner.put("key", b"x")
    assert [meta.key async for meta in outer.list()] == ["inner/key"]
    assert [meta.key async for meta in inner.list("k")] == ["key"]
    await outer.put("inner2/key", b"y")
    assert [meta.key async for meta in inner.list()] == ["key"]


async def test_names_do_not_share_objects():
    one, two = MemoryStore(f"memory://{secrets.token_hex(8)}"), MemoryStore(f"memory://{secrets.token_hex(8)}")
    await one.put("key", b"x")
    assert [meta.key async for meta in two.list()] == []


async def test_put_copies_what_the_caller_may_change():
    store = MemoryStore(f"memory://{secrets.token_hex(8)}")
    data = bytearray(b"before")
    await store.put("key", data)
    data[:] = b"after."
    assert bytes((await store.get("key")).data) == b"before"


@pytest.mark.parametrize("url", ["memory://", "memory:///key", "memory"])
def test_a_name_is_needed(url):
    with pytest.raises(ConfigurationError):
        MemoryStore(url)
