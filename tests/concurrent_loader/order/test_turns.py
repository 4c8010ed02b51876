from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.order import turns
from concurrent_loader.order.epoch_plan import EpochPlan
from concurrent_loader.order.mixture_plan import MixturePlan
from concurrent_loader.order.shuffle import hash_items
from concurrent_loader.order.turns import PhasedTurns, TurnOrder


def whole_table(num_turns: list[int], keys: list[int] | None) -> list[tuple[int, int]]:
    """(data set, turn) of every step: all turns sorted at once."""
    places = []
    for child, num in enumerate(num_turns):
        u = np.full(num, 0.5) if keys is None else (hash_items(keys[child], 0, num) >> np.uint64(11)) / 2**53
        places.append((np.arange(num) + u) / num)
    order = np.argsort(np.concatenate(places), kind="stable")
    return [[(child, turn) for child, num in enumerate(num_turns) for turn in range(num)][at] for at in order]


@given(
    num_turns=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    keys=st.none() | st.lists(st.integers(0, 2**64 - 1), min_size=5, max_size=5),
    block_steps=st.integers(1, 50),
    data=st.data(),
)
def test_blocks_are_parts_of_the_whole_order(
    num_turns: list[int], keys: list[int] | None, block_steps: int, data: st.DataObject
) -> None:
    expected = whole_table(num_turns, keys)
    order = TurnOrder(num_turns, keys, block_steps=block_steps)
    for step in data.draw(st.permutations(range(len(expected)))):
        child, turn = expected[step]
        assert order.whose(step) == child
        assert order.step_of(child, turn) == step
        gone = [each for each, _ in expected[:step]]
        assert [order.turns_before(each, step) for each in range(len(num_turns))] == [
            gone.count(each) for each in range(len(num_turns))
        ]
    assert [order.turns_before(each, len(expected)) for each in range(len(num_turns))] == num_turns


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).filter(any), min_size=1, max_size=4), st.booleans())
def test_phases_follow_each_other(phases: list[tuple[int, int]], shuffled: bool) -> None:
    orders = [TurnOrder(phase, [7, number] if shuffled else None) for number, phase in enumerate(phases)]
    together = PhasedTurns(phases, orders)
    expected = [order.whose(step) for order, phase in zip(orders, phases, strict=True) for step in range(sum(phase))]
    assert [together.whose(step) for step in range(len(expected))] == expected
    for child in range(2):
        steps = [step for step, whose in enumerate(expected) if whose == child]
        assert [together.step_of(child, turn) for turn in range(len(steps))] == steps
        before = [together.turns_before(child, step) for step in range(len(expected) + 1)]
        assert before == [expected[:step].count(child) for step in range(len(expected) + 1)]


@pytest.mark.parametrize("stop", [2**27, 2**45])
def test_a_vast_epoch_is_computed_where_it_is_looked_at(stop: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []

    def counted(key: int, start: int, stop: int) -> np.ndarray[Any, Any]:
        hashed.append(stop - start)
        return hash_items(key, start, stop)

    monkeypatch.setattr(turns, "hash_items", counted)
    children = tuple(
        EpochPlan(
            samples_per_unit=[40] * 10, global_batch_size=8, seed=child, fingerprint=child, shuffle=True, window=9
        )
        for child in range(2)
    )
    plan = MixturePlan(
        children=children, shares=(0.75, 0.25), per="batch", stop=stop, epoch=3, seed=1, shuffle=True
    )  # fmt: skip
    batches = plan.batches(stop - 3)
    assert [next(batches).step for _ in range(3)] == [stop - 3, stop - 2, stop - 1]
    assert next(plan.batches()).step == 0
    before = [plan.position(child, stop // 2) for child in range(2)]
    first = next(plan.batches(stop // 2))
    assert first.source is not None
    child = int(first.source[0])
    assert plan.position(child, stop // 2 + 1) != before[child]
    assert plan.last_use_step(int(first.shard[0])) >= 0
    assert sum(hashed) < 8 * turns._BLOCK_STEPS


def test_going_through_an_epoch_computes_each_block_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make = TurnOrder._block

    def counted(self: TurnOrder, number: int) -> Any:
        made.append(number)
        return make(self, number)

    monkeypatch.setattr(TurnOrder, "_block", counted)
    order = TurnOrder([300, 700], [1, 2], block_steps=100)
    for step in range(1000):
        child = order.whose(step)
        assert order.step_of(child, order.turns_before(child, step)) == step
    assert made == list(range(10))
