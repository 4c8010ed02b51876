from __future__ import annotations

from typing import NamedTuple

import pytest

from benchmarks.figures import check_same_samples, with_spread


class Epoch(NamedTuple):
    num_samples: int = 100
    class_counts: tuple[int, ...] = (50, 50)
    digest: str | None = None


def test_a_spread_has_the_median_and_the_extremes() -> None:
    assert with_spread({"a": [5.0, 1.0, 3.0, 100.0, 2.0]}) == {"a": 3.0, "spread": {"a": [1.0, 100.0]}}
    assert with_spread({"a": [1.0, 2.0]})["a"] == 1.5


@pytest.mark.parametrize("other", [Epoch(99), Epoch(class_counts=(51, 49)), Epoch(digest="00")])
def test_sides_that_deliver_other_images_are_noticed(other: Epoch) -> None:
    check_same_samples({"local": [Epoch(), Epoch()], "cold": [Epoch()]})
    with pytest.raises(ValueError, match="same images"):
        check_same_samples({"local": [Epoch()], "cold": [other]})
