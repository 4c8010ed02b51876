"""What a resume costs: the work and the requests of the next batch, never those of the batches before it."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.order import shuffle
from concurrent_loader.order.epoch_plan import EpochPlan
from concurrent_loader.storage import ShardWriter

NUM_SAMPLES, BATCH = 12_000, 16


@pytest.fixture(scope="module")
def many() -> Iterator[ShardDataset]:
    """About a hundred shards."""
    url = f"memory://{uuid4().hex}"
    with ShardWriter(url, columns={"label": "int64", "data": "bytes"}, shard_size="64KiB") as writer:
        for number in range(NUM_SAMPLES):
            writer.write({"label": number, "data": bytes(480)})
    with ShardDataset(url) as dataset:
        assert len(dataset.manifest.shards) > 50
        yield dataset


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.9])
def test_the_first_batch_fetches_its_own_shards_only(many: ShardDataset, share: float) -> None:
    loader = ConcurrentDataLoader(many, BATCH, shuffle=True, shuffle_window=600, prefetch_bytes=0, prefetch_batches=1)
    step = int(share * len(loader))
    loader.load_state_dict({**loader.state_dict(), "step": step})
    gets = many.fetch_stats.num_gets
    batch = next(iter(loader))
    plan = loader._plan(0)
    assert batch["label"].tolist() == plan.batch(step).sample.tolist()
    own, following = (set(plan.batch(which).shard.tolist()) for which in (step, step + 1))
    # Its shards, and perhaps those of the batch that was begun when it was taken.
    assert len(own) <= many.fetch_stats.num_gets - gets <= len(own | following) <= 2 * BATCH


def test_planning_the_millionth_sample_takes_the_work_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    real = shuffle.hash_items

    def counting(key: int, start: int, stop: int) -> object:
        hashed.append(stop - start)
        return real(key, start, stop)

    monkeypatch.setattr(shuffle, "hash_items", counting)
    work = {}
    for sample in (0, 1_000_000, 1_900_000):
        plan = EpochPlan(samples_per_unit=[100] * 20_000, global_batch_size=250, groups=5, window=2000)
        list(plan.units_in_order(7999))  # the shards' order is made once an epoch
        hashed.clear()
        next(plan.batches(sample // 250))
        next(plan.units_in_order(sample // 250))
        work[sample] = sum(hashed)
    assert max(work.values()) <= 1.02 * work[0] + 4 * 2000


def test_an_iterator_is_as_long_as_what_is_still_to_come(dataset: ShardDataset) -> None:
    loader = ConcurrentDataLoader(dataset, batch_size=20, shuffle=True)
    whole = len(loader)
    batches = iter(loader)
    assert len(batches) == whole
    for given in range(1, 4):
        next(batches)
        assert len(batches) == whole - given
    again = ConcurrentDataLoader(dataset, batch_size=20, shuffle=True)
    again.load_state_dict(loader.state_dict())
    rest = iter(again)
    assert (len(again), len(rest)) == (whole, whole - 3)
    assert len(list(rest)) == whole - 3
    assert (len(rest), len(iter(again))) == (0, whole)
    batches.close()
    assert len(batches) == 0
    assert len(iter(loader)) == whole  # of the next epoch
