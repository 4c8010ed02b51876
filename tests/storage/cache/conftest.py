from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from concurrent_loader.storage.cache.blocking_io import Drive
from concurrent_loader.storage.fetch.engine import FetchEngine
from concurrent_loader.storage.shards.format.builder import ShardBuilder
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.shards.manifest.manifest import ShardEntry
from concurrent_loader.storage.stores.backends.memory import MemoryStore
from concurrent_loader.storage.stores.store import Store

SCHEMA = Schema.parse({"image": "bytes", "label": "int64", "name": "str"})


def sample(number: int, *, num_bytes: int = 1000) -> dict[str, object]:
    image = np.random.default_rng(number).integers(0, 256, num_bytes, dtype=np.uint8).tobytes()
    return {"image": image, "label": number, "name": f"sample {number}"}


async def put_shard(store: Store, numbers: range, *, num_bytes: int = 1000) -> ShardEntry:
    """Writes a shard of the samples with these numbers; returns what a manifest says about it."""
    builder = ShardBuilder(SCHEMA)
    for number in numbers:
        builder.add(sample(number, num_bytes=num_bytes))
    finished = builder.finish()
    entry = ShardEntry(
        key=f"shards/{finished.digest}.cls", size=finished.size, num_samples=finished.num_samples,
        tail_start=finished.tail_start, digest=finished.digest, chunk_digests=finished.chunk_digests,
        payload_bytes=len(numbers) * num_bytes,
    )  # fmt: skip
    await store.put(entry.key, finished.tobytes())
    return entry


class FaultyDrive(Drive):
    """A drive on which calls fail as `faults` says (method → errno), or wait, or are counted."""

    def __init__(self) -> None:
        self.faults: dict[str, int] = {}
        self.calls: Counter[str] = Counter()
        self.before: Callable[[str], None] = lambda method: None


def _faulty(method: str) -> Callable[..., Any]:
    real = getattr(Drive, method)

    def call(self: FaultyDrive, *args: Any, **options: Any) -> Any:
        self.calls[method] += 1
        self.before(method)
        if method in self.faults:
            raise OSError(self.faults[method], os.strerror(self.faults[method]))
        return real(self, *args, **options)

    return call


METHODS = (
    "open", "open_again", "names", "status_of", "allocate", "truncate", "read", "write", "append", "touch", "rename",
    "remove", "lock",
)  # fmt: skip
for _method in METHODS:
    setattr(FaultyDrive, _method, _faulty(_method))


@pytest.fixture
def drive() -> FaultyDrive:
    return FaultyDrive()


PutShard = Callable[..., object]


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with MemoryStore(f"memory://{uuid4().hex}") as store:
        yield store


@pytest.fixture
def engine(store: Store) -> FetchEngine:
    return FetchEngine(store)


@pytest.fixture
async def entries(store: Store) -> list[ShardEntry]:
    """Five shards of twenty samples."""
    return [await put_shard(store, range(20 * n, 20 * n + 20)) for n in range(5)]


@pytest.fixture
async def big_entry(store: Store) -> ShardEntry:
    """A shard of three transfer chunks, whose samples straddle their borders."""
    return await put_shard(store, range(9), num_bytes=2_500_000)


@pytest.fixture
def make_sample() -> Callable[..., dict[str, object]]:
    return sample


@pytest.fixture
def put() -> Callable[..., Any]:
    return put_shard
