from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concurrent_loader import ConfigurationError, Packed
from concurrent_loader.order.packed_plan import PackedPlan
from concurrent_loader.order.protocol import BatchIndex

LENGTHS = st.lists(st.integers(0, 40), max_size=60)
PACKINGS = st.sampled_from(["split", "fit"])


def tokens_of(packed: Packed, order: Any, lengths: Any) -> list[list[tuple[int, int]]]:
    """Returns the (document, token) of each token, row by row."""
    rows = packed.rows(np.asarray(order, np.int64), np.asarray(lengths, np.int64))
    made: list[list[tuple[int, int]]] = [[] for _ in range(len(rows))]
    for document, row, start, stop in zip(*rows.pieces(np.arange(len(rows))), strict=True):
        made[row] += [(int(document), token) for token in range(start, stop)]
    return made


@given(LENGTHS, st.integers(1, 50), st.booleans(), st.randoms(use_true_random=False))
def test_split_rows_are_cuts_of_the_stream(lengths: list[int], length: int, with_eos: bool, rng: Any) -> None:
    order = list(range(len(lengths)))
    rng.shuffle(order)
    stream = [(number, token) for number in order for token in range(lengths[number] + with_eos)]
    rows = tokens_of(Packed("t", length, eos=0 if with_eos else None), order, lengths)
    assert rows == [stream[start : start + length] for start in range(0, len(stream), length)]


@given(LENGTHS, st.integers(1, 50), st.integers(1, 70))
def test_fit_cuts_only_what_is_longer_than_a_row(lengths: list[int], length: int, window: int) -> None:
    rows = tokens_of(Packed("t", length, packing="fit", window=window), range(len(lengths)), lengths)
    assert all(0 < len(row) <= length for row in rows)
    every = Counter(token for row in rows for token in row)
    assert every == Counter((number, token) for number, size in enumerate(lengths) for token in range(size))
    for row in rows:
        for number, count in Counter(number for number, _ in row).items():
            assert count == lengths[number] or count in (length, lengths[number] % length)


def test_fit_wastes_little() -> None:
    """The density that docs/how-to/text.md states."""
    lengths = np.random.default_rng(0).lognormal(6, 1, 20_000).astype(np.int64) + 1
    rows = Packed("t", 4096, packing="fit").rows(np.arange(len(lengths)), lengths)
    assert lengths.sum() / (len(rows) * 4096) > 0.998
    small = Packed("t", 4096, packing="fit", window=512).rows(np.arange(len(lengths)), lengths)
    assert lengths.sum() / (len(small) * 4096) > 0.97


def plan_of(lengths: list[int], packing: Any = "split", **options: Any) -> PackedPlan:
    sizes = np.asarray(lengths, np.int64)

    def draw(epoch: int) -> Any:
        order = np.random.default_rng(epoch).permutation(len(sizes))
        return Packed("t", 16, packing=packing, window=20).rows(order, sizes)

    bounds = np.unique(np.append(np.arange(0, len(sizes), 7), len(sizes))).astype(np.int64)
    given_: dict[str, Any] = {"global_batch_size": 8, "groups": 4, "last_batch": "short", **options}
    return PackedPlan(bounds=bounds, draw=draw, seed=1, epoch=0, window=1, shuffle=True, fingerprint=2, **given_)


def pieces_of(index: BatchIndex) -> list[list[tuple[int, int, int]]]:
    assert index.pieces is not None
    rows: list[list[tuple[int, int, int]]] = [[] for _ in range(index.pieces.num_rows)]
    each = (index.pieces.row, index.sample, index.pieces.start, index.pieces.stop)
    for row, *piece in zip(*(numbers.tolist() for numbers in each), strict=True):
        if not index.num_padded:
            rows[row].append(tuple(piece))
        else:
            assert piece[1] == piece[2]
    return rows


def real(index: BatchIndex) -> list[int]:
    return index.shard[: len(index) - index.num_padded].tolist()


