from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.order.apportion import check_weights, largest_remainder
from concurrent_loader.order.epoch_plan import EpochPlan
from concurrent_loader.order.mixture_plan import MixturePlan
from concurrent_loader.order.protocol import BatchIndex
from concurrent_loader.storage.errors import ConfigurationError


def make(
    shards: list[list[int]],
    *,
    weights: list[float] | None = None,
    batch: int = 8,
    per: Any = "batch",
    stop: Any = "shortest",
    last_batch: Any = "drop",
    shuffle: bool = True,
    seed: int = 1,
    epoch: int = 0,
    window: int = 6,
    changes: bool = False,
) -> MixturePlan:
    shares = check_weights(weights or [1.0] * len(shards))
    sizes = largest_remainder(shares, batch) if per == "sample" else [batch] * len(shards)
    order: dict[str, Any] = {"shuffle": shuffle, "window": window, "last_batch": last_batch}
    children = tuple(
        EpochPlan(samples_per_unit=lengths, global_batch_size=size, seed=seed + number, fingerprint=number, **order)
        for number, (lengths, size) in enumerate(zip(shards, sizes, strict=True))
    )
    phases: Any = ()
    if changes and per == "batch" and isinstance(stop, int):
        phases = (
            (0, shares),
            (stop // 3, check_weights([0.0] + [1.0] * (len(shards) - 1) if len(shards) > 1 else [1.0], with_zero=True)),
            (stop // 2, shares),
        )
    return MixturePlan(
        children=children, shares=shares, per=per, stop=stop, epoch=epoch, seed=seed, shuffle=shuffle, phases=phases
    )


def samples(plan: MixturePlan, index: BatchIndex) -> list[tuple[int, int]]:
    """(dataset, sample) of a batch; checks that units and rows agree with them."""
    assert index.source is not None
    for source, shard, row, sample in zip(index.source, index.shard, index.row, index.sample, strict=True):
        place = plan.decode_unit(int(shard))
        assert place.child == source
        lengths = np.asarray(plan.children[place.child].samples_per_unit)
        assert sample == lengths[: place.unit].sum() + row
        assert row < lengths[place.unit]
    return list(zip(index.source.tolist(), index.sample.tolist(), strict=True))


def simulated(plan: MixturePlan, epochs: int) -> list[list[list[tuple[int, int]]]]:
    """The same in plain Python: every dataset is an endless row of batches, and each turn takes the next one."""

    def endless(child: int) -> Any:
        epoch = 0
        while True:
            for index in replace(plan.children[child], epoch=epoch).batches():
                yield [(child, sample) for sample in index.sample.tolist()]
            epoch += 1

    rows = [endless(child) for child in range(len(plan.children))]
    outcome = []
    for epoch in range(epochs):
        now = replace(plan, epoch=epoch)
        batches = []
        for step in range(now.max_steps):
            parts = [next(rows[child]) for child in now._children_at(step)]
            placed = [(Fraction(2 * j + 1, 2 * len(part)), each) for part in parts for j, each in enumerate(part)]
            batches.append([each for _, each in sorted(placed, key=lambda pair: (pair[0], pair[1][0]))])
        outcome.append(batches)
    return outcome


mixtures = st.builds(
    make,
    st.lists(
        st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(lambda s: sum(s) >= 16), min_size=1, max_size=3
    ),
    batch=st.sampled_from([8, 16]),
    per=st.sampled_from(["batch", "sample"]),
    stop=st.one_of(st.sampled_from(["shortest", "longest"]), st.integers(6, 12)),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**32),
    window=st.integers(1, 40),
    changes=st.booleans(),
)


@given(plan=mixtures)
def test_is_what_a_naive_simulation_gives(plan: MixturePlan) -> None:
    expected = simulated(plan, 3)
    for epoch in range(3):
        now = replace(plan, epoch=epoch)
        assert [samples(now, index) for index in now.batches()] == expected[epoch]


@given(plan=mixtures, epoch=st.integers(0, 3), data=st.data())
def test_goes_on_from_any_step_without_replay(plan: MixturePlan, epoch: int, data: st.DataObject) -> None:
    plan = replace(plan, epoch=epoch)
    whole = [samples(plan, index) for index in plan.batches()]
    start = data.draw(st.integers(0, len(whole)))
    again = replace(plan)
    assert [samples(again, index) for index in again.batches(start)] == whole[start:]


@given(plan=mixtures, world_size=st.sampled_from([2, 4, 8]), last_batch=st.sampled_from(["drop", "pad"]))
def test_ranks_make_the_same_global_batches(plan: MixturePlan, world_size: int, last_batch: Any) -> None:
    plan = replace(plan, children=tuple(replace(child, last_batch=last_batch) for child in plan.children))
    whole = list(plan.batches())
    ranks = [list(plan.batches(0, rank, world_size)) for rank in range(world_size)]
    for step, parts in enumerate(zip(*ranks, strict=True)):
        together = [each for part in parts for each in samples(plan, part)]
        assert sorted(together) == sorted(samples(plan, whole[step]))
        assert {len(part) for part in parts} == {plan.global_batch_size // world_size}
        assert sum(part.num_padded for part in parts) == whole[step].num_padded
        if last_batch == "drop":
            assert together == samples(plan, whole[step])


@given(plan=mixtures, epoch=st.integers(0, 2), world_size=st.sampled_from([1, 2, 4]), data=st.data())
def test_units_come_before_they_are_needed_and_stay_as_long(
    plan: MixturePlan, epoch: int, world_size: int, data: st.DataObject
) -> None:
    plan = replace(plan, epoch=epoch)
    start = data.draw(st.integers(0, plan.max_steps))
    rank = data.draw(st.integers(0, world_size - 1))
    first: dict[int, int] = {}
    uses: dict[int, int] = {}
    for index in plan.batches(start, rank, world_size):
        for unit in index.shard.tolist():
            first.setdefault(unit, index.step)
            uses[unit] = uses.get(unit, 0) + 1
            assert index.step <= plan.last_use_step(unit, rank, world_size)
    assert [(step, unit) for unit, step in first.items()] == list(plan.units_in_order(start, rank, world_size))
    for unit, count in uses.items():
        assert count <= plan.max_samples_used(unit, rank, world_size)


@given(plan=mixtures)
def test_positions_are_those_of_the_batches(plan: MixturePlan) -> None:
    plan = replace(plan, epoch=2)
    before = [2 * turns for turns in plan.turns]
    for step, index in enumerate(plan.batches()):
        for child, count in enumerate(before):
            assert plan.position(child, step) == divmod(count, plan.children[child].max_steps)
        for child in set((index.source if index.source is not None else np.empty(0)).tolist()):
            before[child] += 1
    assert before == [3 * turns for turns in plan.turns]


@pytest.mark.parametrize("shuffle", [False, True])
def test_turns_have_their_shares_and_are_evenly_spread(shuffle: bool) -> None:
    plan = make([[4000]] * 3, weights=[5, 3, 2], batch=4, stop=1000, shuffle=shuffle)
    assert plan.turns == (500, 300, 200)
    whose = np.array([plan._children_at(step)[0] for step in range(1000)])
    for child, share in enumerate(plan.shares):
        gone = np.cumsum(whose == child)
        assert abs(gone - share * np.arange(1, 1001)).max() < 3
    other = replace(plan, epoch=1)
    again = [other._children_at(step)[0] for step in range(1000)]
    assert (again == whose.tolist()) is not shuffle


@pytest.mark.parametrize(
    ("stop", "per", "turns"),
    [
        ("shortest", "batch", (5, 10)),  # the second has 20 batches, and 10 turns where the first has its 5
        ("longest", "batch", (10, 20)),
        (9, "batch", (3, 6)),
        ("shortest", "sample", (10, 10)),  # 40 samples by 4, 160 by 4
        ("longest", "sample", (40, 40)),
        (7, "sample", (7, 7)),
    ],
)
def test_an_epoch_ends_where_it_should(stop: Any, per: str, turns: tuple[int, int]) -> None:
    weights = [1.0, 2.0] if per == "batch" else [1.0, 1.0]
    plan = make([[40], [160]], weights=weights, stop=stop, per=per, batch=8)
    assert plan.turns == turns
    assert plan.num_steps() == plan.max_steps == (sum(turns) if per == "batch" else turns[0])
    assert len(list(plan.batches())) == plan.max_steps


def test_a_data_set_is_gone_through_once_before_it_begins_again() -> None:
    plan = make([[10, 7, 9], [40, 24]], weights=[3, 1], batch=8, stop="longest", last_batch="short", window=99)
    seen: dict[int, list[int]] = {0: [], 1: []}
    for epoch in range(3):
        for index in replace(plan, epoch=epoch).batches():
            for source, sample in samples(replace(plan, epoch=epoch), index):
                seen[source].append(sample)
    for child, size in ((0, 26), (1, 64)):
        rounds = [seen[child][at : at + size] for at in range(0, len(seen[child]) - size + 1, size)]
        assert len(rounds) >= 3
        assert all(sorted(each) == list(range(size)) for each in rounds)
        assert rounds[0] != rounds[1]


def test_parts_of_a_batch_are_fixed_and_mixed() -> None:
    plan = make([[100], [100], [100]], weights=[0.5, 0.3, 0.2], batch=20, per="sample", shuffle=False)
    for index in plan.batches():
        assert index.source is not None
        assert np.bincount(index.source).tolist() == [10, 6, 4]
        for part in np.split(index.source, 2):
            assert np.bincount(part, minlength=3).tolist() == [5, 3, 2]


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="too few samples"):
        make([[7], [40]], batch=8)
    with pytest.raises(ConfigurationError, match="never have its turn"):
        make([[40], [400]], weights=[100, 1], batch=8, stop="shortest")
    with pytest.raises(ConfigurationError, match="never have its turn"):
        make([[40], [400]], weights=[100, 1], batch=8, stop=10)
    plan = make([[42], [40]], batch=8, last_batch="short")
    with pytest.raises(ConfigurationError, match="rank"):
        plan.num_steps(4, 4)
    with pytest.raises(ConfigurationError, match="divide"):
        plan.batches(0, 0, 3)
    with pytest.raises(ConfigurationError, match="no such step"):
        plan.batches(1000)


def test_of_a_batch_with_fewer_samples_than_ranks_each_rank_gets_one() -> None:
    plan = make([[42], [40]], batch=8, last_batch="short", stop="longest")
    ranks = [list(plan.batches(0, rank, 8)) for rank in range(8)]
    assert {len(batches) for batches in ranks} == {plan.max_steps}
    short = [step for step, index in enumerate(plan.batches()) if len(index) == 2]
    assert len(short) == 1
    parts = [batches[short[0]] for batches in ranks]
    assert [len(part) for part in parts] == [1] * 8
    assert sum(part.num_padded for part in parts) == 6


def test_shares_change_at_given_steps() -> None:
    plan = replace(make([[40], [40]], stop=12), phases=((0, (1.0, 0.0)), (4, (0.5, 0.5)), (8, (0.25, 0.75))))
    whose = [int(index.source[0]) for index in plan.batches() if index.source is not None]
    assert [sum(whose[step : step + 4]) for step in (0, 4, 8)] == [0, 2, 3]
    assert plan.turns == (7, 5)
    assert (
        len({each.fingerprint for each in (plan, replace(plan, phases=plan.phases[:2]), replace(plan, phases=()))}) == 3
    )


def test_the_fingerprint_covers_what_the_order_depends_on() -> None:
    base: dict[str, Any] = {"shards": [[40], [80]], "weights": [1.0, 1.0]}
    changes: list[dict[str, Any]] = [
        {}, {"weights": [2.0, 1.0]}, {"per": "sample"}, {"stop": "longest"}, {"stop": 6}, {"shards": [[80], [40]]},
        {"window": 7}, {"shards": [[41], [80]], "last_batch": "short"},
    ]  # fmt: skip
    plans = [make(**{**base, **change}) for change in changes]
    assert len({plan.fingerprint for plan in plans}) == len(plans)
    assert make(**base, epoch=5).fingerprint == make(**base, seed=9).fingerprint == plans[0].fingerprint


def test_a_late_step_of_a_late_epoch_costs_no_replay() -> None:
    plan = make(
        [[10_000] * 2000, [10_000] * 100], weights=[20, 1], batch=256, stop="shortest", epoch=10**6, window=1000
    )
    step = plan.max_steps - 3
    assert len(list(plan.batches(step))) == 3


def test_the_order_of_a_large_dataset_is_kept_while_small_ones_begin_again() -> None:
    plan = make([[80, 80], [8]], stop="longest")
    large = plan.child_plan(0, 0)
    for epoch in range(30):
        plan.child_plan(1, epoch)
        assert plan.child_plan(0, 0) is large
