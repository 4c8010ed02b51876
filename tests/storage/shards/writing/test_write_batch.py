"""`ShardWriter.write_batch` gives the bytes that `write` gives, for columns of every type and library."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from concurrent_loader import add_column, rename_column
from concurrent_loader.storage.errors import SchemaError
from concurrent_loader.storage.shards.writing.writer import ShardWriter

COLUMNS = {
    "id": "int32", "weight": "float32", "flag": "bool?", "score": "float64?", "box": "float32[4]",
    "vector": "float32[300]", "tokens": "int32[...]", "caption": "str", "note": "str?", "meta": "json?",
    "data": "bytes?",
}  # fmt: skip
_RNG = np.random.default_rng(0)
NUM = 700


def _rows() -> list[dict[str, Any]]:
    return [
        {
            "id": np.int64(number),
            "weight": number / 3,
            "flag": None if number % 7 == 0 else number % 2 == 0,
            "score": None if number % 5 == 0 else float(number),
            "box": _RNG.random(4, np.float32),
            "vector": _RNG.random(300, np.float32),
            "tokens": _RNG.integers(0, 99, number % 40, np.int32),
            "caption": f"photograph {number} \u00e9" * (number % 4),
            "note": None if number % 3 else "n" * (number % 50),
            "meta": None if number % 4 == 0 else {"b": number, "a": [1, "x"]},
            "data": None if number % 9 == 0 else _RNG.bytes(number % 600),
        }
        for number in range(NUM)
    ]


ROWS = _rows()
BY_COLUMN = {name: [row[name] for row in ROWS] for name in COLUMNS}


def _objects(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def _written(folder: Path, columns: dict[str, str], write: Callable[[ShardWriter], None], **options: Any) -> Any:
    with ShardWriter(folder, columns=columns, shard_size="32KiB", **options) as writer:
        write(writer)
    return _objects(folder)


def _by_rows(rows: list[dict[str, Any]]) -> Callable[[ShardWriter], None]:
    def write(writer: ShardWriter) -> None:
        for row in rows:
            writer.write(row)

    return write


def test_batches_and_rows_give_the_same_bytes(tmp_path: Path) -> None:
    def write(writer: ShardWriter) -> None:
        bounds = [0, 0, 1, 2, 150, 151, 600, NUM]
        for start, stop in pairwise(bounds):
            if stop - start == 1:
                writer.write(ROWS[start])
            else:
                writer.write_batch({name: values[start:stop] for name, values in BY_COLUMN.items()})

    expected = _written(tmp_path / "rows", COLUMNS, _by_rows(ROWS))
    assert len(expected) > 20
    assert _written(tmp_path / "batches", COLUMNS, write) == expected


def test_batches_and_rows_give_the_same_bytes_beside_added_and_renamed_columns(tmp_path: Path) -> None:
    added = {"facts": "json", "text": "str", "vector": "float32[300]", "words": "int32[...]"}
    rows = [
        {
            "id": number, "meta": {"a": [number] * (number % 30)}, "facts": {"b": "x" * (number % 90)},
            "text": "y" * (number % 200), "vector": np.full(300, number, np.float32),
            "words": np.arange(number % 40, dtype=np.int32),
        }
        for number in range(NUM)
    ]  # fmt: skip
    columns = {"id": "int64", "meta": "json", **added}

    def made(folder: Path, write: Callable[[ShardWriter], None]) -> Any:
        _written(folder, {"id": "int64", "info": "json"}, lambda writer: writer.write({"id": -1, "info": {}}))
        rename_column(folder, "info", "meta")
        for name, type_ in added.items():
            add_column(folder, name, type_, [rows[0][name]])
        return _written(folder, columns, write, append=True)

    def by_batch(writer: ShardWriter) -> None:
        for start in (0, 500):
            part = rows[start : start + 500]
            writer.write_batch({name: [row[name] for row in part] for name in columns})

    expected = made(tmp_path / "rows", _by_rows(rows))
    assert made(tmp_path / "batches", by_batch) == expected


_NULLS = np.arange(NUM) % 5 == 0
LIBRARIES: dict[str, dict[str, Any]] = {
    "numpy": {
        "id": np.arange(NUM), "box": np.stack(BY_COLUMN["box"]), "caption": np.array(BY_COLUMN["caption"], object),
        "score": np.ma.MaskedArray(np.arange(NUM, dtype=float), mask=_NULLS), "tokens": BY_COLUMN["tokens"],
    },
    "torch": {
        "id": torch.arange(NUM), "box": torch.from_numpy(np.stack(BY_COLUMN["box"])), "score": BY_COLUMN["score"],
        "caption": BY_COLUMN["caption"], "tokens": [torch.from_numpy(each) for each in BY_COLUMN["tokens"]],
    },
    "Arrow": {
        "id": pa.chunked_array([np.arange(100), np.arange(100, NUM)]),
        "box": pa.FixedSizeListArray.from_arrays(np.concatenate(BY_COLUMN["box"]), 4),
        "score": pa.array(BY_COLUMN["score"]), "caption": pa.array(BY_COLUMN["caption"]),
        "tokens": pa.array(BY_COLUMN["tokens"], pa.list_(pa.int32())),
    },
    "polars": {
        "id": pl.Series(np.arange(NUM)), "box": pl.Series(np.stack(BY_COLUMN["box"])),
        "score": pl.Series(BY_COLUMN["score"]), "caption": pl.Series(BY_COLUMN["caption"]),
        "tokens": pl.Series(BY_COLUMN["tokens"], dtype=pl.List(pl.Int32)),
    },
    "pandas": {
        "id": pd.Series(np.arange(NUM)), "box": np.stack(BY_COLUMN["box"]),
        "score": pd.Series(BY_COLUMN["score"], dtype="Float64"), "caption": pd.Series(BY_COLUMN["caption"]),
        "tokens": pd.Series(BY_COLUMN["tokens"]),
    },
}  # fmt: skip


@pytest.mark.parametrize("library", LIBRARIES)
def test_columns_of_every_library(tmp_path: Path, library: str) -> None:
    batch = LIBRARIES[library]
    columns = {name: COLUMNS[name] for name in batch}
    rows = [{name: row[name] for name in batch} for row in ROWS]
    expected = _written(tmp_path / "rows", columns, _by_rows(rows))
    assert _written(tmp_path / "batch", columns, lambda writer: writer.write_batch(batch)) == expected


def test_tables(tmp_path: Path) -> None:
    columns = {"id": "int64", "caption": "str?"}
    captions = [None if number % 3 == 0 else str(number) for number in range(NUM)]
    expected = _written(
        tmp_path / "rows", columns, _by_rows([{"id": at, "caption": text} for at, text in enumerate(captions)])
    )
    data = {"id": np.arange(NUM), "caption": captions}
    for number, table in enumerate((pa.table(data), pl.DataFrame(data), pd.DataFrame(data))):
        made = _written(tmp_path / str(number), columns, lambda writer, table=table: writer.write_batch(table))  # type: ignore[misc]
        assert made == expected, type(table)


@pytest.mark.parametrize(
    ("columns", "batch", "sample", "column"),
    [
        ({"x": "int8"}, {"x": np.array([1, 2, 300])}, 3, "x"),
        ({"x": "uint64"}, {"x": np.array([1, -1])}, 2, "x"),
        ({"x": "int64"}, {"x": np.array([1, 2**63], np.uint64)}, 2, "x"),
        ({"x": "float16"}, {"x": np.array([1.0, np.inf, 1e6])}, 3, "x"),
        ({"x": "float32"}, {"x": np.array([0, 2**24 + 1])}, 2, "x"),
        ({"x": "float32"}, {"x": np.array([True])}, 1, "x"),
        ({"x": "bool"}, {"x": np.array([1])}, 1, "x"),
        ({"x": "int64"}, {"x": np.array([1.0])}, 1, "x"),
        ({"x": "int64"}, {"x": pa.array([1, None])}, 2, "x"),
        ({"x": "int64"}, {"x": [1, 2, "3"]}, 3, "x"),
        ({"x": "float32[2]"}, {"x": np.zeros((2, 3), np.float32)}, 1, "x"),
        ({"x": "float32[2]"}, {"x": np.zeros((2, 2))}, 1, "x"),
        ({"x": "int32", "y": "str"}, {"x": [1, 2], "y": ["a", 5]}, 2, "y"),
        ({"y": "str"}, {"y": ["a", "\ud800"]}, 2, "y"),
        ({"y": "bytes"}, {"y": [b"a", None]}, 2, "y"),
        ({"x": "int32", "y": "str"}, {"x": [1, 2], "y": ["a"]}, None, None),
        ({"x": "int32", "y": "str"}, {"x": [1, 2]}, None, None),
        ({"x": "int32"}, 5, None, None),
    ],
)  # fmt: skip
def test_one_bad_value_refuses_the_batch(
    tmp_path: Path, columns: dict[str, str], batch: Any, sample: int | None, column: str | None
) -> None:
    good = {name: {"s": "a", "b": b"a" if kind == "bytes" else True}.get(kind[0], 1) for name, kind in columns.items()}
    good = {name: [value] * 2 if "[" in columns[name] else value for name, value in good.items()}
    with ShardWriter(tmp_path, columns=columns) as writer:
        writer.write(good)
        with pytest.raises(SchemaError) as caught:
            writer.write_batch(batch)
        assert (caught.value.sample, caught.value.column) == (sample, column)
        assert writer.num_samples == 1
        writer.write(good)
    assert writer.manifest.num_samples == 2


def test_a_null_within_a_row_of_fixed_size_is_refused(tmp_path: Path) -> None:
    pairs = pa.FixedSizeListArray.from_arrays(pa.array([1.0, None, 3.0, 4.0], pa.float32()), 2)
    with (
        pytest.raises(SchemaError),
        ShardWriter(tmp_path, columns={"x": "float32[2]"}) as writer,
    ):
        writer.write_batch({"x": pairs})
