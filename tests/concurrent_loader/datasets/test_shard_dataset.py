from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concurrent_loader import ObjectDataset, ShardDataset
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.errors import ConfigurationError, NotFound, SchemaError, StorageError, StoreClosed


def test_has_a_length_columns_and_samples(dataset: ShardDataset, make_payload: Callable[[int], bytes]) -> None:
    assert len(dataset) == 203
    assert dataset.columns == ("data", "label", "name", "box")
    sample = dataset[57]
    assert sample["data"] == make_payload(57)
    assert (sample["label"], sample["name"]) == (57, "sample 57")
    assert np.array_equal(sample["box"], np.arange(4, dtype=np.float32) + 57)
    assert sample["box"].dtype == np.float32


def test_indexes_like_a_sequence(dataset: ShardDataset) -> None:
    assert dataset[-1]["label"] == 202
    assert dataset[np.int64(3)]["label"] == 3
    assert [sample["label"] for sample in dataset[10:40:7]] == [10, 17, 24, 31, 38]
    assert [sample["label"] for sample in dataset[::-100]] == [202, 102, 2]
    assert dataset[5:5] == []
    for index in (203, -204):
        with pytest.raises(IndexError, match="dataset of 203"):
            dataset[index]


def test_reads_a_column_of_all_samples_in_few_requests(url: str) -> None:
    with ShardDataset(url) as dataset:
        before = dataset.fetch_stats.num_gets
        assert np.array_equal(dataset.column("label"), np.arange(203))
        assert dataset.fetch_stats.num_gets - before == 1
        assert dataset.column("box").shape == (203, 4)
        assert dataset.column("name") == [f"sample {n}" for n in range(203)]
        with pytest.raises(SchemaError, match="payload"):
            dataset.column("data")
        with pytest.raises(SchemaError, match="no such column"):
            dataset.column("lable")


def test_projection_leaves_other_columns_out(url: str) -> None:
    with ShardDataset(url, columns=["label", "name"]) as dataset:
        gets = dataset.fetch_stats.num_gets
        assert dataset[100] == {"label": 100, "name": "sample 100"}
        assert dataset.fetch_stats.num_gets == gets + 1  # the shard's tail and no payload
    with pytest.raises(SchemaError, match="no such column"):
        ShardDataset(url, columns=["lable"])


def test_the_snapshot_that_was_opened_is_the_one_that_is_read(url: str) -> None:
    with ShardDataset(url) as old:
        with ShardWriter(url, columns=old.schema.to_dict(), append=True) as writer:
            writer.write({"data": b"new", "label": 203, "name": "sample 203", "box": np.zeros(4, np.float32)})
        assert len(old) == 203
        with ShardDataset(url) as new, ShardDataset(url, snapshot=1) as first:
            assert (len(new), len(first)) == (204, 203)
            assert new[203]["data"] == b"new"
            assert len(new.column("label")) == 204


def test_where_there_is_nothing_the_error_names_the_place(baseline: None) -> None:
    with pytest.raises(NotFound, match="memory://nothing-here"):
        ShardDataset("memory://nothing-here")


def test_a_snapshot_that_does_not_exist_is_an_error(url: str) -> None:
    with pytest.raises(NotFound):
        ShardDataset(url, snapshot=7)


def test_cache_bytes_without_a_folder_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="cache_dir"):
        ShardDataset(url, cache_bytes="1GiB")


def test_pickles_as_its_options_and_keeps_its_snapshot(tmp_path: Path) -> None:
    url = str(tmp_path / "dataset")
    with ShardWriter(url, columns={"label": "int64"}) as writer:
        writer.write({"label": 1})
    with ShardDataset(url) as dataset:
        data = pickle.dumps(dataset)
    with ShardWriter(url, columns={"label": "int64"}, append=True) as writer:
        writer.write({"label": 2})
    with pickle.loads(data) as copy:
        assert len(copy) == 1
        assert copy[0] == {"label": 1}


def test_closing_leaves_nothing_and_is_final(url: str, baseline: None) -> None:
    dataset = ShardDataset(url)
    assert dataset[0]["label"] == 0
    dataset.close()
    dataset.close()
    with pytest.raises(StoreClosed):
        dataset[0]


def test_forgetting_it_closes_it(url: str, baseline: None) -> None:
    dataset = ShardDataset(url)
    assert dataset[0]["label"] == 0
    del dataset


@pytest.mark.parametrize("kind", [ShardDataset, ObjectDataset])
@pytest.mark.parametrize(("url", "meant"), [("my-bucket", "s3://my-bucket"), ("s3:/my-bucket/x", "s3://my-bucket/x")])
def test_a_forgotten_scheme_is_asked_for(kind: type, url: str, meant: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError, match=f"did you mean '{meant}'"):
        kind(url)
    if "/" in url:
        with pytest.raises(ConfigurationError, match=f"did you mean '{meant}'"):
            ShardWriter(url, columns={"label": "int64"})
    assert list(tmp_path.iterdir()) == []


def test_a_relative_path_that_exists_or_is_a_path_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("new", "./other/new", Path("third/new")):
        with ShardWriter(url, columns={"label": "int64"}) as writer:
            writer.write({"label": 1})
    for url in ("new", "other/new", Path("third/new"), "./new"):
        with ShardDataset(url) as dataset:
            assert len(dataset) == 1
