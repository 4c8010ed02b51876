"""Groups, batches and ranks as integers: nothing twice, nothing missing."""

from __future__ import annotations

from math import gcd

from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.split import Piece, Split


@st.composite
def splits(draw: st.DrawFn) -> tuple[Split, int]:
    world_size = draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
    batch = world_size * draw(st.integers(1, 12))
    groups = gcd(batch, draw(st.integers(1, 16)))
    return Split(draw(st.integers(groups, 400)), batch, groups), world_size


def places(pieces: list[Piece]) -> list[tuple[int, int]]:
    return [(piece.group, place) for piece in pieces for place in range(piece.start, piece.stop)]


@given(splits())
def test_groups_are_even_and_give_each_batch_the_same(given_split: tuple[Split, int]) -> None:
    split, _ = given_split
    sizes = [split.group_size(g) for g in range(split.num_groups)]
    assert sum(sizes) == split.num_samples
    assert max(sizes) - min(sizes) <= 1
    assert all(size >= split.num_full * split.per_group for size in sizes)
    assert split.per_group * split.num_groups == split.global_batch_size


@given(splits())
def test_ranks_take_all_of_a_batch_in_order(given_split: tuple[Split, int]) -> None:
    split, world_size = given_split
    for part in (split.full, split.last, split.padding):
        together = [place for rank in range(world_size) for place in places(part(rank, world_size))]
        assert together == places(part(0, 1))
    done = split.num_full * split.per_group
    assert places(split.full(0, 1)) == [(g, i) for g in range(split.num_groups) for i in range(split.per_group)]
    assert places(split.last(0, 1)) == [
        (g, i) for g in range(split.num_groups) for i in range(done, split.group_size(g))
    ]


@given(splits())
def test_a_rank_meets_its_own_groups_only(given_split: tuple[Split, int]) -> None:
    split, world_size = given_split
    for rank in range(world_size):
        own = set(split.groups_of(rank, world_size))
        for part in (split.full, split.last, split.padding):
            assert {piece.group for piece in part(rank, world_size)} <= own
        if split.num_groups % world_size == 0:
            assert len(own) == split.num_groups // world_size


@given(splits())
def test_padding_fills_every_rank_up(given_split: tuple[Split, int]) -> None:
    split, world_size = given_split
    for rank in range(world_size):
        last = places(split.last(rank, world_size))
        assert len(last) == split.num_last(rank, world_size)
        padding = places(split.padding(rank, world_size))
        assert len(last) + len(padding) == split.global_batch_size // world_size


@given(splits(), st.data())
def test_groups_over_a_run(given_split: tuple[Split, int], data: st.DataObject) -> None:
    split, _ = given_split
    start = data.draw(st.integers(0, split.num_samples))
    stop = data.draw(st.integers(start, split.num_samples))
    starts = split.group_starts
    owners = {g for g in range(split.num_groups) for p in range(starts[g], starts[g + 1]) if start <= p < stop}
    assert set(split.groups_over(start, stop)) == owners
