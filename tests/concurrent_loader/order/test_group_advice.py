from __future__ import annotations

import logging
from typing import Any

import pytest

from concurrent_loader import ConcurrentDataLoader, Mixture, ShardDataset, ranks
from concurrent_loader.order.epoch_plan import EpochPlan
from concurrent_loader.order.group_advice import advice
from concurrent_loader.order.mixture_plan import MixturePlan


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_logged", set())


def an_order(**changes: Any) -> EpochPlan:
    return EpochPlan(**{"samples_per_unit": [50] * 100, "global_batch_size": 256, **changes})


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 8])
def test_up_to_eight_ranks_the_default_is_enough(world_size: int) -> None:
    assert advice(an_order(global_batch_size=24 * world_size), world_size, is_cached=False) is None


@pytest.mark.parametrize(("world_size", "most"), [(9, 2), (16, 2), (20, 3), (64, 8)])
def test_beyond_that_the_right_number_is_named(world_size: int, most: int) -> None:
    order = an_order(global_batch_size=8 * world_size)
    text = advice(order, world_size, is_cached=False)
    assert text is not None
    assert f"up to {most} of them" in text
    assert f"pass groups={world_size}," in text
    assert "pass groups=8, which also silences" in text
    assert advice(an_order(global_batch_size=8 * world_size, groups=world_size), world_size, is_cached=False) is None


@pytest.mark.parametrize(("world_size", "groups"), [(64, None), (72, 9), (128, 16), (512, 64)])
def test_ranks_with_a_cache_in_common_count_as_one(world_size: int, groups: int | None) -> None:
    text = advice(an_order(global_batch_size=8 * world_size), world_size, is_cached=True)
    assert (text is None) if groups is None else (text is not None and f"pass groups={groups}," in text)


@pytest.mark.parametrize(
    "changes",
    [
        {"shuffle": False},
        {"samples_per_unit": [1] * 5000},  # objects: each is one rank's
        {"samples_per_unit": [3] * 3},  # fewer samples than ranks
        {"samples_per_unit": []},
    ],
)
def test_where_nothing_helps_nothing_is_said(changes: dict[str, Any]) -> None:
    assert advice(an_order(**changes), 16, is_cached=False) is None


@pytest.mark.parametrize("per", ["batch", "sample"])
def test_a_mixture_is_divided_by_rank_only_where_a_batch_is_of_one_data_set(per: Any) -> None:
    size = 256 if per == "batch" else 128
    children = (an_order(global_batch_size=size), an_order(global_batch_size=size, seed=1))
    plan = MixturePlan(
        children=children, shares=(0.5, 0.5), per=per, stop="shortest", epoch=0, seed=0, shuffle=True
    )  # fmt: skip
    assert (advice(plan, 16, is_cached=False) is not None) == (per == "batch")


def test_the_loader_warns_once_and_rank_zero_alone(url: str, caplog: pytest.LogCaptureFixture) -> None:
    def warnings(**options: Any) -> list[int]:
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="concurrent_loader.ranks"), ShardDataset(url) as dataset:
            ConcurrentDataLoader(dataset, 1, **{"shuffle": True, "world_size": 16, "rank": 0, **options})
            ConcurrentDataLoader(Mixture([dataset, dataset]), 1, shuffle=True)
        return [record.levelno for record in caplog.records]

    assert warnings(rank=3) == warnings(groups=8) == warnings(groups=16) == warnings(shuffle=False) == []
    assert warnings() == [logging.WARNING]
    assert "pass groups=16" in caplog.text
    assert warnings() == [logging.INFO]


def test_the_order_does_not_follow_the_ranks(url: str) -> None:
    with ShardDataset(url) as dataset:
        orders = [
            [
                index.sample.tolist()
                for index in ConcurrentDataLoader(
                    dataset, 64 // world_size, shuffle=True, rank=0, world_size=world_size
                )._plan(0).batches()
            ]
            for world_size in (1, 16, 64)
        ]  # fmt: skip
    assert orders[0] == orders[1] == orders[2]
