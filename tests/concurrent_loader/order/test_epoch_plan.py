"""The order of an epoch: every sample once, the same for any number of ranks, reachable from anywhere."""

from __future__ import annotations

import itertools
import math
import pickle
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from concurrent_loader.order import shuffle
from concurrent_loader.order.epoch_plan import EpochPlan
from concurrent_loader.order.protocol import BatchIndex
from concurrent_loader.storage.errors import ConfigurationError

WORLD_SIZES = (1, 2, 4, 8)


@st.composite
def plans(draw: st.DrawFn, **fixed: Any) -> EpochPlan:
    """A plan whose global batch can be shared by 1, 2, 4 or 8 ranks."""
    arguments: dict[str, Any] = {
        "samples_per_unit": draw(st.lists(st.integers(0, 30), max_size=12)),
        "global_batch_size": 8 * draw(st.integers(1, 4)),
        "seed": draw(st.integers(0, 2**64 - 1)),
        "epoch": draw(st.integers(0, 5)),
        "groups": draw(st.none() | st.integers(1, 40)),
        "shuffle": draw(st.booleans()),
        "window": draw(st.integers(1, 400)),
        "last_batch": draw(st.sampled_from(["drop", "short", "pad"])),
    }
    return EpochPlan(**{**arguments, **fixed})


def all_batches(plan: EpochPlan, world_size: int) -> list[list[BatchIndex]]:
    return [list(plan.batches(0, rank, world_size)) for rank in range(world_size)]


def real_samples(batch: BatchIndex) -> list[int]:
    return batch.sample[: len(batch) - batch.num_padded].tolist()


def same(left: BatchIndex, right: BatchIndex) -> bool:
    return (left.step, left.num_padded) == (right.step, right.num_padded) and all(
        np.array_equal(getattr(left, name), getattr(right, name)) for name in ("shard", "row", "sample")
    )


# -- every sample once -------------------------------------------------------------------------------------------------


@given(plans(), st.sampled_from(WORLD_SIZES))
def test_every_sample_exactly_once(plan: EpochPlan, world_size: int) -> None:
    seen = sorted(s for rank in all_batches(plan, world_size) for batch in rank for s in real_samples(batch))
    if plan.last_batch == "drop":
        assert len(seen) == len(set(seen)) == plan.num_samples - plan.num_samples % plan.global_batch_size
        assert set(seen) <= set(range(plan.num_samples))
    else:
        assert seen == list(range(plan.num_samples))


@given(plans(), st.sampled_from(WORLD_SIZES))
def test_shard_row_and_sample_agree(plan: EpochPlan, world_size: int) -> None:
    lengths = np.asarray(plan.samples_per_unit, dtype=np.int64)
    firsts = np.cumsum(lengths) - lengths
    for batch in itertools.chain(*all_batches(plan, world_size)):
        assert (batch.row < lengths[batch.shard]).all()
        assert (firsts[batch.shard] + batch.row == batch.sample).all()
        assert batch.shard.dtype == batch.row.dtype == batch.sample.dtype == np.int64


@given(plans(), st.sampled_from(WORLD_SIZES))
def test_steps_and_sizes(plan: EpochPlan, world_size: int) -> None:
    per_rank = plan.global_batch_size // world_size
    for rank, batches in enumerate(all_batches(plan, world_size)):
        assert len(batches) == plan.num_steps(rank, world_size)
        assert [batch.step for batch in batches] == list(range(len(batches)))
        assert all(len(batch) > 0 for batch in batches)
        whole = batches if plan.last_batch != "short" else batches[:-1]
        assert all(len(batch) == per_rank for batch in whole)
        assert len(batches) == plan.max_steps
        if plan.last_batch != "pad":
            assert all(batch.num_padded == 0 for batch in whole)
        if plan.last_batch == "short":
            assert all(batch.num_padded == 0 or (len(batch), batch.num_padded) == (1, 1) for batch in batches)


@given(plans(last_batch="pad"), st.sampled_from(WORLD_SIZES))
def test_padding_is_counted_and_repeats_samples_of_the_epoch(plan: EpochPlan, world_size: int) -> None:
    ranks = all_batches(plan, world_size)
    padded = sum(batch.num_padded for rank in ranks for batch in rank)
    assert padded == -plan.num_samples % plan.global_batch_size if plan.num_samples else padded == 0
    if plan.num_samples >= plan.global_batch_size and padded:
        first = set(plan.batch(0).sample.tolist())
        assert all(set(rank[-1].sample[len(rank[-1]) - rank[-1].num_padded :].tolist()) <= first for rank in ranks)