@settings(max_examples=40)
@given(LENGTHS, PACKINGS, st.sampled_from(["short", "drop", "pad"]), st.sampled_from([1, 2, 4, 8]))
def test_any_number_of_ranks_reads_the_same_rows(
    lengths: list[int], packing: str, last_batch: str, groups: int
) -> None:
    plan = plan_of(lengths, packing, last_batch=last_batch, groups=groups)
    one = [pieces_of(index) for index in plan.batches()]
    for world_size in (2, 8):
        ranks = [[pieces_of(index) for index in plan.batches(0, rank, world_size)] for rank in range(world_size)]
        assert {len(rank) for rank in ranks} == {len(one)}
        together = [[row for part in step for row in part] for step in zip(*ranks, strict=True)]
        # A rank without a row gets one of padding.
        assert [[row for row in step if row] for step in together] == [[row for row in step if row] for step in one]
        assert all(part for step in zip(*ranks, strict=True) for part in step)
    num_rows = len(plan._rows)
    found = [piece for step in one for row in step for piece in row]
    if last_batch == "drop":
        assert all(len(step) == 8 and all(step) for step in one)
        assert len(one) == num_rows // 8
    else:
        assert sum(stop - start for _, start, stop in found) == sum(lengths)
        assert len(one) == -(-num_rows // 8)
    assert len(set(found)) == len(found)
    assert last_batch == "short" or all(len(step) == 8 for step in one)


@settings(max_examples=40)
@given(LENGTHS, PACKINGS, st.sampled_from([1, 2, 4]), st.sampled_from(["short", "drop"]))
def test_uses_of_shards_are_exact(lengths: list[int], packing: str, world_size: int, last_batch: str) -> None:
    plan = plan_of(lengths, packing, last_batch=last_batch)
    usage = plan.unit_usage(world_size)
    used = [list(plan.batches(0, rank, world_size)) for rank in range(world_size)]
    for shard in range(plan.num_units):
        steps = [[index.step for index in own for each in real(index) if each == shard] for own in used]
        for rank, own in enumerate(steps):
            assert plan.last_use_step(shard, rank, world_size) == max(own, default=-1)
            assert plan.max_samples_used(shard, rank, world_size) == len(own)
        every = [step for own in steps for step in own]
        assert usage.first_step[shard] == min(every, default=np.inf)
        assert usage.shared[shard] == (sum(map(bool, steps)) > 1)
    first = next((step for step, shard in plan.upcoming() if shard is not None), None)
    assert first == (0 if plan.max_steps else None)


def test_a_group_reads_its_own_part_of_the_stream() -> None:
    plan = plan_of([16] * 160, groups=4)
    rows = [[row[0][0] for row in pieces_of(index)] for index in plan.batches()]
    order = np.random.default_rng(0).permutation(160).tolist()
    assert [number for step in rows for number in step[:2]] == order[:40]
    assert plan.num_groups == 4
    assert replace(plan, epoch=1).batch(0).sample.tolist() != plan.batch(0).sample.tolist()


def test_wrong_steps_and_ranks_are_refused() -> None:
    plan = plan_of([5] * 30)
    with pytest.raises(ConfigurationError, match="no such step"):
        plan.batch(2)
    with pytest.raises(ConfigurationError, match="must divide"):
        plan.batches(0, 0, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"column": 3}, {"length": 0}, {"length": True}, {"window": 0}, {"eos": "</s>"}, {"packing": "best"},
        {"padding": None}, {"padding": 1.0},
    ],
)  # fmt: skip
def test_invalid_arguments_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Packed(**{"column": "t", **wrong})


def test_the_fingerprint_has_what_the_rows_depend_on() -> None:
    lengths = np.array([3, 4])
    made = [
        Packed("t", 8), Packed("u", 8), Packed("t", 9), Packed("t", 8, eos=0), Packed("t", 8, padding=1),
        Packed("t", 8, packing="fit"), Packed("t", 8, packing="fit", window=9),
    ]  # fmt: skip
    assert len({each.fingerprint(lengths) for each in made}) == len(made)
    assert Packed("t", 8).fingerprint(lengths) == Packed("t", 8, window=9).fingerprint(lengths)
    assert Packed("t", 8).fingerprint(lengths) != Packed("t", 8).fingerprint(lengths[::-1])
