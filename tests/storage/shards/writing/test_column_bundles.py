from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.storage.errors import SchemaError
from concurrent_loader.storage.shards.format.builder import FinishedShard, ShardBuilder
from concurrent_loader.storage.shards.format.index import verify_shard
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.shards.writing.column_bundles import BundleBuilder, fixed_row_bytes

SCHEMA = Schema.parse({"image": "bytes", "label": "int64", "box": "float32[4]", "good": "bool", "text": "str"})
FIXED = Schema(SCHEMA.fixed)


def columns(first: int, num_samples: int) -> dict[str, np.ndarray[Any, Any]]:
    label = np.arange(first, first + num_samples)
    return {"label": label, "box": np.stack([label.astype("f4")] * 4, axis=1), "good": label % 3 == 0}


def labels(bundle: FinishedShard) -> list[int]:
    return list(verify_shard(bundle.tobytes()).column("label"))


def test_row_bytes() -> None:
    assert fixed_row_bytes(SCHEMA) == 8 + 16 + 1


def test_runs_are_cut_at_their_size_whatever_the_shards() -> None:
    gatherer = BundleBuilder(SCHEMA, max_samples=10)
    runs = [
        labels(bundle)
        for first, size in ((0, 7), (7, 1), (8, 24))
        for bundle in gatherer.add(columns(first, size), size)
    ]
    runs += [labels(bundle) for bundle in gatherer.flush()]
    assert runs == [list(range(10)), list(range(10, 20)), list(range(20, 30)), [30, 31]]
    assert list(gatherer.flush()) == []


def test_wide_columns_make_smaller_runs() -> None:
    gatherer = BundleBuilder(SCHEMA, max_bytes=100)
    assert [bundle.num_samples for bundle in gatherer.add(columns(0, 9), 9)] == [4, 4]


def test_a_run_holds_at_least_a_sample() -> None:
    assert [bundle.num_samples for bundle in BundleBuilder(SCHEMA, max_bytes=1).add(columns(0, 2), 2)] == [1, 1]


def test_without_fixed_columns_there_are_no_bundles() -> None:
    gatherer = BundleBuilder(Schema.parse({"image": "bytes"}))
    assert [*gatherer.add({}, 5), *gatherer.flush()] == []


def test_a_bundle_holds_the_fixed_columns_and_nothing_else() -> None:
    gatherer = BundleBuilder(SCHEMA)
    assert list(gatherer.add(columns(0, 5), 5)) == []
    (bundle,) = gatherer.flush()
    index = verify_shard(bundle.tobytes())
    assert index.schema.names == ("label", "box", "good")
    for name, values in columns(0, 5).items():
        assert np.array_equal(index.column(name), values)


class TestExtendFixed:
    @given(st.lists(st.integers(0, 5), max_size=5))
    def test_equals_adding_one_by_one(self, sizes: list[int]) -> None:
        singly, together = ShardBuilder(FIXED), ShardBuilder(FIXED)
        first = 0
        for size in sizes:
            arrays = columns(first, size)
            together.extend_fixed(arrays)
            for row in range(size):
                singly.add({name: values[row] for name, values in arrays.items()})
            first += size
        assert together.num_samples == singly.num_samples == first
        assert together.finish().tobytes() == singly.finish().tobytes()

    def test_any_byte_order(self) -> None:
        builders = [ShardBuilder(FIXED), ShardBuilder(FIXED)]
        arrays = columns(0, 5)
        builders[0].extend_fixed(arrays)
        builders[1].extend_fixed(
            {name: values.astype(values.dtype.newbyteorder(">")) for name, values in arrays.items()}
        )
        assert builders[0].finish().tobytes() == builders[1].finish().tobytes()

    def test_strided(self) -> None:
        builders = [ShardBuilder(FIXED), ShardBuilder(FIXED)]
        builders[0].extend_fixed({name: values[::2] for name, values in columns(0, 9).items()})
        builders[1].extend_fixed({name: values[::2].copy() for name, values in columns(0, 9).items()})
        assert builders[0].finish().tobytes() == builders[1].finish().tobytes()

    @pytest.mark.parametrize(
        "change",
        [
            {"label": np.arange(4)},
            {"label": np.arange(5.0)},
            {"label": np.arange(5, dtype=np.int32)},
            {"box": np.zeros((5, 3), "f4")},
            {"good": np.zeros(5, np.uint8)},
            {"extra": np.zeros(5)},
        ],
    )
    def test_refuses_what_does_not_fit_and_stays_as_it_was(self, change: dict[str, np.ndarray[Any, Any]]) -> None:
        builder = ShardBuilder(FIXED)
        builder.extend_fixed(columns(0, 2))
        before = builder.finish().digest
        with pytest.raises(SchemaError):
            builder.extend_fixed({**columns(0, 5), **change})
        assert builder.num_samples == 2
        assert builder.finish().digest == before

    def test_refuses_other_schemas(self) -> None:
        with pytest.raises(SchemaError):
            ShardBuilder(SCHEMA).extend_fixed(columns(0, 2))
        with pytest.raises(SchemaError):
            ShardBuilder(Schema.parse({"image": "bytes"})).extend_fixed({})