def test_a_rank_without_a_share_of_the_last_batch_gets_one_padding_sample() -> None:
    plan = EpochPlan(samples_per_unit=[18], global_batch_size=8, last_batch="short")
    assert [plan.num_steps(rank, 4) for rank in range(4)] == [3, 3, 3, 3]
    last = [plan.batch(2, rank, 4) for rank in range(4)]
    assert [(len(batch), batch.num_padded) for batch in last] == [(1, 1), (1, 0), (1, 1), (1, 0)]
    for rank in (0, 2):  # of the samples that it had in its first batch: their shards are its own
        assert last[rank].sample[0] in plan.batch(0, rank, 4).sample
        assert all(map(same, plan.batches(2, rank, 4), last[rank : rank + 1]))


# -- the same for any number of ranks ----------------------------------------------------------------------------------


@given(plans())
def test_global_batches_do_not_depend_on_the_number_of_ranks(plan: EpochPlan) -> None:
    whole = list(plan.batches())
    for world_size in WORLD_SIZES[1:]:
        ranks = all_batches(plan, world_size)
        for batch in whole:
            shares = [rank[batch.step] for rank in ranks if batch.step < len(rank)]
            # Padding stands at each rank's end; real samples keep their order.
            if plan.last_batch == "pad":
                assert sorted(s for share in shares for s in share.sample) == sorted(batch.sample)
            elif not any(share.num_padded for share in shares):
                assert np.concatenate([share.sample for share in shares]).tolist() == batch.sample.tolist()
            assert [s for share in shares for s in real_samples(share)] == real_samples(batch)


@given(plans(), st.sampled_from(WORLD_SIZES))
def test_ranks_that_divide_the_groups_share_few_shards(plan: EpochPlan, world_size: int) -> None:
    if plan.num_groups % world_size:
        return
    pairs = sum(len({int(s) for b in rank for s in b.shard}) for rank in all_batches(plan, world_size))
    assert pairs <= plan.num_units + plan.num_groups


@pytest.mark.parametrize("world_size", [3, 5, 16])
def test_the_number_of_ranks_must_divide_the_global_batch(world_size: int) -> None:
    plan = EpochPlan(samples_per_unit=[100], global_batch_size=8)
    for call in (plan.num_steps, lambda r, w: plan.batch(0, r, w), lambda r, w: plan.batches(0, r, w)):
        with pytest.raises(ConfigurationError, match="divide"):
            call(0, world_size)


# -- reachable from anywhere -------------------------------------------------------------------------------------------


@given(plans(), st.sampled_from(WORLD_SIZES), st.data())
def test_seek_equals_iteration(plan: EpochPlan, world_size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, world_size - 1))
    batches = list(plan.batches(0, rank, world_size))
    for step, batch in enumerate(batches):
        assert same(plan.batch(step, rank, world_size), batch)
    start = data.draw(st.integers(0, len(batches)))
    tail = list(plan.batches(start, rank, world_size))
    assert len(tail) == len(batches) - start
    assert all(map(same, tail, batches[start:]))


