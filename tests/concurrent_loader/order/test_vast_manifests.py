"""A small manifest may claim more samples than can be planned; no work is proportional to them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from concurrent_loader import ConcurrentDataLoader, Mixture, ShardDataset
from concurrent_loader.order import epoch_plan, shuffle
from concurrent_loader.storage.errors import ConfigurationError, DatasetChanged
from concurrent_loader.storage.fetch import RetryPolicy
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES
from concurrent_loader.storage.shards.manifest.manifest import Manifest, ShardEntry
from concurrent_loader.storage.shards.manifest.snapshots import commit
from concurrent_loader.storage.stores import open_store

VAST = 10**11
SHORT_PAUSES = RetryPolicy(base_delay_s=0.001, max_delay_s=0.01)


def write(url: str, num_samples: int, *, payload: bool) -> None:
    size = num_samples * (16 if payload else 1) + 200
    entry = ShardEntry(
        key="shards/vast.cls", size=size, num_samples=num_samples, tail_start=32, digest="0" * 32,
        chunk_digests=(0,) * -(-size // CHUNK_BYTES), payload_bytes=0,
    )  # fmt: skip

    async def put() -> None:
        async with open_store(url) as store:
            await store.put(entry.key, bytes(480))
            schema = {"data": "bytes"} if payload else {"flag": "bool"}
            await commit(store, Manifest(snapshot=1, schema=schema, shards=(entry,)))

    asyncio.run(put())


@pytest.fixture(params=[False, True], ids=["fixed", "payload"])
def vast(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ShardDataset]:
    write(str(tmp_path), VAST // (16 if request.param else 1), payload=request.param)
    with ShardDataset(str(tmp_path), retry=SHORT_PAUSES) as dataset:
        yield dataset


@pytest.fixture(autouse=True)
def planned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many samples were planned; more than a few million fail at once."""
    counts: list[int] = []
    shuffled_slice = shuffle.shuffled_slice

    def counted(
        key: int, num_items: int, window: int, start: int, stop: int
    ) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        counts.append(stop - start)
        assert sum(counts) < 20_000_000
        return shuffled_slice(key, num_items, window, start, stop)

    monkeypatch.setattr(epoch_plan, "shuffled_slice", counted)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_first_batch_fails_at_once(vast: ShardDataset, shuffle: bool, planned: list[int]) -> None:
    with pytest.raises(DatasetChanged):
        next(iter(ConcurrentDataLoader(vast, batch_size=256, shuffle=shuffle)))
    assert sum(planned) < 4_000_000


@pytest.mark.slow
def test_views_and_mixtures(vast: ShardDataset, tmp_path: Path) -> None:
    with pytest.raises(DatasetChanged):
        next(iter(ConcurrentDataLoader(vast.subset([3, 10**9]), batch_size=2, shuffle=True)))
    with pytest.raises(ConfigurationError, match="split"):
        vast.split([0.5, 0.5])
    with pytest.raises(DatasetChanged):
        vast[10**9]
    with pytest.raises(DatasetChanged):
        next(iter(ConcurrentDataLoader(Mixture([vast, vast], weights=[1, 1]), batch_size=16)))


def test_a_mixture_looks_ahead_in_bounds(tmp_path: Path, planned: list[int]) -> None:
    write(str(tmp_path), 10**8, payload=False)
    with ShardDataset(str(tmp_path), retry=SHORT_PAUSES) as dataset:
        mixture = Mixture([dataset, dataset.subset(range(5000))], weights=[1, 1])
        with pytest.raises(DatasetChanged):
            next(iter(ConcurrentDataLoader(mixture, batch_size=256, shuffle=True)))
    assert sum(planned) < 8_000_000
