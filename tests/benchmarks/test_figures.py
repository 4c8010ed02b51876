from __future__ import annotations

from typing import Any

import pytest

from benchmarks.figures import RAW_TARGETS, TRAINING_TARGETS, Target, check_same_samples, section, spread
from benchmarks.measurement import Epoch

PROMISED_KEYS = {
    "local_img_s",
    "cold_img_s",
    "warm_img_s",
    "cold_ratio",
    "warm_ratio",
    "first_batch_s",
    "gets",
    "bytes_ratio",
    "cpu_s_per_1000",
    "peak_rss_mb",
    "client",
}


def make_epoch(**changes: Any) -> Epoch:
    facts: dict[str, Any] = {
        "num_samples": 100,
        "build_s": 0.1,
        "epoch_s": 2.0,
        "first_batch_s": 0.2,
        "waiting_s": 0.5,
        "num_gets": 10,
        "num_bytes": 1000,
        "dataset_bytes": 1000,
        "cpu_s": 3.0,
        "peak_rss_mb": 500.0,
        "rss_added_mb": 50.0,
        "first_loss": 2.0,
        "last_loss": 0.5,
        "accuracy": 0.9,
        "class_counts": [50, 50],
        "digest": None,
        "client": "S3Store",
        "timeline": [(1.0, 50), (2.0, 100)],
    }
    return Epoch(**{**facts, **changes})


def test_a_spread_has_the_median_and_the_extremes() -> None:
    found = spread([5.0, 1.0, 3.0, 100.0, 2.0])
    assert (found.median, found.low, found.high) == (3.0, 1.0, 100.0)
    assert str(found) == "3 (1 … 100)"
    assert spread([1.0, 2.0]).median == 1.5


def test_nothing_measured_has_no_median() -> None:
    with pytest.raises(ValueError, match="nothing"):
        spread([])


def test_an_epochs_rates_cover_all_of_its_time() -> None:
    epoch = make_epoch()
    assert epoch.samples_per_s == 50.0
    assert epoch.waiting_share == 0.25
    assert epoch.cpu_s_per_1000 == 30.0


def test_a_section_has_the_agreed_keys_and_pairs_the_rounds() -> None:
    # The machine slows down by 4 between the rounds; within each round cold takes twice local's time, warm the same.
    local = [make_epoch(epoch_s=seconds) for seconds in (1.0, 2.0, 4.0)]
    cold = [make_epoch(epoch_s=2 * epoch.epoch_s, num_bytes=1010) for epoch in local]

    made = section(local, cold, local)

    assert set(made) >= PROMISED_KEYS
    assert made["cold_ratio"] == 0.5
    assert made["warm_ratio"] == 1.0
    assert made["local_img_s"] == 50.0
    assert made["cold_img_s"] == 25.0
    assert made["bytes_ratio"] == 1.01
    assert made["client"] == "S3Store"
    assert made["rounds"] == 3
    assert made["spread"]["local_img_s"] == [25.0, 100.0]  # type: ignore[index]
    assert made["spread"]["cold_ratio"] == [0.5, 0.5]  # type: ignore[index]


def test_sides_of_different_rounds_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="zip"):
        section([make_epoch()] * 2, [make_epoch()], [make_epoch()])


@pytest.mark.parametrize(
    ("value", "at_least", "met"), [(1.0, True, True), (0.9, True, False), (1.0, False, True), (1.1, False, False)]
)
def test_a_target_is_met_at_its_bound(value: float, at_least: bool, met: bool) -> None:
    assert Target("x", 1.0, at_least=at_least).met(value) is met


def test_targets_name_figures_that_exist() -> None:
    made = section([make_epoch()], [make_epoch()], [make_epoch()])
    assert {target.key for target in (*RAW_TARGETS, *TRAINING_TARGETS)} <= set(made)


@pytest.mark.parametrize(
    "change", [{"num_samples": 99}, {"class_counts": [51, 49]}, {"digest": "00"}], ids=["number", "classes", "bytes"]
)
def test_sides_that_deliver_other_images_are_noticed(change: dict[str, Any]) -> None:
    check_same_samples({"local": [make_epoch(), make_epoch()], "cold": [make_epoch(epoch_s=9.0)]})
    with pytest.raises(ValueError, match="same images"):
        check_same_samples({"local": [make_epoch()], "cold": [make_epoch(**change)]})
