from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from time import process_time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.order.epoch_plan import EpochPlan


@st.composite
def plans(draw: st.DrawFn) -> EpochPlan:
    return EpochPlan(
        samples_per_unit=np.array(draw(st.lists(st.integers(0, 12), min_size=1, max_size=20)), dtype=np.int64),
        global_batch_size=draw(st.integers(1, 24)),
        seed=draw(st.integers(0, 99)),
        groups=draw(st.sampled_from([None, 1, 2, 4])),
        shuffle=draw(st.booleans()),
        window=draw(st.integers(1, 80)),
        last_batch=draw(st.sampled_from(["drop", "short"])),
    )


@given(plans())
def test_the_last_use_is_a_bound_for_every_rank_and_agrees_with_the_one_shard_form(plan: EpochPlan) -> None:
    uses = plan.unit_usage()
    for index in plan.batches():
        assert (uses.last_step[index.shard] >= index.step).all()
    for shard in range(plan.num_units):
        one = plan.last_use_step(shard)
        assert min(uses.last_step[shard], plan.num_steps() - 1) == one or one == -1
    used = np.asarray(plan.samples_per_unit) > 0
    assert np.array_equal(np.isfinite(uses.first_step), used)
    assert np.array_equal(uses.last_step >= 0, used)
    assert (uses.first_step[used] <= uses.last_step[used] + 1).all()


@given(plans(), st.sampled_from([1, 2, 3, 4, 8]))
def test_shared_are_the_shards_that_two_ranks_read(plan: EpochPlan, world_size: int) -> None:
    plan = replace(plan, global_batch_size=plan.global_batch_size * world_size)
    readers: dict[int, set[int]] = {}
    for rank in range(world_size):
        for index in plan.batches(0, rank, world_size):
            for shard in index.shard.tolist():
                readers.setdefault(shard, set()).add(rank)
    shared = plan.unit_usage(world_size).shared
    # The last, partial batch apart, a rank that may read a shard is one that owns a part of its group.
    for shard, ranks in readers.items():
        assert shared[shard] or len(ranks) == 1


def test_the_expected_first_uses_are_in_the_order_of_the_real_ones() -> None:
    plan = EpochPlan(samples_per_unit=np.full(400, 50), global_batch_size=64, groups=2, window=2_000, seed=3)
    real = np.full(400, np.inf)
    for step, shard in plan.units_in_order():
        real[shard] = step
    expected = plan.unit_usage().first_step
    assert np.abs(expected - real).mean() < 3  # of 312 steps; the window is 31 of them
    assert np.corrcoef(expected, real)[0, 1] > 0.999


def test_a_permutation_of_everything_is_expected_early_and_lasts_to_the_end() -> None:
    plan = EpochPlan(samples_per_unit=np.full(10, 9), global_batch_size=10, groups=1, window=90)
    uses = plan.unit_usage()
    assert np.allclose(uses.first_step, uses.first_step[0])
    assert (uses.last_step == plan.num_steps() - 1).all()


def test_an_epoch_without_shuffling_goes_straight_on() -> None:
    plan = EpochPlan(samples_per_unit=np.full(6, 10), global_batch_size=5, shuffle=False)
    uses = plan.unit_usage()
    assert all(before <= after for before, after in pairwise(uses.first_step.tolist()))
    assert uses.last_step.tolist() == [1, 3, 5, 7, 9, 11]
    assert not uses.shared.any()


def test_a_hundred_thousand_shards_cost_little() -> None:
    plan = EpochPlan(samples_per_unit=np.full(100_000, 1_000), global_batch_size=1_024, window=131_072)
    began = process_time()
    plan.unit_usage(8)
    assert process_time() - began < 2  # takes some 50 ms
