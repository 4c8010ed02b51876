from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.device import Undecodable
from concurrent_loader.device.stage import decode_each


class Decoder:
    def __init__(self, broken: set[int]) -> None:
        self.broken, self.num_calls = broken, 0

    def __call__(self, items: Sequence[int]) -> list[str]:
        self.num_calls += 1
        if self.broken.intersection(items):
            raise Undecodable("one of them")
        return [f"image {item}" for item in items]


@given(st.integers(0, 300), st.sets(st.integers(0, 299), max_size=5))
def test_what_is_whole_is_decoded_in_order_whatever_is_broken(num_items: int, broken: set[int]) -> None:
    decode = Decoder(broken)
    outcomes = decode_each(decode, range(num_items))
    for item, outcome in enumerate(outcomes):
        if item in broken:
            assert isinstance(outcome, Undecodable)
        else:
            assert outcome == f"image {item}"
    assert len(outcomes) == num_items
    num_broken = len({item for item in broken if item < num_items})
    depth = math.ceil(math.log2(num_items)) if num_items > 1 else 0
    assert decode.num_calls <= (1 if num_items else 0) + 2 * num_broken * depth


def test_other_errors_are_not_searched_for() -> None:
    def decode(items: Sequence[int]) -> list[str]:
        raise MemoryError

    with pytest.raises(MemoryError):
        decode_each(decode, range(8))
