from __future__ import annotations

from typing import Any

import pytest

from benchmarks.figures import check_same_samples, with_spread
from benchmarks.harness import Epoch
from benchmarks.remote_vs_local import figures_of

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
    assert with_spread({"a": [5.0, 1.0, 3.0, 100.0, 2.0]}) == {"a": 3.0, "spread": {"a": [1.0, 100.0]}}
    assert with_spread({"a": [1.0, 2.0]})["a"] == 1.5


def test_an_epochs_rates_cover_all_of_its_time() -> None:
    epoch = make_epoch()
    assert epoch.samples_per_s == 50.0
    assert epoch.waiting_share == 0.25
    assert epoch.cpu_s_per_1000 == 30.0


def test_a_section_has_the_agreed_keys_and_pairs_the_rounds() -> None:
    # The machine slows down by 4 between the rounds; within each round cold takes twice local's time, warm the same.
    local = [make_epoch(epoch_s=seconds) for seconds in (1.0, 2.0, 4.0)]
    cold = [make_epoch(epoch_s=2 * epoch.epoch_s, num_bytes=1010) for epoch in local]

    made = figures_of(local, cold, local)

    assert set(made) >= PROMISED_KEYS
    assert made["cold_ratio"] == 0.5
    assert made["warm_ratio"] == 1.0
    assert made["local_img_s"] == 50.0
    assert made["cold_img_s"] == 25.0
    assert made["bytes_ratio"] == 1.01
    assert made["client"] == "S3Store"
    assert made["rounds"] == 3
    assert made["spread"]["local_img_s"] == [25.0, 100.0]
    assert made["spread"]["cold_ratio"] == [0.5, 0.5]


def test_sides_of_different_rounds_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="zip"):
        figures_of([make_epoch()] * 2, [make_epoch()], [make_epoch()])


@pytest.mark.parametrize(
    "change", [{"num_samples": 99}, {"class_counts": [51, 49]}, {"digest": "00"}], ids=["number", "classes", "bytes"]
)
def test_sides_that_deliver_other_images_are_noticed(change: dict[str, Any]) -> None:
    check_same_samples({"local": [make_epoch(), make_epoch()], "cold": [make_epoch(epoch_s=9.0)]})
    with pytest.raises(ValueError, match="same images"):
        check_same_samples({"local": [make_epoch()], "cold": [make_epoch(**change)]})
