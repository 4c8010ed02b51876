"""A list of batches is divided among ranks: every sample once, and each rank's part padded to the size of the batch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from concurrent_loader.order.batching import Batches
from concurrent_loader.order.listed_plan import BatchListPlan

pytestmark = pytest.mark.fast

BATCHES = Batches(np.array([5, 0, 3, 7, 1, 2, 9]), np.array([3, 4, 7]), np.array([8, 1, 3]))


def make_plan(groups: int) -> BatchListPlan:
    return BatchListPlan(
        bounds=np.array([0, 4, 10]), global_batch_size=8, seed=1, epoch=0, groups=groups, window=1, shuffle=True,
        fingerprint=0, draw=lambda epoch: BATCHES,
    )  # fmt: skip


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_share_a_batch_and_fill_it_to_its_size(groups: int, world_size: int) -> None:
    plan = make_plan(groups)
    for step, (given, size) in enumerate((([5, 0, 3], 8), ([7], 1), ([1, 2, 9], 3))):
        parts = [plan.batch(step, rank, world_size) for rank in range(world_size)]
        own = [part.sample[: len(part) - part.num_padded].tolist() for part in parts]
        assert sorted(itertools.chain(*own)) == sorted(given)
        for rank, (part, samples) in enumerate(zip(parts, own, strict=True)):
            wanted = (rank + 1) * size // world_size - rank * size // world_size
            assert len(part) == max(wanted, len(samples), 1)
            assert set(part.sample.tolist()) <= set(given)
            assert part.shard.tolist() == [int(sample >= 4) for sample in part.sample]
            assert part.row.tolist() == [sample - 4 * int(sample >= 4) for sample in part.sample]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_last_use_of_a_unit_is_the_last_batch_that_has_a_sample_of_it(world_size: int) -> None:
    plan = make_plan(2)
    for rank in range(world_size):
        parts = [plan.batch(step, rank, world_size) for step in range(3)]
        read = [set(part.shard[: len(part) - part.num_padded].tolist()) for part in parts]
        for unit in set().union(*read):
            assert plan.last_use_step(unit, rank, world_size) == max(step for step in range(3) if unit in read[step])
