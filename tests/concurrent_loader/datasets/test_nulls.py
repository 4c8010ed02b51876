"""Optional columns through the life of a dataset: written, read, loaded, filtered, deleted, compacted."""

from __future__ import annotations

import asyncio
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from concurrent_loader import Balanced, ConcurrentDataLoader, Mixture, ShardDataset, Weighted
from concurrent_loader.errors import CollateError, DecodeError
from concurrent_loader.storage import (
    ConfigurationError,
    FetchEngine,
    ShardWriter,
    compact,
    delete,
    load_manifest,
    open_store,
    purge,
    verify_dataset,
)

TYPES = {
    "id": "int64",
    "image": "jpeg?",
    "label": "int16?",
    "score": "float32?",
    "flag": "bool?",
    "box": "float32[2]?",
    "large": "int16[600]?",
    "name": "str?",
    "meta": "json?",
    "points": "int32[...]?",
}
NUM_SAMPLES = 60


def sample(number: int, jpeg: bytes) -> dict[str, Any]:
    """A sample whose nulls come only after the first shard, so that some shards and slices have none."""
    values = {
        "image": jpeg,
        "label": number,
        "score": number / 2,
        "flag": number % 2 == 0,
        "box": np.array([number, 1], np.float32),
        "large": np.full(600, number, np.int16),
        "name": f"n{number}",
        "meta": {"n": number},
        "points": np.arange(number % 4 * 2, dtype=np.int32).reshape(-1, 2),
    }
    names = list(values)
    gone = {names[(number + at) % len(names)] for at in range(3)} if number >= 10 else set()
    return {"id": number, **{name: None if name in gone else value for name, value in values.items()}}


@pytest.fixture(scope="module")
def jpeg() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 10, 10)).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, jpeg: bytes) -> str:
    url = str(tmp_path_factory.mktemp("nulls") / "data")
    write(url, jpeg)
    return url


def write(url: str, jpeg: bytes, numbers: range = range(NUM_SAMPLES), **options: Any) -> None:
    with ShardWriter(url, columns=TYPES, shard_size="16KiB", **options) as writer:
        for number in numbers:
            writer.write(sample(number, jpeg))


@pytest.fixture
def dataset(url: str) -> Iterator[ShardDataset]:
    with ShardDataset(url) as dataset:
        yield dataset


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def same(found: dict[str, Any], number: int, jpeg: bytes) -> bool:
    expected = {name: plain(value) for name, value in sample(number, jpeg).items()}
    return {name: plain(value) for name, value in found.items()} == expected


def test_samples(dataset: ShardDataset, jpeg: bytes) -> None:
    assert len(dataset.manifest.shards) > 2
    assert all(same(found, number, jpeg) for number, found in enumerate(dataset[:]))
    assert {number: dataset.sample(number)["image"] is None for number in (1, 17, 18)} == {
        1: False, 17: True, 18: True,
    }  # fmt: skip


def test_columns(dataset: ShardDataset, jpeg: bytes) -> None:
    rows = [sample(number, jpeg) for number in range(NUM_SAMPLES)]
    label = dataset.column("label")
    assert isinstance(label, np.ma.MaskedArray)
    assert label.tolist() == [row["label"] for row in rows]
    assert dataset.column("name") == [row["name"] for row in rows]
    scores = dataset.filter("id in [3, 40, 41, 42]").column("score")
    assert isinstance(scores, np.ma.MaskedArray)
    assert scores.tolist() == [rows[at]["score"] for at in (3, 40, 41, 42)]
    assert [math.isnan(each) for each in scores.filled()] == [rows[at]["score"] is None for at in (3, 40, 41, 42)]
    assert not isinstance(dataset.column("id"), np.ma.MaskedArray)
    lengths = dataset.lengths("name").tolist()
    assert lengths == [len(row["name"] or "") for row in rows]
    assert dataset.lengths("points").tolist() == [
        0 if row["points"] is None else row["points"].size + 2
        for row in rows  # exact for one dimension only
    ]
    assert dataset.lengths("label").tolist() == [row["label"] or 0 for row in rows]