def test_iteration_is_the_same_across_block_borders(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = EpochPlan(samples_per_unit=[37] * 40, global_batch_size=24, groups=8, window=64, seed=3)
    whole = [batch.sample.tolist() for batch in plan.batches()]
    monkeypatch.setattr("concurrent_loader.order.epoch_plan._BLOCK_SAMPLES", 24)
    assert [batch.sample.tolist() for batch in plan.batches()] == whole
    assert list(plan.units_in_order(5, 1, 2)) == list(plan.units_in_order(5, 1, 2))


def test_a_batch_costs_the_same_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = EpochPlan(samples_per_unit=[1000] * 10_000, global_batch_size=250, groups=10, window=4096)
    plan.batch(0)
    hashed: list[int] = []
    real = shuffle.hash_items

    def counting(key: int, start: int, stop: int) -> object:
        hashed.append(stop - start)
        return real(key, start, stop)

    monkeypatch.setattr(shuffle, "hash_items", counting)
    costs = []
    for step in (0, 10, 4000, 39_999):
        hashed.clear()
        plan.batch(step)
        costs.append(sum(hashed))
    assert max(costs) <= 250 + 10 * 2 * 410
    assert min(costs) >= 250


def test_iteration_hashes_each_sample_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = EpochPlan(samples_per_unit=[100] * 4000, global_batch_size=256, window=16_384)
    hashed: list[int] = []
    real = shuffle.hash_items

    def counting(key: int, start: int, stop: int) -> object:
        hashed.append(stop - start)
        return real(key, start, stop)

    monkeypatch.setattr(shuffle, "hash_items", counting)
    assert sum(len(batch) for batch in plan.batches()) == 400_000
    assert sum(hashed) < 2.1 * 400_000


def test_planning_takes_no_memory_per_sample() -> None:
    plan = EpochPlan(samples_per_unit=[2**20] * 2**20, global_batch_size=1024, window=4096)  # 2**40 samples
    last = plan.batch(plan.num_steps() - 1)
    assert len(set(last.sample.tolist())) == 1024
    assert last.sample.max() < 2**40


# -- shards ------------------------------------------------------------------------------------------------------------


@given(plans(), st.sampled_from(WORLD_SIZES), st.data())
def test_uses_are_within_the_bounds(plan: EpochPlan, world_size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, world_size - 1))
    uses: dict[int, list[int]] = {}
    for batch in plan.batches(0, rank, world_size):
        for shard in set(batch.shard[: len(batch) - batch.num_padded].tolist()):
            uses.setdefault(shard, []).append(batch.step)
    num_steps = plan.num_steps(rank, world_size)
    for shard in range(plan.num_units):
        last = plan.last_use_step(shard, rank, world_size)
        if shard in uses:
            assert max(uses[shard]) <= last < num_steps
        else:
            assert -1 <= last < num_steps


@given(plans(), st.sampled_from(WORLD_SIZES), st.data())
def test_units_in_order(plan: EpochPlan, world_size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, world_size - 1))
    start = data.draw(st.integers(0, plan.num_steps(rank, world_size)))
    expected: dict[int, int] = {}
    for batch in plan.batches(start, rank, world_size):
        for shard in batch.shard[: len(batch) - batch.num_padded].tolist():
            expected.setdefault(shard, batch.step)
    assert list(plan.units_in_order(start, rank, world_size)) == [(step, shard) for shard, step in expected.items()]


@given(plans(), st.sampled_from(WORLD_SIZES))
def test_uses_are_counted(plan: EpochPlan, world_size: int) -> None:
    exact = plan.num_groups % world_size == 0 and (
        plan.last_batch != "drop" or plan.num_samples % plan.global_batch_size == 0
    )
    for rank in range(world_size):
        uses = np.zeros(plan.num_units, dtype=np.int64)
        for batch in plan.batches(0, rank, world_size):
            np.add.at(uses, batch.shard[: len(batch) - batch.num_padded], 1)
        most = [plan.max_samples_used(shard, rank, world_size) for shard in range(plan.num_units)]
        assert all(used <= bound for used, bound in zip(uses.tolist(), most, strict=True))
        if exact:
            assert uses.tolist() == most


def test_bounds_on_use_are_useful() -> None:
    plan = EpochPlan(samples_per_unit=[50] * 2000, global_batch_size=100, groups=1, window=500, seed=1)
    first_uses = {shard: step for step, shard in plan.units_in_order()}
    spans = [plan.last_use_step(shard) - first_uses[shard] + 1 for shard in range(2000)]
    assert max(spans) <= (2 * 500 + 50) // 100 + 2  # two windows and the shard itself, of an epoch of 1,000 steps


# -- order -------------------------------------------------------------------------------------------------------------


def order_of(**arguments: Any) -> list[int]:
    plan = EpochPlan(**{"samples_per_unit": [20] * 10, "global_batch_size": 8, "window": 64, **arguments})
    return np.concatenate([batch.sample for batch in plan.batches()]).tolist()


def test_seeds_and_epochs_give_different_orders() -> None:
    orders = [tuple(order_of(seed=seed, epoch=epoch)) for seed in range(5) for epoch in range(5)]
    assert len(set(orders)) == 25
    assert order_of(seed=3, epoch=4) == order_of(seed=3, epoch=4)


def test_fingerprint_and_policy_do_not_change_the_order() -> None:
    assert order_of(fingerprint=1) == order_of(fingerprint=2) == order_of(last_batch="drop")


