from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader import ByLength, ConfigurationError
from concurrent_loader.order.batching import Batches

LENGTHS = st.lists(st.integers(0, 300), max_size=150)


def cut(found: Batches) -> list[list[int]]:
    return [part.tolist() for part in np.split(found.samples, found.ends[:-1])] if len(found.ends) else []


def made(batching: ByLength, lengths: list[int], *, size: int = 1, last_batch: Any = "short") -> Batches:
    order = np.random.default_rng(0).permutation(len(lengths)).astype(np.int64)
    return batching.batches(order, np.array(lengths, np.int64), global_batch_size=size, last_batch=last_batch)


@given(LENGTHS, st.integers(1, 20), st.integers(1, 40))
def test_every_sample_comes_once_in_batches_of_one_size(lengths: list[int], buckets: int, size: int) -> None:
    batches = cut(made(ByLength("n", buckets=buckets), lengths, size=size))
    assert sorted(number for batch in batches for number in batch) == list(range(len(lengths)))
    assert [len(batch) for batch in batches if len(batch) != size] in ([], [len(lengths) % size])
    dropped = cut(made(ByLength("n", buckets=buckets), lengths, size=size, last_batch="drop"))
    assert all(len(batch) == size for batch in dropped)
    assert len(dropped) == len(lengths) // size


@given(LENGTHS, st.integers(1, 20), st.integers(300, 3000), st.integers(1, 16))
def test_no_batch_has_too_many_tokens(lengths: list[int], buckets: int, max_tokens: int, ranks: int) -> None:
    found = made(ByLength("n", buckets=buckets, max_tokens=max_tokens), lengths, size=ranks)
    batches = cut(found)
    assert sorted(number for batch in batches for number in batch) == list(range(len(lengths)))
    for batch, size in zip(batches, found.sizes.tolist(), strict=True):
        longest = max(lengths[number] for number in batch)
        assert len(batch) * longest <= ranks * max_tokens
        assert size == len(batch)
    padded = made(ByLength("n", buckets=buckets, max_tokens=max_tokens), lengths, size=ranks, last_batch="pad")
    assert (padded.sizes >= np.diff(padded.ends, prepend=0)).all()
    for world_size in (1, 2, 4, 8):  # equal parts for each of these numbers of ranks, or a padding sample
        for size in padded.sizes.tolist():
            assert size % world_size == 0 or size < world_size


def test_padding_is_small() -> None:
    lengths = np.random.default_rng(1).lognormal(5, 1, 20_000).astype(np.int64) + 1
    order = np.random.default_rng(0).permutation(len(lengths)).astype(np.int64)

    def share(batches: list[list[int]]) -> float:
        padded = sum(len(batch) * lengths[batch].max() for batch in batches)
        return float(1 - lengths.sum() / padded)

    plain = [order[start : start + 32].tolist() for start in range(0, len(order), 32)]
    found = ByLength("n", buckets=32).batches(order, lengths, global_batch_size=32, last_batch="short")
    assert share(plain) > 0.6
    assert share(cut(found)) < 0.12


def test_a_batch_comes_when_its_last_sample_would() -> None:
    order = np.arange(1000, dtype=np.int64)
    lengths = np.random.default_rng(1).integers(1, 100, 1000)
    found = ByLength("n", buckets=4).batches(order, lengths, global_batch_size=10, last_batch="drop")
    last = [max(batch) for batch in cut(found)]
    assert last[:90] == sorted(last[:90])
    assert max(max(batch) - min(batch) for batch in cut(found)[:90]) < 120  # about the four buckets


@pytest.mark.parametrize("buckets", [0, -1, [], [0, 5], [5, 5], [9, 5], True])
def test_buckets_that_cannot_be(buckets: Any) -> None:
    with pytest.raises(ConfigurationError, match="buckets"):
        ByLength("n", buckets=buckets)


def test_samples_that_are_too_long() -> None:
    with pytest.raises(ConfigurationError, match="longer than the last bucket"):
        made(ByLength("n", buckets=[5, 9]), [1, 10])
    with pytest.raises(ConfigurationError, match="longer than max_tokens"):
        made(ByLength("n", max_tokens=9), [1, 10])
    for lengths in ([1.5], [-1], [[1]]):
        with pytest.raises(ConfigurationError, match="lengths must be"):
            ByLength(lengths)
    for tokens in (0, 1.5, True):
        with pytest.raises(ConfigurationError, match="max_tokens"):
            ByLength("n", max_tokens=tokens)  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=9), st.integers(1, 4))
def test_buckets_have_the_least_padding_of_all(values: list[int], num: int) -> None:
    distinct = sorted(set(values))

    def padding(bounds: Sequence[int]) -> int:
        return sum(min(bound for bound in bounds if bound >= value) - value for value in values)

    found = ByLength("n", buckets=num).bucket_bounds(np.array(values, np.int64)).tolist()
    assert len(found) <= num
    assert found == sorted(set(found))
    ways = itertools.chain.from_iterable(itertools.combinations(distinct[:-1], size) for size in range(num))
    assert padding(found) == min(padding([*way, distinct[-1]]) for way in ways)
