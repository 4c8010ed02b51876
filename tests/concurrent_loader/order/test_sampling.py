from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader import Balanced, ConfigurationError, Weighted
from concurrent_loader.order.sampling import expected_counts

WEIGHTS = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=1, max_size=60).filter(any)


def no_column(name: str) -> Any:
    raise AssertionError(name)


def counts_of(drawn: np.ndarray, num_samples: int) -> np.ndarray:
    assert (np.diff(drawn) >= 0).all()
    return np.bincount(drawn, minlength=num_samples)


@given(WEIGHTS, st.integers(1, 5000), st.integers(0, 2**64 - 1), st.integers(0, 1000))
def test_a_sample_comes_as_often_as_its_weight_says(weights: list[float], num: int, seed: int, epoch: int) -> None:
    drawn = Weighted(weights, num_samples=num).draw(no_column, len(weights), seed=seed, epoch=epoch)
    counts = counts_of(drawn, len(weights))
    expected = np.array(weights) / sum(weights) * num
    assert counts.sum() == num
    assert (counts <= np.ceil(expected + 1e-6)).all()
    assert (counts >= np.floor(expected - 1e-6)).all()


@given(WEIGHTS, st.data())
def test_without_replacement_a_sample_comes_once(weights: list[float], data: st.DataObject) -> None:
    positive = sum(weight > 0 for weight in weights)
    num = data.draw(st.one_of(st.none(), st.integers(1, positive)))
    drawn = Weighted(weights, num_samples=num, replacement=False).draw(no_column, len(weights), seed=1, epoch=2)
    assert len(drawn) == len(set(drawn.tolist())) == (num or positive)
    assert all(weights[number] > 0 for number in drawn)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.integers(1, 500), st.integers(0, 100))
def test_classes_come_equally_often(labels: list[int], num: int, epoch: int) -> None:
    values = np.array(labels)
    drawn = Balanced("label", num_samples=num).draw({"label": values}.__getitem__, len(labels), seed=0, epoch=epoch)
    counts = counts_of(drawn, len(labels))
    classes, sizes = np.unique(values, return_counts=True)
    for label, size in zip(classes, sizes, strict=True):
        own = counts[values == label]
        assert abs(own.sum() - num / len(classes)) <= 1
        assert own.max() - own.min() <= 1 + (num / len(classes) % size == 0)
    assert counts.sum() == num


def test_classes_without_replacement() -> None:
    labels = ["a"] * 10 + ["b"] * 3
    sampling = Balanced("kind", replacement=False)
    drawn = {tuple(sampling.draw({"kind": labels}.__getitem__, 13, seed=0, epoch=epoch)) for epoch in range(20)}
    assert len(drawn) > 10
    for each in drawn:
        assert len(each) == len(set(each)) == 6
        assert set(each) >= {10, 11, 12}
    with pytest.raises(ConfigurationError, match="smallest class"):
        Balanced("kind", num_samples=7, replacement=False).draw({"kind": labels}.__getitem__, 13, seed=0, epoch=0)


@pytest.mark.slow
def test_expectations_are_met_over_the_epochs() -> None:
    weights = np.array([1.0, 2.0, 3.0, 4.0, 0.0])
    sampling = Weighted(weights, num_samples=3)
    total = sum(counts_of(sampling.draw(no_column, 5, seed=7, epoch=epoch), 5) for epoch in range(4000))
    assert total / 4000 == pytest.approx(weights / 10 * 3, abs=0.04)


def test_what_cannot_be_drawn_before_is_divided_among_the_others() -> None:
    assert expected_counts(np.array([100.0, 1, 1, 0]), 2, at_most_once=True).tolist() == [1, 0.5, 0.5, 0]
    assert expected_counts(np.array([1.0, 1]), 2, at_most_once=True).tolist() == [1, 1]


def test_a_function_of_the_epoch_is_a_curriculum() -> None:
    def weights(epoch: int) -> Any:
        return "difficulty" if epoch == 2 else np.arange(4) <= epoch

    sampling = Weighted(weights, replacement=False)
    read = {"difficulty": np.array([0, 0, 0, 2])}.__getitem__
    assert [sampling.draw(read, 4, seed=0, epoch=epoch).tolist() for epoch in range(4)] == [
        [0], [0, 1], [3], [0, 1, 2, 3],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "weights", [[1.0, -1], [1.0, np.nan], [np.inf, 1], [0.0, 0], [1.0], [[1.0, 2], [3, 4]], ["a", "b"]]
)
def test_weights_that_cannot_be(weights: Any) -> None:
    with pytest.raises(ConfigurationError):
        Weighted(weights).draw(no_column, 2, seed=0, epoch=0)


def test_arguments_that_cannot_be() -> None:
    for number in (0, -1, 1.5, True):
        with pytest.raises(ConfigurationError, match="num_samples"):
            Weighted([1.0], num_samples=number)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="name of a column"):
        Balanced(["label"])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="integers, bools or strings"):
        Balanced("x").draw({"x": np.zeros(2)}.__getitem__, 2, seed=0, epoch=0)
    with pytest.raises(ConfigurationError, match="positive weight"):
        Weighted([1.0, 0], num_samples=2, replacement=False).draw(no_column, 2, seed=0, epoch=0)