def test_without_shuffle_the_order_is_the_data_sets() -> None:
    assert order_of(shuffle=False, epoch=3) == list(range(200))
    plan = EpochPlan(samples_per_unit=[20] * 10, global_batch_size=8, shuffle=False)
    assert plan.num_groups == 1
    assert plan.batch(3).sample.tolist() == list(range(24, 32))
    grouped = EpochPlan(samples_per_unit=[20] * 10, global_batch_size=8, shuffle=False, groups=2)
    assert grouped.batch(0).sample.tolist() == [0, 1, 2, 3, 100, 101, 102, 103]


def test_golden_order() -> None:
    """Pins the order: whoever changes it breaks the resume of every saved state, and must raise PlanState.version."""
    plan = EpochPlan(
        samples_per_unit=[5, 0, 7, 4, 6, 3],
        global_batch_size=8,
        groups=4,
        window=12,
        seed=42,
        epoch=1,
        last_batch="pad",
    )
    batches = [batch.sample.tolist() for batch in plan.batches()]
    assert batches == [
        [5, 6, 11, 12, 1, 2, 18, 19],
        [8, 7, 13, 15, 3, 16, 20, 21],
        [9, 10, 14, 0, 4, 17, 22, 23],
        [24, 5, 6, 11, 12, 1, 2, 18],
    ]
    assert [batch.num_padded for batch in plan.batches()] == [0, 0, 0, 7]
    full = EpochPlan(samples_per_unit=[4, 4, 4], global_batch_size=6, groups=1, window=12, seed=7)
    assert [batch.sample.tolist() for batch in full.batches()] == [[5, 3, 0, 1, 4, 9], [8, 7, 2, 6, 11, 10]]


def splitmix64(key: int, item: int) -> int:
    mixed = (key + (item + 1) * 0x9E3779B97F4A7C15) % 2**64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
    return mixed ^ mixed >> 31


