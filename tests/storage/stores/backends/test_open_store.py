from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.stores import LocalStore, MemoryStore, open_store
from concurrent_loader.storage.stores.backends.aiobotocore import AiobotocoreStore
from concurrent_loader.storage.stores.backends.fsspec import FsspecStore
from concurrent_loader.storage.stores.backends.obstore import ObstoreStore
from concurrent_loader.storage.stores.backends.s3 import S3Store


@pytest.mark.parametrize(
    ("url", "client", "kind"),
    [
        ("memory://name", "auto", MemoryStore),
        ("/some/path", "auto", LocalStore),
        ("./relative/path", "auto", LocalStore),
        ("tests/relative/path", "auto", LocalStore),
        ("path", "auto", LocalStore),
        (Path("relative/path"), "auto", LocalStore),
        (Path("/some/path"), "auto", LocalStore),
        ("file:///some/path", "auto", LocalStore),
        ("s3://bucket/prefix", "auto", S3Store),
        ("s3://bucket/prefix", "native", S3Store),
        ("s3://bucket/prefix", "aiobotocore", AiobotocoreStore),
        ("s3://bucket/prefix", "fsspec", FsspecStore),
        ("S3://bucket", "auto", S3Store),
        ("gs://bucket", "auto", ObstoreStore),
        ("gs://bucket", "obstore", ObstoreStore),
        ("az://container", "auto", ObstoreStore),
        ("memory://name", "fsspec", FsspecStore),
        ("file:///some/path", "fsspec", FsspecStore),
        ("https://example.org/data", "auto", FsspecStore),
        ("simplecache::https://example.org/data", "auto", FsspecStore),
    ],
)
def test_urls_and_clients(url, client, kind, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[4])
    store = open_store(url, client=client)
    assert type(store) is kind
    assert not store.url.endswith("/")
    again = pickle.loads(pickle.dumps(store))
    assert (type(again), again.url) == (kind, store.url)


@pytest.mark.parametrize(
    ("url", "client", "options"),
    [
        ("s3://bucket", "boto3", {}),
        ("s3://bucket", "obstore", {}),
        ("gs://bucket", "aiobotocore", {}),
        ("gs://bucket", "native", {}),
        ("https://example.org", "native", {}),
        ("simplecache::https://example.org", "native", {}),
        ("https://example.org", "obstore", {}),
        ("https://example.org", "aiobotocore", {}),
        ("/path", "obstore", {}),
        ("memory://name", "auto", {"endpoint_url": "http://x"}),
        ("/path", "auto", {"region": "x"}),
        ("nonsense://bucket", "auto", {}),
        ("s3://", "auto", {}),
        ("s3:///key", "auto", {}),
        ("s3://bucket/../other", "auto", {}),
        ("s3://bucket/a//b", "auto", {}),
        ("s3://bucket", "auto", {"no_such_option": 1}),
        ("s3://bucket", "auto", {"region": 1}),
        ("s3://bucket", "auto", {"max_connections": True}),
        ("s3://bucket", "auto", {"max_connections": 0}),
        ("s3://bucket", "auto", {"access_key_id": "id"}),
        ("s3://bucket", "auto", {"session_token": "t"}),
        ("s3://bucket", "auto", {"anonymous": True, "profile": "p"}),
        ("s3://bucket", "auto", {"anonymous": True, "access_key_id": "a", "secret_access_key": "s"}),
        ("s3://bucket", "auto", {"endpoint_url": "localhost:9000"}),
        ("s3://bucket", "auto", {"endpoint_url": "http://user:password@localhost"}),
        ("s3://bucket", "auto", {"part_bytes": "1MiB"}),
        ("s3://bucket", "auto", {"part_bytes": "much"}),
        ("s3://bucket", "auto", {"multipart_bytes": "6GiB"}),
        ("s3://bucket", "auto", {"list_page_keys": 1001}),
        ("gs://bucket", "auto", {"profile": "p"}),
    ],
)
def test_what_cannot_work_is_refused_at_once(url, client, options):
    with pytest.raises(ConfigurationError):
        open_store(url, client=client, **options)


def test_an_unknown_option_is_answered_with_the_valid_ones():
    with pytest.raises(ConfigurationError) as caught:
        open_store("s3://bucket", endpoint="http://localhost")
    assert "did you mean 'endpoint_url'?" in str(caught.value)
    for name in ("access_key_id", "anonymous", "profile", "region", "path_style"):
        assert name in str(caught.value)


def test_sizes_may_be_written():
    assert open_store("s3://bucket", part_bytes="8MiB")._options.num_part_bytes == 8 << 20


@pytest.mark.parametrize("client", ["native", "aiobotocore", "fsspec"])
def test_secrets_are_not_shown(client):
    store = open_store("s3://bucket", client=client, access_key_id="AKIA1", secret_access_key="s3cr3t")
    shown = repr(store) + str(store) + store.url + repr(getattr(store, "_options", ""))
    assert "s3cr3t" not in shown
    assert "AKIA1" not in shown


@pytest.mark.parametrize("url", ["s3://AKIA:s3cr3t@bucket/prefix", "gs://user:s3cr3t@bucket"])
def test_secrets_in_a_url_are_refused_and_not_repeated(url):
    with pytest.raises(ConfigurationError) as caught:
        open_store(url)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("value", [{"secret_access_key": 17}, {"secret_acces_key": "s3cr3t"}])
def test_errors_do_not_repeat_values(value):
    with pytest.raises(ConfigurationError) as caught:
        open_store("s3://bucket", **value)
    assert "s3cr3t" not in str(caught.value)
    assert "17" not in str(caught.value)


@pytest.mark.processes
def test_importing_storage_stores_imports_no_client():
    code = """
import sys, concurrent_loader.storage.stores
print(sorted({'obstore', 'aiobotocore', 'fsspec', 'torch'} & set(sys.modules)))
"""
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    ).stdout
    assert out.strip() == "[]"


@pytest.mark.processes
def test_the_default_client_loads_no_other(tmp_path):
    code = """
import asyncio, sys
from concurrent_loader.storage.errors import ConnectionFailed
from concurrent_loader.storage.stores import open_store

async def listed(store):
    try:
        return [meta async for meta in store.list()]
    except ConnectionFailed:
        return None

store = open_store("s3://bucket", endpoint_url="http://127.0.0.1:9", access_key_id="id", secret_access_key="secret")
assert asyncio.run(listed(store)) is None
others = {"aiobotocore", "aiohttp", "botocore", "fsspec", "obstore", "torch"}
print(type(store).__name__, sorted(others & set(sys.modules)))
"""
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    surroundings |= {"AWS_CONFIG_FILE": str(tmp_path / "no"), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")}
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=surroundings
    ).stdout
    assert out.strip() == "S3Store []"
