"""Loader states as integers, and the errors for states of another order."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from concurrent_loader.errors import LoaderStateError
from concurrent_loader.order.epoch_plan import EpochPlan
from concurrent_loader.order.state import PlanState


def make_plan(**changes: Any) -> EpochPlan:
    arguments = {
        "samples_per_unit": [30, 40],
        "global_batch_size": 8,
        "seed": 5,
        "epoch": 2,
        "window": 16,
        "fingerprint": 99,
    }
    return EpochPlan(**{**arguments, **changes})


def test_round_trip_through_json() -> None:
    state = PlanState.of(make_plan(), 3)
    assert PlanState.from_dict(json.loads(json.dumps(state.to_dict()))) == state
    assert state.to_dict() == {
        "epoch": 2,
        "step": 3,
        "seed": 5,
        "global_batch_size": 8,
        "groups": 8,
        "window": 16,
        "shuffle": True,
        "fingerprint": 99,
        "version": 1,
    }


def test_resume_goes_on_with_any_number_of_ranks() -> None:
    plan = make_plan()
    whole = [batch.sample.tolist() for batch in plan.batches()]
    state = PlanState.from_dict(PlanState.of(plan, 4).to_dict())
    again = make_plan(epoch=state.epoch)
    state.check(again)
    halves = zip(again.batches(state.step, 0, 2), again.batches(state.step, 1, 2), strict=True)
    assert [np.concatenate([a.sample, b.sample]).tolist() for a, b in halves] == whole[4:]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 6}, "seed: 5 in the state, 6 here"),
        ({"global_batch_size": 16}, "global batch size"),
        ({"groups": 2}, "groups"),
        ({"window": 17}, "window"),
        ({"shuffle": False}, "shuffle"),
        ({"fingerprint": 98}, "dataset"),
    ],
)
def test_a_state_of_another_order_is_refused_and_explained(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(LoaderStateError, match=named):
        PlanState.of(make_plan(), 0).check(make_plan(**changes))


def test_what_does_not_change_the_order_may_differ() -> None:
    PlanState.of(make_plan(), 3).check(make_plan(last_batch="drop"))
    PlanState.of(make_plan(), 3).check(make_plan(epoch=7))
    PlanState.of(make_plan(), 3).check(make_plan(groups=64))  # eight in effect, as before


def test_a_step_beyond_the_epoch_is_refused() -> None:
    PlanState.of(make_plan(), 9).check(make_plan())
    with pytest.raises(LoaderStateError, match="beyond"):
        PlanState.of(make_plan(), 10).check(make_plan())


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": None},
        {"step": -1},
        {"step": 1.0},
        {"step": True},
        {"step": "1"},
        {"shuffle": 1},
        {"extra": 0},
        {"recorder_head": "not 32 hex digits"},
    ],
)
def test_damaged_states_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(LoaderStateError):
        PlanState.from_dict({**PlanState.of(make_plan(), 3).to_dict(), **change})


def test_missing_entries_are_refused() -> None:
    whole = PlanState.of(make_plan(), 3).to_dict()
    for name in whole:
        with pytest.raises(LoaderStateError):
            PlanState.from_dict({key: value for key, value in whole.items() if key != name})
    with pytest.raises(LoaderStateError):
        PlanState.from_dict([1, 2])  # type: ignore[arg-type]
