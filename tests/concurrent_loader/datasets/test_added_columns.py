"""A loader delivers a dataset with added columns as one that was written with these columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concurrent_loader import ConcurrentDataLoader, ShardDataset, add_columns, drop_column, rename_column
from concurrent_loader.datasets.joined_source import JoinedSource
from concurrent_loader.storage import ShardWriter

NUM = 200
TYPES = {"data": "bytes", "label": "int64", "caption": "str", "vector": "float32[3]", "blob": "bytes"}


def row(number: int) -> dict[str, Any]:
    return {
        "data": bytes([number]) * (200 + number),
        "label": number,
        "caption": f"caption {number}",
        "vector": np.full(3, number, np.float32),
        "blob": bytes([number]) * (number % 7),
    }


def write(url: str, columns: dict[str, str], rows: range, **options: Any) -> None:
    with ShardWriter(url, columns=columns, shard_size="8KiB", **options) as writer:
        for number in rows:
            writer.write({name: value for name, value in row(number).items() if name in columns})


@pytest.fixture
def added(tmp_path: Path) -> str:
    """The columns of ``TYPES``, of which three were added, one renamed, and another one dropped."""
    url = str(tmp_path / "added")
    with ShardWriter(url, columns={"data": "bytes", "old": "json", "y": "int64"}, shard_size="8KiB") as writer:
        for number in range(NUM):
            writer.write({"data": row(number)["data"], "old": [number], "y": number})
    assert len(writer.manifest.shards) > 5
    rename_column(url, "y", "label")
    drop_column(url, "old")
    rest = {name: TYPES[name] for name in ("caption", "vector")}
    add_columns(url, rest, {name: [row(n)[name] for n in range(NUM)] for name in rest})
    add_columns(url, {"blob": "bytes"}, lambda sample: {"blob": row(sample["label"])["blob"]}, inputs=["label"])
    return url


@pytest.fixture
def native(added: str, tmp_path: Path) -> str:
    """The same samples, written with all columns, in shards with the same numbers of samples."""
    from concurrent_loader import convert

    convert(added, tmp_path / "native")
    return str(tmp_path / "native")


def plain(batch: Any) -> dict[str, Any]:
    return {name: each.tolist() if hasattr(each, "tolist") else each for name, each in batch.items()}


def batches(dataset: Any, **options: Any) -> list[dict[str, Any]]:
    options = {"batch_size": 16, "shuffle": True, "seed": 3, "shuffle_window": 60, **options}
    return [plain(batch) for batch in ConcurrentDataLoader(dataset, **options)]


@pytest.fixture
def pair(added: str, native: str) -> Iterator[tuple[ShardDataset, ShardDataset]]:
    with ShardDataset(added) as first, ShardDataset(native) as second:
        yield first, second


@pytest.mark.slow
def test_the_same_batches(pair: tuple[ShardDataset, ShardDataset]) -> None:
    first, second = pair
    assert isinstance(first.source, JoinedSource)
    assert first.schema == second.schema
    assert batches(first) == batches(second)
    assert batches(first, transform=lambda sample: {**sample, "n": len(sample["blob"])})[0]["n"]


@pytest.mark.slow
@pytest.mark.parametrize("columns", [["label"], ["caption", "blob"], ["data"], ["vector", "data"], ["blob"]])
def test_the_same_batches_of_some_columns(pair: tuple[ShardDataset, ShardDataset], columns: list[str]) -> None:
    first, second = (each.select_columns(columns) for each in pair)
    assert batches(first) == batches(second)
    few, same = (each.subset(range(5, 190, 37)) for each in (first, second))
    assert batches(few, batch_size=2) == batches(same, batch_size=2)
    np.testing.assert_equal(few[:], same[:])


def test_files_of_other_columns_are_not_fetched(added: str, tmp_path: Path) -> None:
    with ShardDataset(added) as dataset:
        kept = set(dataset.manifest.column_sets[0].table.keys)
    for path in Path(added, "shards").iterdir():
        if f"shards/{path.name}" not in kept:
            path.unlink()
    with ShardDataset(added, columns=["vector", "caption"]) as dataset:
        assert len(batches(dataset)) == 13


@pytest.mark.slow
def test_resume_after_columns_were_added(added: str) -> None:
    options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 3, "shuffle_window": "16KiB"}
    with ShardDataset(added, columns=["label"]) as dataset:
        whole = [plain(batch) for batch in ConcurrentDataLoader(dataset, **options)]
        loader = ConcurrentDataLoader(dataset, **options)
        iterator = iter(loader)
        begun = [plain(next(iterator)) for _ in range(4)]
        state = loader.state_dict()
        iterator.close()
    add_columns(added, {"extra": "bytes"}, {"extra": [b"e" * 900] * NUM})
    with ShardDataset(added) as dataset:
        loader = ConcurrentDataLoader(dataset, **options)
        loader.load_state_dict(state)
        rest = [plain(batch) for batch in loader]
    assert [batch["label"] for batch in begun + rest] == [batch["label"] for batch in whole]
    assert rest[0]["extra"] == [b"e" * 900] * 16


def test_a_warm_cache_needs_no_store(added: str, tmp_path: Path) -> None:
    with ShardDataset(added, cache_dir=tmp_path / "cache") as dataset:
        first = batches(dataset)
        before = dataset.fetch_stats.num_gets
        assert batches(dataset) == first
        assert dataset.fetch_stats.num_gets == before
        assert dataset.reader.cache._pins == {}


def test_damage_in_the_cache_is_repaired(added: str, tmp_path: Path) -> None:
    with ShardDataset(added, cache_dir=tmp_path / "cache") as dataset:
        want = batches(dataset)
        entry = dataset.manifest.column_sets[1].shards[2]
        (path,) = (each for each in (tmp_path / "cache").rglob("*") if entry.digest in each.name)
        data = bytearray(path.read_bytes())
        data[33] ^= 1  # in a payload value
        path.write_bytes(data)
        assert batches(dataset) == want
        assert dataset.reader.cache._pins == {}
        assert path.read_bytes() != bytes(data)


def test_damage_in_the_bucket_is_an_error(added: str) -> None:
    with ShardDataset(added) as dataset:
        entry = dataset.manifest.column_sets[1].shards[2]
        path = Path(added, entry.key)
        data = bytearray(path.read_bytes())
        data[33] ^= 1
        path.write_bytes(data)
        with pytest.raises(Exception, match=entry.digest):
            batches(dataset)


@pytest.mark.slow
def test_appended_samples_are_loaded(added: str, tmp_path: Path) -> None:
    write(added, TYPES, range(NUM, 250), append=True)
    write(str(tmp_path / "all"), TYPES, range(250))
    with ShardDataset(added) as dataset, ShardDataset(tmp_path / "all") as whole:
        got = sorted(sample for batch in batches(dataset) for sample in batch["label"])
        assert got == list(range(250))
        one, other = (batches(each, shuffle=False) for each in (dataset, whole))
        assert one == other


@pytest.mark.processes
def test_the_same_batches_with_workers(pair: tuple[ShardDataset, ShardDataset]) -> None:
    first, second = pair
    assert batches(first, num_workers=2) == batches(second)
