from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
import xxhash

from concurrent_loader.storage.errors import SchemaError
from concurrent_loader.storage.shards.format import builder as builder_module
from concurrent_loader.storage.shards.format.builder import FinishedShard, ShardBuilder
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES, FOOTER_BYTES, HEADER_BYTES
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.shards.writing.batch_columns import encode_batch

TYPES = {"image": "jpeg", "label": "int64", "text": "str", "box": "float32[4]", "points": "int16[...]"}


def sample(i: int) -> dict[str, Any]:
    return {
        "image": b"\xff\xd8\xff" + bytes([i]) * 10,
        "label": i,
        "text": f"sample {i}",
        "box": [float(i)] * 4,
        "points": np.arange(i, dtype="i2"),
    }


def filled(num_samples: int) -> ShardBuilder:
    builder = ShardBuilder(Schema.parse(TYPES))
    for i in range(num_samples):
        builder.add(sample(i))
    return builder


def state(builder: ShardBuilder) -> tuple[Any, ...]:
    return builder.num_samples, builder.payload_bytes, builder.estimated_bytes, builder.finish().digest


def test_the_same_samples_give_the_same_bytes_whatever_the_order_of_keys() -> None:
    turned = ShardBuilder(Schema.parse(TYPES))
    for i in range(20):
        turned.add(dict(reversed(sample(i).items())))
    assert turned.finish().tobytes() == filled(20).finish().tobytes()


