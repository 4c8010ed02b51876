from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.errors import SchemaError
from concurrent_loader.storage.shards.format.builder import FinishedShard
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.shards.writing.shard_sizing import ShardSplitter

COLUMNS = {"data": "bytes", "label": "int64", "points": "float32[...]", "text": "str", "facts": "json"}
SHARD_BYTES = 16 << 10


def sample(size: int, number: int = 0) -> dict[str, Any]:
    return {
        "data": bytes([number % 256]) * size,
        "label": number,
        "points": np.zeros((number % 5, 3), "f4"),
        "text": "é" * (size % 50),
        "facts": {"n": number, "quoted": '"' * (size % 30)},
    }


def cut(cutter: ShardSplitter, samples: list[dict[str, Any]]) -> list[FinishedShard]:
    builders = [builder for one in samples if (builder := cutter.add(one)) is not None]
    rest = cutter.take_rest()
    return [builder.finish() for builder in [*builders, *([rest] if rest else [])]]


@given(st.lists(st.integers(0, 3000), max_size=60))
def test_no_shard_is_larger_than_asked_for(sizes: list[int]) -> None:
    shards = cut(
        ShardSplitter(Schema.parse(COLUMNS), shard_bytes=SHARD_BYTES), [sample(size, i) for i, size in enumerate(sizes)]
    )
    assert sum(shard.num_samples for shard in shards) == len(sizes)
    assert all(shard.size <= SHARD_BYTES for shard in shards)


def test_shards_are_nearly_full() -> None:
    shard_bytes = 1 << 20
    shards = cut(ShardSplitter(Schema.parse(COLUMNS), shard_bytes=shard_bytes), [sample(2000, i) for i in range(2000)])
    assert all(shard_bytes * 0.97 < shard.size <= shard_bytes for shard in shards[:-1])


def test_many_small_samples() -> None:
    schema = Schema.parse({"label": "int16", "name": "str"})
    shards = cut(
        ShardSplitter(schema, shard_bytes=SHARD_BYTES), [{"label": i, "name": f"{i * 7919:x}"} for i in range(5000)]
    )
    assert len(shards) > 1
    assert all(shard.size <= SHARD_BYTES for shard in shards)


def test_a_sample_larger_than_a_shard_is_one_of_its_own() -> None:
    cutter = ShardSplitter(Schema.parse(COLUMNS), shard_bytes=SHARD_BYTES)
    shards = cut(cutter, [sample(10), sample(3 * SHARD_BYTES), sample(20)])
    assert [shard.num_samples for shard in shards] == [1, 1, 1]


@pytest.mark.parametrize("size", [10, 3000])
def test_a_refused_sample_moves_no_border(size: int) -> None:
    """Whether or not it would have been the one that opens the next shard."""
    clean = cut(ShardSplitter(Schema.parse(COLUMNS), shard_bytes=SHARD_BYTES), [sample(size, i) for i in range(40)])
    cutter = ShardSplitter(Schema.parse(COLUMNS), shard_bytes=SHARD_BYTES)
    shards = []
    for i in range(40):
        for wrong in ({"label": "x"}, {"data": "text"}, {"facts": object()}, {"text": "\ud800"}, {"points": "no"}):
            with pytest.raises(SchemaError):
                cutter.add({**sample(size, i), **wrong})
        if (builder := cutter.add(sample(size, i))) is not None:
            shards.append(builder.finish())
    rest = cutter.take_rest()
    assert rest is not None
    assert [shard.digest for shard in (*shards, rest.finish())] == [shard.digest for shard in clean]


def test_nothing_left() -> None:
    cutter = ShardSplitter(Schema.parse(COLUMNS), shard_bytes=SHARD_BYTES)
    assert cutter.take_rest() is None
    cutter.add(sample(1))
    assert cutter.num_samples == 1
    assert cutter.take_rest() is not None
    assert cutter.take_rest() is None