def check(batch: Any, jpeg: bytes) -> None:
    rows = [sample(number, jpeg) for number in batch["id"].tolist()]
    fills = {"label": 0, "score": float("nan"), "flag": False, "box": float("nan"), "large": 0}
    for name, fill in fills.items():
        assert batch[f"{name}_valid"].tolist() == [row[name] is not None for row in rows]
        like = sample(0, jpeg)[name]
        expected = np.stack([np.full_like(like, fill) if row[name] is None else np.asarray(row[name]) for row in rows])
        np.testing.assert_array_equal(batch[name].numpy(), expected)
    assert batch["label"].dtype == torch.int16
    assert batch["score"].dtype == torch.float32
    assert batch["points_valid"].tolist() == [row["points"] is not None for row in rows]
    for found, row in zip(batch["points"], rows, strict=True):
        assert found.tolist() == ([] if row["points"] is None else row["points"].tolist())
    for name in ("name", "meta"):
        assert batch[name] == [row[name] for row in rows]
        assert f"{name}_valid" not in batch
    assert "id_valid" not in batch


@pytest.mark.parametrize("transform", [None, dict])
def test_batches(dataset: ShardDataset, jpeg: bytes, transform: Any) -> None:
    loader = ConcurrentDataLoader(dataset, batch_size=7, shuffle=True, seed=1, transform=transform)
    num_samples = 0
    for batch in loader:
        check(batch, jpeg)
        num_samples += len(batch["id"])
        assert batch["image"] == [sample(number, jpeg)["image"] for number in batch["id"].tolist()]
    assert num_samples == NUM_SAMPLES


def test_ragged_columns(dataset: ShardDataset, jpeg: bytes) -> None:
    view = dataset.select_columns(["id", "points"])
    for how in ("pad", "packed", "nested", "list"):
        batch = next(iter(ConcurrentDataLoader(view, batch_size=NUM_SAMPLES, ragged={"points": how})))
        rows = [sample(number, jpeg)["points"] for number in range(NUM_SAMPLES)]
        assert batch["points_valid"].tolist() == [row is not None for row in rows]
        if how == "pad":
            assert batch["points_lengths"].tolist() == [0 if row is None else len(row) for row in rows]


def test_a_batch_of_nulls_alone(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "d", columns=TYPES) as writer:
        for number in range(4):
            writer.write({**dict.fromkeys(TYPES), "id": number})
    with ShardDataset(tmp_path / "d") as dataset:
        for transform in (None, dict):
            batch = next(iter(ConcurrentDataLoader(dataset, batch_size=4, transform=transform)))
            assert batch["box"].shape == (4, 2)
            assert batch["large"].shape == (4, 600)
            assert (batch["label"].dtype, batch["score"].dtype) == (torch.int16, torch.float32)
            assert len(batch["points"]) == 4
            assert not batch["points_valid"].any()
            assert batch["name"] == [None] * 4


def test_images_that_are_null(dataset: ShardDataset, jpeg: bytes) -> None:
    view = dataset.select_columns(["id", "image"])
    missing = [number for number in range(NUM_SAMPLES) if sample(number, jpeg)["image"] is None]
    with pytest.raises(DecodeError, match="has no value to decode") as error:
        list(ConcurrentDataLoader(view, batch_size=NUM_SAMPLES, decode={"image": "rgb"}))
    assert (error.value.sample, error.value.column) == (missing[0], "image")
    loader = ConcurrentDataLoader(view, batch_size=20, decode={"image": "rgb"}, on_error="skip", max_errors=1.0)
    found = [number for batch in loader for number in batch["id"].tolist()]
    assert found == [number for number in range(NUM_SAMPLES) if number not in missing]


def test_a_transform_that_fills(dataset: ShardDataset) -> None:
    def fill(row: dict[str, Any]) -> dict[str, Any]:
        return {"label": -1 if row["label"] is None else int(row["label"]), "score": row["score"]}

    batch = next(iter(ConcurrentDataLoader(dataset, batch_size=NUM_SAMPLES, transform=fill)))
    assert (batch["label"] == -1).any()
    assert batch["label_valid"].all()
    assert not batch["score_valid"].all()