@pytest.mark.parametrize(
    "change",
    [
        {"image": b"no image"},
        {"label": 2**63},
        {"label": None},
        {"text": 1},
        {"box": [1.0]},
        {"points": np.zeros(2)},
        {"surplus": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_sample_that_does_not_fit_changes_nothing(change: dict[str, Any]) -> None:
    builder = filled(3)
    before = state(builder)
    with pytest.raises(SchemaError):
        builder.add(sample(3) | change)
    missing = sample(3)
    del missing["points"]
    with pytest.raises(SchemaError, match="points"):
        builder.add(missing)
    assert state(builder) == before
    builder.add(sample(3))
    assert state(builder) == state(filled(4))


def test_samples_added_by_columns_are_as_those_added_one_by_one() -> None:
    schema = Schema.parse({"number": "int64?", "text": "str?", "data": "bytes?"})
    rows = [
        {"number": i if i % 2 else None, "text": f"{i}" if i % 3 else None, "data": bytes(i * 900) if i % 4 else None}
        for i in range(11)
    ]
    one_by_one, by_columns = ShardBuilder(schema), ShardBuilder(schema)
    for row in rows:
        one_by_one.add(row)
    columns = {name: [row[name] for row in rows] for name in schema.names}
    batch = encode_batch(schema, columns, {"text": lambda value: 0, "data": lambda value: 0})
    for some in (range(2), range(2, 7), range(7, 11)):
        by_columns.extend(batch.fixed, batch.values, batch.nulls, some)
    assert by_columns.finish().digest == one_by_one.finish().digest


def test_a_full_small_column_refuses_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder_module, "MAX_SMALL_COLUMN_BYTES", 30)
    builder = filled(3)
    before = state(builder)
    with pytest.raises(SchemaError, match="do not fit into one shard") as caught:
        builder.add(sample(3))
    assert caught.value.column == "text"
    assert state(builder) == before


def test_what_changes_after_it_was_added_does_not_change_the_shard() -> None:
    types = {"data": "bytes", "fixed": "float32[2,200]", "ragged": "int16[...]"}
    values = {"data": bytearray(b"abc"), "fixed": np.ones((2, 200), np.float32), "ragged": np.ones((3, 2), np.int16)}
    kept = {name: value.copy() for name, value in values.items()}
    builder, expected = ShardBuilder(Schema.parse(types)), ShardBuilder(Schema.parse(types))
    builder.add(values)
    expected.add(kept)
    for value in values.values():
        value[:] = bytes(len(value)) if isinstance(value, bytearray) else 0
    assert builder.finish().digest == expected.finish().digest


def test_a_large_value_is_copied_once() -> None:
    builder = ShardBuilder(Schema.parse({"data": "uint8[...]"}))
    value = np.zeros(32 << 20, np.uint8)
    tracemalloc.start()
    try:
        builder.add({"data": value})
        shard = builder.finish()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert shard.size > len(value)
    assert peak < 1.3 * len(value)


@pytest.mark.parametrize("not_a_sample", [None, [1], "image", 3, {"image"}])
def test_what_is_no_sample_is_refused(not_a_sample: Any) -> None:
    builder = filled(1)
    with pytest.raises(SchemaError, match="a sample must be a dict"):
        builder.add(not_a_sample)
    assert state(builder) == state(filled(1))


def test_finishing_changes_nothing() -> None:
    builder = filled(2)
    first = builder.finish().tobytes()
    assert builder.finish().tobytes() == first
    builder.add(sample(2))
    assert builder.finish().tobytes() == filled(3).finish().tobytes()


def check_facts(shard: FinishedShard, num_samples: int) -> None:
    data = shard.tobytes()
    chunks = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
    assert shard.size == len(data)
    assert shard.num_samples == num_samples
    assert shard.tail_start % 8 == 0
    assert shard.tail_start == math.ceil((HEADER_BYTES + shard.payload_bytes) / 8) * 8
    assert shard.digest == xxhash.xxh3_128_hexdigest(data)
    assert shard.chunk_digests == tuple(map(xxhash.xxh3_64_intdigest, chunks))


@pytest.mark.parametrize("num_samples", [0, 1, 7])
def test_what_is_said_of_a_shard_is_true(num_samples: int) -> None:
    check_facts(filled(num_samples).finish(), num_samples)


@pytest.mark.parametrize("num_bytes", [CHUNK_BYTES - HEADER_BYTES, CHUNK_BYTES, 2 * CHUNK_BYTES + 5])
def test_chunk_digests_follow_the_grid_through_parts_of_any_length(num_bytes: int) -> None:
    builder = ShardBuilder(Schema.parse({"image": "bytes"}))
    for value in (bytes(num_bytes), b"x" * 100, b"", b"y" * CHUNK_BYTES):
        builder.add({"image": value})
    check_facts(builder.finish(), 4)


def test_a_shard_that_ends_on_the_grid_has_no_empty_chunk() -> None:
    empty = ShardBuilder(Schema.parse({"image": "bytes"}))
    empty.add({"image": bytes(CHUNK_BYTES - 1000)})
    overhead = empty.finish().size - (CHUNK_BYTES - 1000)
    exact = ShardBuilder(Schema.parse({"image": "bytes"}))
    exact.add({"image": bytes(CHUNK_BYTES - overhead)})
    shard = exact.finish()
    assert shard.size == CHUNK_BYTES
    assert len(shard.chunk_digests) == 1
    check_facts(shard, 1)


@pytest.mark.parametrize("num_samples", [0, 1, 100])
def test_the_estimate_is_near_and_not_too_low(num_samples: int) -> None:
    builder = ShardBuilder(Schema.parse({"image": "jpeg", "label": "int64", "text": "str"}))
    for i in range(num_samples):
        builder.add({"image": b"\xff\xd8\xff" + bytes(500), "label": i, "text": str(i)})
    size = builder.finish().size
    assert size <= builder.estimated_bytes <= size + 1024


def test_fixed_values_are_what_was_added() -> None:
    builder = filled(3)
    np.testing.assert_array_equal(builder.fixed_values("label"), [0, 1, 2])
    np.testing.assert_array_equal(builder.fixed_values("box"), [[0.0] * 4, [1.0] * 4, [2.0] * 4])
    builder.add(sample(3))  # the array does not lock the builder's memory
    assert filled(0).fixed_values("box").shape == (0, 4)
    for name in ("image", "text", "unknown"):
        with pytest.raises(SchemaError):
            builder.fixed_values(name)


def test_a_shard_without_samples_is_header_and_tail() -> None:
    shard = filled(0).finish()
    assert shard.tail_start == HEADER_BYTES
    assert shard.size > HEADER_BYTES + FOOTER_BYTES
