"""`compact`: the same samples in fewer bytes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concurrent_loader import ShardDataset, add_column, drop_column, rename_column
from concurrent_loader.storage import FetchEngine, ShardWriter, compact, delete, open_store, verify_dataset
from concurrent_loader.storage.errors import ConfigurationError, CorruptData
from concurrent_loader.storage.shards.editing import commit_edit as committing
from concurrent_loader.storage.shards.manifest.manifest import Manifest

COLUMNS = {
    "data": "bytes",
    "label": "int64",
    "box": "float32[2]",
    "name": "str",
    "info": "json",
    "ragged": "int16[...]",
}


def sample(number: int) -> dict[str, Any]:
    return {
        "data": number.to_bytes(2, "big") * (20 + number % 7),
        "label": number,
        "box": np.array([number, -number], np.float32),
        "name": f"sample {number}",
        "info": {"number": number},
        "ragged": np.arange(number % 4, dtype=np.int16),
    }


def write(url: str | Path, numbers: Any, **options: Any) -> None:
    with ShardWriter(url, columns=COLUMNS, shard_size="4KiB", **options) as writer:
        for number in numbers:
            writer.write(sample(number))


def check(url: str | Path, expected: list[int]) -> Manifest:
    """Compares every value, every way to read it, and every digest."""
    with ShardDataset(url) as dataset:
        rows = dataset[:]
        assert [row["label"] for row in rows] == dataset.column("label").tolist() == expected
        assert dataset.column("name") == [f"sample {number}" for number in expected]
        assert dataset.column("box").tolist() == [[number, -number] for number in expected]
        for row, number in zip(rows, expected, strict=True):
            for name, value in sample(number).items():
                np.testing.assert_array_equal(row[name], value)
        manifest = dataset.manifest

    async def verify() -> Any:
        async with open_store(url) as store:
            return await verify_dataset(FetchEngine(store), manifest)

    report = asyncio.run(verify())
    assert report.problems == ()
    assert report.num_samples == len(expected)
    return manifest


@pytest.fixture
def url() -> str:
    url = f"memory://compact-{uuid4().hex}"
    write(url, range(300))
    return url


def test_shards_below_the_limit_are_written_again(url: str) -> None:
    before = check(url, list(range(300)))
    per_shard = before.table.num_samples.tolist()
    first, second, third = np.cumsum([0, *per_shard])[:3].tolist()
    # Of shard 0 one row is left, of shard 1 all but one, of shard 3 none.
    third_end = sum(per_shard[:4])
    gone = [*range(first + 1, second), second, *range(sum(per_shard[:3]), third_end)]
    delete(url, ids=gone)
    live = [number for number in range(300) if number not in set(gone)]
    report = compact(url)
    after = check(url, live)
    assert (report.num_rewritten, report.num_samples, report.snapshot) == (2, len(live), 3)
    assert report.num_removed == len(gone) - 1
    assert report.num_bytes_saved == before.num_bytes - after.num_bytes > 0
    assert after.deleted is not None
    assert after.deleted.starts.tolist() == [1]  # the one of shard 1, in its new number
    assert after.shards[1] == before.shards[1]
    assert after.shards[2:] == (before.shards[2], *before.shards[4:])
    assert third == after.num_stored_samples - len(live) + third - 1
    with ShardDataset(url, snapshot=2) as old:
        assert old.column("label").tolist() == live


def test_nothing_below_the_limit(url: str) -> None:
    assert compact(url).snapshot == 1
    delete(url, ids=[5])
    report = compact(url)
    assert (report.snapshot, report.num_rewritten, report.num_bytes_written) == (2, 0, 0)


def test_all_deleted_rows(url: str) -> None:
    delete(url, where="label < 290 and label not in [3, 4, 150]")
    report = compact(url, below=1)
    live = [3, 4, 150, *range(290, 300)]
    after = check(url, live)
    assert after.deleted is None
    assert after.num_stored_samples == len(live)
    assert len(after.shards) == 2  # neighbours are joined; the last shard had no deleted row
    assert len(after.bundles) == 1
    assert compact(url, below=1).snapshot == report.snapshot == 3


def test_everything_is_deleted(url: str) -> None:
    delete(url, where="label >= 0")
    assert compact(url).num_removed == 300
    after = check(url, [])
    assert (len(after.shards), len(after.bundles), after.deleted) == (0, 0, None)
    write(url, [7], append=True)
    check(url, [7])


def test_statistics_and_metadata_stay(url: str) -> None:
    write(url, range(300, 310), append=True, metadata={"owner": "me"}, token="more")
    delete(url, where="label < 200")
    compact(url)
    manifest = check(url, list(range(200, 310)))
    assert manifest.metadata["owner"] == "me"
    assert manifest.metadata["commit_tokens"] == {"more": 2}
    assert manifest.statistics["label"] == {"max": 309, "min": 0}  # a bound


def test_another_writer_meanwhile(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    delete(url, where="label < 100")
    real, left = committing.commit, [1]

    async def late(*args: Any, **options: Any) -> None:
        if left.pop() if left else 0:
            await asyncio.to_thread(write, url, [500, 501], append=True)
            await asyncio.to_thread(write, url, [502], append=True)
        await real(*args, **options)

    monkeypatch.setattr(committing, "commit", late)
    report = compact(url, below=1)
    assert report.snapshot == 5
    check(url, [*range(100, 300), 500, 501, 502])


def test_a_rename_and_a_drop_meanwhile(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shards that the first attempt wrote have the columns of before."""
    delete(url, ids=range(0, 300, 2))  # in every shard
    real, left = committing.commit, [1]

    async def late(*args: Any, **options: Any) -> None:
        if left.pop() if left else 0:
            await asyncio.to_thread(rename_column, url, "label", "number")
            await asyncio.to_thread(drop_column, url, "name")
        await real(*args, **options)

    monkeypatch.setattr(committing, "commit", late)
    compact(url, below=1)
    with ShardDataset(url) as dataset:
        assert "name" not in dataset.columns
        assert [row["number"] for row in dataset[:]] == [number for number in range(300) if number % 2]
        assert dataset.column("number").tolist() == [number for number in range(300) if number % 2]