def test_names_of_companions_must_be_free(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "d", columns={"a": "int64?", "a_valid": "int64"}) as writer:
        writer.write({"a": None, "a_valid": 1})
    with ShardDataset(tmp_path / "d") as dataset, pytest.raises(CollateError, match="a_valid"):
        next(iter(ConcurrentDataLoader(dataset, batch_size=1)))


def test_filters(dataset: ShardDataset, jpeg: bytes) -> None:
    rows = [sample(number, jpeg) for number in range(NUM_SAMPLES)]

    def kept(text: Any, **options: Any) -> list[int]:
        return dataset.filter(text, **options).column("id").tolist()  # type: ignore[union-attr, no-any-return]

    assert kept("label is None") == [row["id"] for row in rows if row["label"] is None]
    assert kept("name is not None and flag") == [row["id"] for row in rows if row["name"] is not None and row["flag"]]
    assert kept("label < 20") == [row["id"] for row in rows if row["label"] is not None and row["label"] < 20]
    assert kept("name != 'n3'") == [row["id"] for row in rows if row["name"] not in (None, "n3")]
    assert kept(lambda row: row["label"] is None, columns=["label"]) == kept("label is None")
    assert kept(lambda columns: columns["label"] < 20, columns=["label"], vectorized=True) == kept("label < 20")
    with pytest.raises(ConfigurationError, match="between a column and None"):
        dataset.filter("label is 3")


def test_sampling_needs_values(dataset: ShardDataset) -> None:
    for sampling in (Balanced("label"), Balanced("name"), Weighted("score")):
        with pytest.raises(ConfigurationError, match="cannot be drawn"):
            next(iter(ConcurrentDataLoader(dataset, batch_size=4, sampling=sampling)))
    view = dataset.filter("flag is not None")
    assert next(iter(ConcurrentDataLoader(view, batch_size=4, sampling=Balanced("flag"))))["flag_valid"].all()


def test_a_mixture_with_a_plain_column(dataset: ShardDataset, tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "d", columns={"id": "int64", "label": "int16"}) as writer:
        for number in range(8):
            writer.write({"id": 100 + number, "label": 5})
    with ShardDataset(tmp_path / "d") as other:
        mixed = Mixture([dataset.select_columns(["id", "label"]), other], weights=[0.5, 0.5], per="sample")
        assert mixed.schema["label"].type == "int16?"
        for batch in ConcurrentDataLoader(mixed, batch_size=8):
            assert batch["label_valid"].shape == (8,)
            assert batch["label_valid"][batch["id"] >= 100].all()


def verify(url: str) -> None:
    async def run() -> None:
        async with open_store(url) as store:
            engine = FetchEngine(store)
            report = await verify_dataset(engine, await load_manifest(engine))
            assert not report.problems

    asyncio.run(run())


def test_a_life(tmp_path: Path, jpeg: bytes) -> None:
    url = str(tmp_path / "life")
    write(url, jpeg)
    write(url, jpeg, range(NUM_SAMPLES, 80), append=True)
    verify(url)
    rows = [sample(number, jpeg) for number in range(80)]
    with ShardDataset(url) as dataset:
        facts = dataset.manifest.statistics
        for name in ("label", "name", "image"):
            assert facts[name]["num_null"] == sum(row[name] is None for row in rows)
    kept = [row["id"] for row in rows if row["label"] is not None and row["id"] >= 20]

    def check_samples() -> None:
        with ShardDataset(url) as dataset:
            assert dataset.column("id").tolist() == kept  # type: ignore[union-attr]
            assert all(same(found, number, jpeg) for found, number in zip(dataset[:], kept, strict=True))
            label = dataset.column("label")
            assert label.tolist() == kept  # type: ignore[union-attr]

    delete(url, where="label is None or id < 20")
    check_samples()
    assert compact(url, below=1).num_rewritten
    check_samples()
    verify(url)
    delete(url, ids=[0])
    kept.pop(0)
    purge(url)
    check_samples()
    verify(url)
