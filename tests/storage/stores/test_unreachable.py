"""Where nobody listens, or the host's name is wrong: each client's error names the server, and comes soon."""

from __future__ import annotations

import pickle
import time

import pytest

from concurrent_loader import ShardDataset
from concurrent_loader.storage.errors import ConnectionFailed
from concurrent_loader.storage.stores import open_store
from concurrent_loader.storage.testing.servers.startup import free_port

KEYS = {"access_key_id": "id", "secret_access_key": "secret", "region": "us-east-1"}


@pytest.mark.parametrize("client", ["native", "aiobotocore", "fsspec"])
@pytest.mark.parametrize(
    ("host", "said"),
    [("127.0.0.1", "connection refused"), ("localhost", "connection refused"), ("no-such-host.invalid", "resolve")],
)
async def test_the_server_is_named(client, host, said):
    endpoint_url = f"http://{host}:{free_port()}"
    async with open_store("s3://bucket", client=client, endpoint_url=endpoint_url, **KEYS) as store:
        with pytest.raises(
            ConnectionFailed, match=f"cannot connect to {endpoint_url}: .*{said}.*endpoint_url"
        ) as caught:
            await store.get("key")
    assert caught.value.is_unreachable
    assert pickle.loads(pickle.dumps(caught.value)).is_unreachable


def test_a_dataset_at_a_wrong_endpoint_fails_soon():
    began = time.monotonic()
    with pytest.raises(ConnectionFailed, match=r"cannot connect to http://127\.0\.0\.1:"):
        ShardDataset("s3://bucket/x", storage_options={**KEYS, "endpoint_url": f"http://127.0.0.1:{free_port()}"})
    assert time.monotonic() - began < 10  # it was 32 s; 2.5 s on a machine with nothing else to do
