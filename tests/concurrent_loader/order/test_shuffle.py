"""The arithmetic of the order: hashes, permutations, slices of a window shuffle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.order import shuffle
from concurrent_loader.order.shuffle import (
    derive_key,
    earliest_position,
    hash_items,
    latest_position,
    permutation,
    permutation_members,
    shuffled_slice,
)

keys = st.integers(0, 2**64 - 1)


def test_hash_is_splitmix64() -> None:
    # The first outputs of splitmix64 seeded with 1234567 (published test vector of the reference implementation).
    assert hash_items(1234567, 0, 5).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(keys, st.integers(0, 2**40), st.integers(0, 50), st.integers(0, 50))
def test_hash_of_an_item_does_not_depend_on_the_slice(key: int, start: int, skip: int, count: int) -> None:
    whole = hash_items(key, start, start + skip + count)
    assert hash_items(key, start + skip, start + skip + count).tolist() == whole[skip:].tolist()


def test_keys_differ_in_every_number_and_in_the_domain() -> None:
    made = {
        derive_key(domain, *numbers) for domain in ("shards", "window") for numbers in ((0, 1), (1, 0), (0, 0), (0,))
    }
    assert len(made) == 8


@given(keys, st.integers(0, 300))
def test_permutation_is_one(key: int, num_items: int) -> None:
    assert sorted(permutation(key, num_items).tolist()) == list(range(num_items))


@given(st.integers(0, 2**64 - 1), st.integers(1, 3000), st.data())
def test_members_are_those_of_the_permutation(key: int, num_items: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, num_items))
    stop = data.draw(st.integers(start, num_items))
    found = permutation_members(key, num_items, start, stop)
    assert found.tolist() == sorted(permutation(key, num_items)[start:stop].tolist())


def test_members_over_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle, "_BLOCK_ITEMS", 1000)
    expected = np.sort(permutation(5, 70_001)[9_000:50_000])
    assert np.array_equal(permutation_members(5, 70_001, 9_000, 50_000), expected)


@pytest.mark.slow
def test_permutation_is_uniform() -> None:
    num_items, num_keys = 8, 20_000
    counts = np.zeros((num_items, num_items))
    for key in range(num_keys):
        counts[np.arange(num_items), permutation(derive_key("test", key), num_items)] += 1
    # Each cell is binomial(20000, 1/8): sigma 46.8. Five sigma over 64 cells fails once in 30,000 good hashes.
    assert np.abs(counts - num_keys / num_items).max() < 5 * 46.8


@given(keys, st.integers(1, 200), st.integers(1, 250), st.data())
def test_any_slice_is_a_slice_of_the_whole(key: int, num_items: int, window: int, data: st.DataObject) -> None:
    whole = shuffled_slice(key, num_items, window, 0, num_items).tolist()
    assert sorted(whole) == list(range(num_items))
    start = data.draw(st.integers(0, num_items))
    stop = data.draw(st.integers(start, num_items))
    assert shuffled_slice(key, num_items, window, start, stop).tolist() == whole[start:stop]


@given(keys, st.integers(1, 200), st.integers(1, 250))
def test_no_item_leaves_its_window(key: int, num_items: int, window: int) -> None:
    for position, item in enumerate(shuffled_slice(key, num_items, window, 0, num_items).tolist()):
        assert earliest_position(item, num_items, window) <= position <= latest_position(item, num_items, window)
        if window < num_items:
            assert item - window < position < item + window


def test_bounds_are_reached() -> None:
    # Not merely true but tight: with a window of 2 some item is emitted at the earliest and some at the latest place.
    moves = {p - i for key in range(20) for p, i in enumerate(shuffled_slice(key, 50, 2, 0, 50).tolist())}
    assert moves == {-1, 0, 1}


def test_a_window_of_one_keeps_the_order_and_one_of_all_does_not() -> None:
    assert shuffled_slice(7, 100, 1, 0, 100).tolist() == list(range(100))
    whole = shuffled_slice(7, 100, 100, 0, 100)
    assert whole.tolist() == shuffled_slice(7, 100, 10**12, 0, 100).tolist()
    assert np.abs(whole - np.arange(100)).max() > 60


def test_largest_epoch_and_window_do_not_overflow() -> None:
    items, window = shuffle.MAX_ITEMS, 1 << 16
    got = shuffled_slice(3, items, window, items - 10, items)
    assert len(set(got.tolist())) == 10
    assert got.min() > items - 10 - window
    assert got.max() < items
    # Jitter of the widest window stays below the window, in fixed point.
    keys_ = shuffle._window_keys(5, 0, 1000, shuffle.MAX_WINDOW)
    jitter = keys_ - (np.arange(1000, dtype=np.uint64) << np.uint64(22))
    assert jitter.max() < shuffle.MAX_WINDOW << 22
    assert jitter.max() > (shuffle.MAX_WINDOW << 22) * 0.99


@pytest.mark.parametrize("position", [0, 10**6, 10**7 - 500])
def test_cost_does_not_depend_on_the_position(position: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    real = shuffle.hash_items

    def counting(key: int, start: int, stop: int) -> object:
        hashed.append(stop - start)
        return real(key, start, stop)

    monkeypatch.setattr(shuffle, "hash_items", counting)
    shuffled_slice(1, 10**7, 1000, position, position + 256)
    assert sum(hashed) <= 256 + 2 * 999


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 9), max_size=40), st.integers(0, 64))
def test_keys_are_ordered_as_by_a_stable_argsort(keys: list[int], shift: int) -> None:
    array = np.array(keys, np.uint64) >> np.uint64(min(shift, 63))
    before = array.copy()
    assert shuffle.stable_order(array).tolist() == np.argsort(array, kind="stable").tolist()
    assert np.array_equal(array, before)
