"""What the tests of faults share: short deadlines, a truth to compare with, and clients behind a proxy that lies."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import xxhash

from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.storage import ShardWriter, open_store
from concurrent_loader.storage.fetch import RetryPolicy
from concurrent_loader.storage.stores.store import Store
from concurrent_loader.storage.testing import HttpFaults, LocalS3, http_faults
from concurrent_loader.storage.testing.faults.wire_faults import unharmed

NUM_SAMPLES = 240
MIB = 1 << 20


def short_deadlines(**changes: Any) -> RetryPolicy:
    """A policy whose whole life fits into a test; the only place here that knows its fields.

    A sound answer takes less than two seconds also on a machine with ten times as much to do as it has cores.
    """
    fields = {
        "max_attempts": 8,
        "base_delay_s": 0.02,
        "max_delay_s": 0.2,
        "first_byte_s": 2.0,
        "stall_window_s": 2.0,
        "min_bytes_per_s": 64 * 1024,
        "deadline_s": 30.0,
    }
    return RetryPolicy(**{**fields, **changes})


def payload(number: int) -> bytes:
    """The truth about one sample."""
    return np.random.default_rng(number).integers(0, 256, 700 + 3 * number, dtype=np.uint8).tobytes()


TRUTH = {number: xxhash.xxh3_64_intdigest(payload(number)) for number in range(NUM_SAMPLES)}


@dataclass(frozen=True)
class Objects:
    """Data in a bucket of the real server.

    Attributes:
        server: Direct.
        url: ``s3://bucket``.
        dataset_url: A data set of `NUM_SAMPLES` samples in about 40 shards.
        big: The bytes of the object ``big``, more than a transfer chunk.
    """

    server: LocalS3
    url: str
    dataset_url: str
    big: bytes = field(repr=False, default=b"")

    def options(self, through: Any = None) -> dict[str, str]:
        """Storage options, direct or by way of a proxy."""
        return (self.server if through is None else self.server.through(through)).storage_options()

    def on_store(self, use: Callable[[Store], Any]) -> Any:
        """Runs a coroutine function on a store that leads straight to the server; from a thread without a loop."""

        async def run() -> Any:
            async with open_store(self.url, client="aiobotocore", **self.options()) as store:
                return await use(store)

        return asyncio.run(run())


def fill(server: LocalS3, *, shard_size: str = "6KiB", num_samples: int = NUM_SAMPLES) -> Objects:
    """Makes a bucket with a data set in it."""
    url = server.make_bucket(f"wire-{secrets.token_hex(6)}")
    dataset_url = f"{url}/data"
    with ShardWriter(
        dataset_url,
        columns={"data": "bytes", "label": "int64"},
        shard_size=shard_size,
        storage_options=server.storage_options(),
    ) as writer:
        for number in range(num_samples):
            writer.write({"data": payload(number), "label": number})
    return Objects(server, url, dataset_url)


@dataclass
class Epochs:
    """Opens the data set as a user would and reads it, sample by sample against the truth."""

    objects: Objects
    client: str
    policy: Callable[..., RetryPolicy]
    arguments: dict[str, Any] = field(default_factory=dict)

    def open(self, options: Mapping[str, str], **changes: Any) -> ShardDataset:
        arguments = {"retry": self.policy(), **self.arguments, **changes}
        return ShardDataset(self.objects.dataset_url, client=self.client, storage_options=options, **arguments)

    def loader(self, dataset: ShardDataset, **changes: Any) -> ConcurrentDataLoader:
        arguments = {"batch_size": 16, "shuffle": True, "seed": 1, "num_threads": 2, **changes}
        return ConcurrentDataLoader(dataset, **arguments)

    def check(self, loader: ConcurrentDataLoader) -> None:
        """Every sample once, with the right bytes."""
        seen: list[int] = []
        for batch in loader:
            seen += checked(batch)
        assert sorted(seen) == list(range(len(loader.dataset)))


def checked(batch: Any) -> list[int]:
    """The numbers of a batch's samples, all of which are the true ones."""
    labels: list[int] = batch["label"].tolist()
    assert [xxhash.xxh3_64_intdigest(data) for data in batch["data"]] == [TRUTH[label] for label in labels]
    return labels


@pytest.fixture(autouse=True)
def _baseline(s3_server: LocalS3, no_leaks: None) -> None:
    """Whatever goes wrong in a test, nothing is left of it; asked for first, so that it looks last."""


@pytest.fixture
def policy() -> Callable[..., RetryPolicy]:
    return short_deadlines


@pytest.fixture(scope="session")
def make_objects() -> Callable[..., Objects]:
    return fill


@pytest.fixture(scope="session")
def objects(s3_server: LocalS3) -> Objects:
    """Read-only: what the whole session's tests read."""
    filled = fill(s3_server)
    big = np.random.default_rng(0).integers(0, 256, 9 * MIB + 12_345, dtype=np.uint8).tobytes()
    made = Objects(filled.server, filled.url, filled.dataset_url, big)
    made.on_store(lambda store: store.put("big", big))
    return made


@pytest.fixture
def own_objects(s3_server: LocalS3) -> Objects:
    """A test's own, to be spoilt."""
    return fill(s3_server)


@pytest.fixture
def proxy(s3_server: LocalS3, _baseline: None) -> Iterator[HttpFaults]:
    with http_faults(s3_server) as proxy:
        yield proxy
        proxy.script = unharmed


# What each client does about each fault is tested for both in tests/storage/stores and tests/storage/fetch.
@pytest.fixture(params=["native", pytest.param("aiobotocore", marks=pytest.mark.long)])
def client(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def epochs(objects: Objects, client: str) -> Epochs:
    return Epochs(objects, client, short_deadlines)


@pytest.fixture
def make_epochs(client: str) -> Callable[[Objects], Epochs]:
    return lambda objects: Epochs(objects, client, short_deadlines)


@pytest.fixture
def check_batch() -> Callable[[Any], list[int]]:
    return checked


@pytest.fixture(scope="session")
def truth() -> dict[int, int]:
    return TRUTH
