from __future__ import annotations

import secrets

import fsspec
import pytest

from concurrent_loader.storage.errors import AccessDenied, ConfigurationError, NotFound, StoreError
from concurrent_loader.storage.stores.backends.fsspec import FsspecStore
from concurrent_loader.storage.stores.backends.open_store import open_store
from concurrent_loader.storage.testing.conformance.store_tests import StoreTests


class TestInMemory(StoreTests):
    folders = True

    @pytest.fixture
    def open_again(self):
        url = f"memory://{secrets.token_hex(8)}/below"
        yield lambda: FsspecStore(url)
        memory = fsspec.filesystem("memory")
        for path in [path for path in memory.store if path.startswith(url.removeprefix("memory:/"))]:
            del memory.store[path]


class TestOnTheDrive(StoreTests):
    folders = None  # empty folders stay, because not every file system's rmdir is safe
    exclusive = False

    @pytest.fixture
    def open_again(self, tmp_path):
        return lambda: FsspecStore(f"file://{tmp_path}/root")

    async def test_no_key_lands_in_a_folder_of_its_name(self, store):
        await store.put("a/b", b"inner")
        with pytest.raises(StoreError, match="folder"):
            await store.put("a", b"outer")
        await store.put("c", b"outer")
        with pytest.raises(StoreError, match="folder"):
            await store.put("c/d", b"inner")
        assert [meta.key async for meta in store.list()] == ["a/b", "c"]


@pytest.mark.s3
class TestS3fs(StoreTests):
    over_network = True
    folders = None  # MinIO takes both keys and lists only one of them
    large_bytes = 11 << 20

    @pytest.fixture
    def open_again(self, s3_bucket):
        options = {**s3_bucket.storage_options, "part_bytes": 5 << 20}
        return lambda: FsspecStore(f"{s3_bucket.url}/below", options)


@pytest.mark.s3
async def test_s3fs_does_not_read_another_key_for_a_version(s3_bucket):
    async with FsspecStore(f"{s3_bucket.url}/below", s3_bucket.storage_options) as store:
        await store.put("key", b"x")
        with pytest.raises(ConfigurationError, match="versionId"):
            await store.get("key?versionId=null")


@pytest.mark.s3
async def test_s3fs_with_its_own_options(s3_bucket):
    options = s3_bucket.storage_options
    own = {
        "endpoint_url": options["endpoint_url"],
        "key": options["access_key_id"],
        "secret": options["secret_access_key"],
        "client_kwargs": {"region_name": options["region"]},
        "default_block_size": 5 << 20,
    }
    async with FsspecStore(f"{s3_bucket.url}/below", own) as store:
        await store.put("key", b"x")
        assert [meta.key async for meta in store.list()] == ["key"]


@pytest.mark.s3
async def test_s3fs_errors(s3_server, s3_bucket):
    options = s3_bucket.storage_options
    async with FsspecStore("s3://no-such-bucket-here", options) as store:
        with pytest.raises(NotFound):
            await store.get("key")
        with pytest.raises(NotFound, match="bucket"):
            [meta async for meta in store.list()]
    if s3_server.kind == "minio":
        async with FsspecStore(s3_bucket.url, options | {"secret_access_key": "wrong" * 4}) as store:
            with pytest.raises(AccessDenied):
                await store.get("key")
    async with FsspecStore(s3_bucket.url, {"profile": "no-such-profile"}) as store:
        with pytest.raises(ConfigurationError, match="profile"):
            await store.get("key")


async def test_other_writers_changes_show_at_once(tmp_path):
    async with FsspecStore(f"file://{tmp_path}") as store:
        assert [meta.key async for meta in store.list()] == []
        (tmp_path / "key").write_bytes(b"x")
        assert [meta.key async for meta in store.list()] == ["key"]


async def test_chained_urls(tmp_path):
    (tmp_path / "key").write_bytes(b"0123456789")
    async with open_store(f"simplecache::file://{tmp_path}", cache_storage=str(tmp_path / "cache")) as store:
        assert bytes((await store.get_range("key", 2, 5)).data) == b"234"


async def test_credentials_in_the_url_are_refused_and_not_shown():
    with pytest.raises(ConfigurationError, match=r"storage options") as caught:
        FsspecStore("ftp://user:password-of-ftp@127.0.0.1/folder")
    assert "password-of-ftp" not in str(caught.value)
    assert FsspecStore("ftp://user@127.0.0.1/folder").url == "ftp://user@127.0.0.1/folder"


async def test_unknown_options_of_the_file_system():
    async with FsspecStore("s3://bucket", {"no_such_option": 1}) as store:
        with pytest.raises(ConfigurationError):
            await store.get("key")
