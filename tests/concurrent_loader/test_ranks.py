"""Several ranks over one data set: the same global batches, and each rank fetches its own part of the shards only."""

from __future__ import annotations

from uuid import uuid4

import pytest

from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.storage import ShardWriter

NUM_SAMPLES, GLOBAL_BATCH = 6_400, 64


@pytest.fixture(scope="module")
def url() -> str:
    """About ninety shards."""
    url = f"memory://{uuid4().hex}"
    with ShardWriter(url, columns={"label": "int64", "data": "bytes"}, shard_size="32KiB") as writer:
        for number in range(NUM_SAMPLES):
            writer.write({"label": number, "data": bytes(400)})
    return url


def epoch(url: str, rank: int, world_size: int, *, num_threads: int) -> tuple[list[list[int]], int, int]:
    """Returns a rank's batches, the shards that it fetched, and how many there are."""
    with ShardDataset(url) as dataset:
        before = dataset.fetch_stats.num_gets
        loader = ConcurrentDataLoader(
            dataset, GLOBAL_BATCH // world_size, shuffle=True, seed=4, rank=rank, world_size=world_size,
            num_threads=num_threads, shuffle_window=1000,
        )  # fmt: skip
        batches = [batch["label"].tolist() for batch in loader]
        return batches, dataset.fetch_stats.num_gets - before, len(dataset.manifest.shards)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_ranks_share_an_epoch_and_its_shards(url: str, world_size: int) -> None:
    whole, _, num_shards = epoch(url, 0, 1, num_threads=3)
    assert num_shards > 60
    ranks = [epoch(url, rank, world_size, num_threads=1 + rank % 2) for rank in range(world_size)]
    steps = zip(*(batches for batches, _, _ in ranks), strict=True)
    assert [[label for part in parts for label in part] for parts in steps] == whole
    fetched = [num_gets for _, num_gets, _ in ranks]
    groups = 8
    assert max(fetched) <= num_shards / world_size + groups // world_size + 1  # its groups, and their borders
    assert sum(fetched) <= num_shards + groups - 1
