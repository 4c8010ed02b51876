"""Bodies that a network cuts or holds up, in front of a real server: both clients bring every byte once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import xxhash

from concurrent_loader.storage.errors import DeadlineExceeded
from concurrent_loader.storage.fetch import FetchEngine, RetryPolicy
from concurrent_loader.storage.stores import open_store
from concurrent_loader.storage.testing import LocalS3, toxiproxy

SIZE = 8 << 20
POLICY = RetryPolicy(base_delay_s=0.01, first_byte_s=10, stall_window_s=10, min_bytes_per_s=1 << 20)

pytestmark = [pytest.mark.s3, pytest.mark.usefixtures("toxiproxy_program")]


@pytest.mark.parametrize("client", ["native", "aiobotocore"])
@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        pytest.param("limit_data", {"bytes": 3_000_000}, id="cut"),
        pytest.param("slicer", {"average_size": 20_000, "size_variation": 10_000, "delay": 10}, id="sliced"),
    ],
)
async def test_every_byte_comes_once(
    client: str, kind: str, attributes: dict[str, int], s3_server: LocalS3, s3_bucket: Any, no_leaks: None
) -> None:
    data = random.Random(0).randbytes(SIZE)
    async with open_store(s3_bucket.url, **s3_bucket.storage_options) as store:
        await store.put("k", data)
    with toxiproxy(s3_server, latency_ms=0, bandwidth_mb_s=None) as proxy:
        proxy.add_toxic("fault", kind, **attributes)
        options = s3_server.through(proxy).storage_options()
        async with open_store(s3_bucket.url, client=client, **options) as store:
            engine = FetchEngine(store, retry=POLICY)
            taken = bytearray()

            async def write(position: int, piece: memoryview) -> None:
                assert position == len(taken)
                taken.extend(piece)

            await engine.fetch_into("k", 0, SIZE, write, digest=xxhash.xxh3_64_intdigest(data), object_size=SIZE)
            stats = engine.stats
    assert taken == data
    assert (stats.num_bytes, stats.num_refetched, stats.wasted_bytes) == (SIZE, 0, 0)
    assert stats.num_resumed >= (2 if kind == "limit_data" else 0)


@pytest.mark.parametrize("client", ["native", "aiobotocore"])
async def test_a_dribble_is_given_up_and_the_error_says_where(
    client: str, s3_server: LocalS3, s3_bucket: Any, toxiproxy_program: Path
) -> None:
    async with open_store(s3_bucket.url, **s3_bucket.storage_options) as store:
        await store.put("k", bytes(SIZE))
    with toxiproxy(s3_server, latency_ms=0, bandwidth_mb_s=None) as proxy:
        proxy.add_toxic("dribble", "bandwidth", rate=20)
        options = s3_server.through(proxy).storage_options()
        async with open_store(s3_bucket.url, client=client, **options) as store:
            policy = RetryPolicy(
                base_delay_s=0.01, stall_window_s=0.2, min_bytes_per_s=8 << 20, first_byte_s=5, deadline_s=6
            )
            with pytest.raises(DeadlineExceeded) as caught:
                await FetchEngine(store, retry=policy, hedge=None).fetch("k", 0, SIZE)
    error = caught.value
    assert (error.url, error.key, error.start, error.end) == (s3_bucket.url, "k", 0, SIZE)
    assert error.attempts is not None
    assert error.attempts >= 2
