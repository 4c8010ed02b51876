"""The first batch's samples, fetched by themselves while their shards come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concurrent_loader import ConcurrentDataLoader, CorruptData, DigestMismatch, Mixture, ShardDataset
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.shards.manifest.manifest import shard_key

ROWS, VALUE_BYTES = 60, 40_000
NUM_SHARDS = 3


def value(number: int) -> bytes:
    return number.to_bytes(4, "little") * (VALUE_BYTES // 4)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("first-rows") / "data")
    with ShardWriter(path, columns={"data": "bytes", "number": "int64"}, shard_size=2_450_000) as writer:
        for number in range(NUM_SHARDS * ROWS):
            writer.write({"data": value(number), "number": number})
    return path


def far(url: str, **options: Any) -> ShardDataset:
    """Opens the dataset as if it were in a bucket: with requests, not in place."""
    return ShardDataset(url, client="fsspec", **options)


async def rows_of(source: Any, unit: int, rows: Any) -> Any:
    fetch = await source.row_fetcher(unit, rows)
    return None if fetch is None else await fetch()


def test_a_few_rows_take_a_request_per_neighbourhood(url: str) -> None:
    with far(url) as dataset:
        gets, num_bytes = dataset.fetch_stats.num_gets, dataset.fetch_stats.num_bytes
        rows = np.array([1, 2, 50])
        first = int(dataset.reader.first_samples[1])
        found: Any = dataset.loop.run(rows_of(dataset.source, 1, rows))
        assert dataset.fetch_stats.num_gets == gets + 3  # index, two neighbours, one more
        assert dataset.fetch_stats.num_bytes < num_bytes + 4 * VALUE_BYTES
        assert [bytes(data) for data in found.payload("data", rows)] == [value(first + row) for row in rows.tolist()]
        assert found.values("data", rows[::-1]) == [value(first + row) for row in rows[::-1].tolist()]
        assert found.values("number", rows).tolist() == (first + rows).tolist()


def test_whole_shards_where_rows_save_little_or_a_copy_is_there(url: str, tmp_path: Path) -> None:
    one = np.array([3])
    with ShardDataset(url) as here, far(url, cache_dir=str(tmp_path)) as cached:
        assert here.loop.run(rows_of(here.source, 0, one)) is None
        source, run = cached.source, cached.loop.run
        assert run(rows_of(source, 0, np.arange(20))) is None
        assert run(rows_of(source, 0, one)) is not None
        run(source.acquire(0))
        assert run(rows_of(source, 0, one)) is None
        source.release(0)
        assert run(rows_of(source, 0, one)) is None  # its file
        assert cached.select_columns(["number"]).source.num_bytes(0) < VALUE_BYTES
        assert run(rows_of(cached.select_columns(["number"]).source, 0, one)) is None  # only the index is needed


def test_wrong_bytes_are_noticed(url: str, tmp_path: Path) -> None:
    with far(url) as dataset:
        entry = dataset.manifest.shards[0]
        path = Path(url) / shard_key(entry.digest)
        data = path.read_bytes()
        try:
            path.write_bytes(data.replace(value(5), bytes(VALUE_BYTES)))
            with pytest.raises(DigestMismatch):
                dataset.loop.run(rows_of(dataset.source, 0, np.array([5])))
            assert dataset.loop.run(rows_of(dataset.source, 0, np.array([6]))) is not None
        finally:
            path.write_bytes(data)


def test_a_shard_with_fewer_samples_than_its_manifest_states_is_a_typed_error(url: str) -> None:
    with far(url) as dataset, pytest.MonkeyPatch.context() as patch:
        sound = dataset.reader.entry(0)
        patch.setattr(dataset.reader, "entry", lambda shard: replace(sound, num_samples=sound.num_samples + 1))
        with pytest.raises(CorruptData, match="number of samples"):
            dataset.loop.run(rows_of(dataset.source, 0, np.array([sound.num_samples])))


def test_padding_from_the_same_shard(url: str) -> None:
    """The first batch of the iteration is the last one of the epoch: few samples, and the first ones of the epoch."""
    with ShardDataset(url) as here, far(url) as there:

        def last(dataset: ShardDataset) -> tuple[list[int], list[bytes]]:
            view = dataset.subset(range(120, 180))
            loader = ConcurrentDataLoader(view, batch_size=19, last_batch="pad", groups=1, num_threads=1)
            loader.load_state_dict({**loader.state_dict(), "step": 3})
            (batch,) = loader
            assert batch.num_padded == 16
            return batch["number"].tolist(), batch["data"]

        assert last(there) == last(here)


@pytest.mark.slow
@pytest.mark.parametrize("mixed", [False, True])
def test_the_first_batch_is_the_same_at_any_step(url: str, mixed: bool) -> None:
    with ShardDataset(url) as here, far(url) as there:

        def batches(dataset: ShardDataset, step: int) -> list[tuple[list[int], list[bytes]]]:
            loader = ConcurrentDataLoader(
                Mixture([dataset, dataset]) if mixed else dataset, 4, shuffle=True, groups=1, num_threads=1
            )
            loader.load_state_dict({**loader.state_dict(), "step": step})
            return [(batch["number"].tolist(), batch["data"]) for batch in loader]

        for step in (0, 20):
            gets = there.fetch_stats.num_gets
            expected = batches(here, step)
            assert batches(there, step) == expected
            assert all(data == [value(number) for number in numbers] for numbers, data in expected)
            assert there.fetch_stats.num_gets - gets > NUM_SHARDS  # samples, besides the shards