def slow_order(lengths: list[int], *, batch: int, groups: int, window: int, seed: int, epoch: int) -> list[list[int]]:
    """docs/explanation/order.md written down a second time, in plain integers and without any seeking."""

    def key(domain: bytes, *numbers: int) -> int:
        return xxhash.xxh3_64_intdigest(struct.pack(f"<8s{len(numbers)}Q", domain, *numbers))

    shards_key = key(b"shards", seed, epoch)
    order = sorted(range(len(lengths)), key=lambda shard: (splitmix64(shards_key, shard), shard))
    first = list(itertools.accumulate(lengths, initial=0))
    row = [first[shard] + i for shard in order for i in range(lengths[shard])]
    num_groups = math.gcd(batch, groups) if len(row) >= math.gcd(batch, groups) else 1
    num_full, rest = divmod(len(row), batch)
    queues = []
    for g in range(num_groups):
        start, stop = (h * num_full * (batch // num_groups) + h * rest // num_groups for h in (g, g + 1))
        own, size, reach = row[start:stop], stop - start, -(-window // num_groups)
        group_key = key(b"window", seed, epoch, g)
        hashes = [splitmix64(group_key, i) for i in range(size)]
        sort_keys = hashes if reach >= size else [(i << 22) + ((h >> 32) * reach >> 10) for i, h in enumerate(hashes)]
        queues.append([own[i] for i in sorted(range(size), key=lambda i: (sort_keys[i], i))])
    share = batch // num_groups
    return [
        [sample for queue in queues for sample in queue[b * share : (b + 1) * share]]
        for b in range(-(-len(row) // batch))
    ]


@given(
    lengths=st.lists(st.integers(0, 30), max_size=12),
    batch=st.integers(1, 32),
    groups=st.integers(1, 16),
    window=st.integers(1, 400),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**20),
)
def test_order_is_the_documented_one(
    lengths: list[int], batch: int, groups: int, window: int, seed: int, epoch: int
) -> None:
    plan = EpochPlan(
        samples_per_unit=lengths, global_batch_size=batch, groups=groups, window=window, seed=seed, epoch=epoch
    )
    expected = slow_order(lengths, batch=batch, groups=groups, window=window, seed=seed, epoch=epoch)
    assert [index.sample.tolist() for index in plan.batches()] == expected


def class_distance(window: int, *, per_shard: int, num_samples: int = 20_000, num_classes: int = 20) -> float:
    """Mean total variation between the classes of a batch and those of the dataset, for data sorted by class."""
    lengths = [per_shard] * (num_samples // per_shard)
    plan = EpochPlan(samples_per_unit=lengths, global_batch_size=200, window=window, last_batch="drop")
    distances = []
    for batch in plan.batches():
        classes = np.bincount(batch.sample * num_classes // num_samples, minlength=num_classes)
        distances.append(np.abs(classes / len(batch) - 1 / num_classes).sum() / 2)
    return float(np.mean(distances))


def test_sorted_data_is_mixed() -> None:
    permuted = class_distance(20_000, per_shard=50)
    assert 0.10 < permuted < 0.14  # what 200 draws from 20 classes give
    assert class_distance(1, per_shard=50) > 3 * permuted  # shards are permuted, samples are not
    by_shards_in_window = [class_distance(4_000, per_shard=per_shard) for per_shard in (500, 50, 5)]
    assert by_shards_in_window == sorted(by_shards_in_window, reverse=True)
    assert by_shards_in_window[-1] < 1.2 * permuted


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"global_batch_size": 0},
        {"global_batch_size": True},
        {"window": 0},
        {"window": "big"},
        {"groups": 0},
        {"seed": -1},
        {"seed": 2**64},
        {"epoch": -1},
        {"last_batch": "keep"},
        {"samples_per_unit": [1, -1]},
        {"samples_per_unit": [1.5]},
        {"samples_per_unit": [[1]]},
        {"samples_per_unit": [2**40, 1]},
        {"samples_per_unit": [2**39], "window": 2**36},
    ],
)
def test_arguments_that_cannot_work(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        EpochPlan(**{"samples_per_unit": [10], "global_batch_size": 2, **arguments})


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0]])
@pytest.mark.parametrize("last_batch", ["drop", "short", "pad"])
def test_empty_data_sets(lengths: list[int], last_batch: Any) -> None:
    plan = EpochPlan(samples_per_unit=lengths, global_batch_size=8, last_batch=last_batch)
    assert plan.num_steps() == 0
    assert list(plan.batches()) == list(plan.units_in_order()) == []
    assert all(plan.last_use_step(shard) == -1 for shard in range(plan.num_units))


def test_plans_pickle_and_keep_their_own_copy() -> None:
    lengths = np.array([5, 6, 7])
    plan = EpochPlan(samples_per_unit=lengths, global_batch_size=4, seed=1)
    before = plan.batch(0).sample.tolist()
    lengths[:] = 0
    assert plan.batch(0).sample.tolist() == before
    assert plan.num_samples == 18
    assert pickle.loads(pickle.dumps(plan)).batch(0).sample.tolist() == before


@settings(max_examples=20)
@given(plans(), st.sampled_from(WORLD_SIZES))
def test_no_two_threads_disturb_each_other(plan: EpochPlan, world_size: int) -> None:
    # Iterators share nothing that changes: interleaved they give what they give alone.
    alone = [[b.sample.tolist() for b in rank] for rank in all_batches(plan, world_size)]
    woven: list[list[Any]] = [[] for _ in range(world_size)]
    for row in itertools.zip_longest(*(plan.batches(0, rank, world_size) for rank in range(world_size))):
        for rank, batch in enumerate(row):
            if batch is not None:
                woven[rank].append(batch.sample.tolist())
    assert woven == alone


def expected_uses(batches: Iterable[BatchIndex]) -> list[tuple[int, int]]:
    found: dict[int, int] = {}
    for index in batches:
        for shard in index.shard[: len(index) - index.num_padded].tolist():
            found.setdefault(shard, index.step)
    return [(step, shard) for shard, step in found.items()]


@settings(max_examples=30)
@given(plans(), st.integers(1, 3), st.data())
def test_workers_look_ahead_for_their_own_steps(plan: EpochPlan, num_workers: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, plan.max_steps))
    for worker in range(num_workers):
        own = [index for index in plan.batches(start) if index.step % num_workers == worker]
        found = list(plan.upcoming(start, worker=worker, num_workers=num_workers))
        assert [(step, shard) for step, shard in found if shard is not None] == expected_uses(own)
        until = start - 1
        for step, shard in found:
            if shard is None:
                assert step > until
                until = step
            else:
                assert step > until  # what was said to be all was all


def test_a_shard_without_end_is_planned_in_bounded_steps() -> None:
    plan = EpochPlan(samples_per_unit=[2**39, 1], global_batch_size=256)
    assert len(next(plan.batches())) == 256
    assert plan.batch(2**30).step == 2**30
    upcoming = plan.upcoming()
    assert next(upcoming)[0] == 0
    steps = [next(upcoming) for _ in range(3)]
    assert steps[-1][1] is None
    assert plan.last_use_step(0) == 2**31