def test_a_damaged_shard_ends_it_with_nothing_committed(tmp_path: Path) -> None:
    write(tmp_path, range(300))
    delete(tmp_path, where="label < 10")
    with ShardDataset(tmp_path) as dataset:
        entry = dataset.manifest.shards[0]
    file = tmp_path / entry.key
    data = bytearray(file.read_bytes())
    data[entry.tail_start - 10] ^= 1
    file.chmod(0o600)
    file.write_bytes(data)
    with pytest.raises(CorruptData):
        compact(tmp_path, below=1)
    with ShardDataset(tmp_path) as dataset:
        assert dataset.manifest.snapshot == 2


@pytest.mark.parametrize("options", [{"below": -0.1}, {"below": 1.1}, {"below": True}, {"shard_size": "1KiB"}])
def test_wrong_options(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        compact(url, **options)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.data())
def test_against_a_plain_list(data: st.DataObject) -> None:
    url = f"memory://compact-{uuid4().hex}"
    model = list(range(data.draw(st.integers(1, 80))))
    write(url, model)
    for step in range(data.draw(st.integers(1, 3))):
        if model:
            low, high = sorted(data.draw(st.tuples(*[st.integers(0, len(model) - 1)] * 2)))
            ids = set(range(low, high + 1)) | data.draw(st.sets(st.integers(0, len(model) - 1), max_size=10))
            delete(url, ids=sorted(ids))
            model = [number for at, number in enumerate(model) if at not in ids]
        if data.draw(st.booleans()):
            write(url, [1000 + step], append=True)
            model.append(1000 + step)
        compact(url, below=data.draw(st.sampled_from([0.3, 0.5, 1.0])), shard_size="4KiB")
        check(url, model)


def test_added_columns_are_merged_into_the_new_shards(tmp_path: Path) -> None:
    url = tmp_path / "data"
    with ShardWriter(url, columns={"x": "int64", "data": "bytes"}, shard_size="4KiB") as writer:
        for number in range(40):
            writer.write({"x": number, "data": bytes([number]) * 500})
    add_column(url, "square", "int64", lambda row: row["x"] ** 2, inputs=["x"])
    delete(url, where="x < 10 or square > 1000")
    assert compact(url, below=1).num_removed == 18
    add_column(url, "y", "int64", np.arange(22))
    with ShardDataset(url) as dataset:
        assert [(row["x"], row["square"], row["y"]) for row in dataset[:]] == [
            (number, number**2, number - 10) for number in range(10, 32)
        ]
        assert dataset.column("square").tolist() == [number**2 for number in range(10, 32)]
