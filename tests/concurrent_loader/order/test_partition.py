"""Groups, batches and ranks partition an epoch: no place is taken twice, and none is missing."""

from __future__ import annotations

from math import gcd

from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.order.partition import GroupSlice, Partition


@st.composite
def partitions(draw: st.DrawFn) -> tuple[Partition, int]:
    world_size = draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
    batch = world_size * draw(st.integers(1, 12))
    groups = gcd(batch, draw(st.integers(1, 16)))
    return Partition(draw(st.integers(groups, 400)), batch, groups), world_size


def places(pieces: list[GroupSlice]) -> list[tuple[int, int]]:
    return [(piece.group, place) for piece in pieces for place in range(piece.start, piece.stop)]


@given(partitions())
def test_groups_are_even_and_give_each_batch_the_same(given_partition: tuple[Partition, int]) -> None:
    partition, _ = given_partition
    sizes = [partition.group_size(g) for g in range(partition.num_groups)]
    assert sum(sizes) == partition.num_samples
    assert max(sizes) - min(sizes) <= 1
    assert all(size >= partition.num_full_batches * partition.per_group for size in sizes)
    assert partition.per_group * partition.num_groups == partition.global_batch_size


@given(partitions())
def test_ranks_take_all_of_a_batch_in_order(given_partition: tuple[Partition, int]) -> None:
    partition, world_size = given_partition
    for part in (partition.full_slices, partition.last_slices, partition.padding_slices):
        together = [place for rank in range(world_size) for place in places(part(rank, world_size))]
        assert together == places(part(0, 1))
    done = partition.num_full_batches * partition.per_group
    assert places(partition.full_slices(0, 1)) == [
        (g, i) for g in range(partition.num_groups) for i in range(partition.per_group)
    ]
    assert places(partition.last_slices(0, 1)) == [
        (g, i) for g in range(partition.num_groups) for i in range(done, partition.group_size(g))
    ]


@given(partitions())
def test_a_rank_meets_its_own_groups_only(given_partition: tuple[Partition, int]) -> None:
    partition, world_size = given_partition
    for rank in range(world_size):
        own = set(partition.groups_of(rank, world_size))
        for part in (partition.full_slices, partition.last_slices, partition.padding_slices):
            assert {piece.group for piece in part(rank, world_size)} <= own
        if partition.num_groups % world_size == 0:
            assert len(own) == partition.num_groups // world_size


@given(partitions())
def test_padding_fills_every_rank_up(given_partition: tuple[Partition, int]) -> None:
    partition, world_size = given_partition
    for rank in range(world_size):
        last = places(partition.last_slices(rank, world_size))
        padding = places(partition.padding_slices(rank, world_size))
        assert len(last) + len(padding) == partition.global_batch_size // world_size


@given(partitions(), st.data())
def test_groups_over_a_run(given_partition: tuple[Partition, int], data: st.DataObject) -> None:
    partition, _ = given_partition
    start = data.draw(st.integers(0, partition.num_samples))
    stop = data.draw(st.integers(start, partition.num_samples))
    starts = partition.group_starts
    owners = {g for g in range(partition.num_groups) for p in range(starts[g], starts[g + 1]) if start <= p < stop}
    assert set(partition.groups_overlapping(start, stop)) == owners
