"""What a notebook shows, and `dataset.sample`: one sample with its images decoded."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from concurrent_loader import ConcurrentDataLoader, ConfigurationError, DecodeError, Mixture, ShardDataset
from concurrent_loader.batch.batch import Batch
from concurrent_loader.stats.loader_stats import LoaderStats


def test_a_sample_is_decoded(image_url: str) -> None:
    with ShardDataset(image_url) as dataset:
        sample = dataset.sample(17)
        assert (sample["image"].shape, sample["image"].dtype, sample["label"]) == ((3, 32, 48), torch.uint8, 17)
        assert dataset.sample(-1)["label"] == 39
        assert dataset.sample(3, decode={"image": "gray"})["image"].shape == (1, 32, 48)
        assert dataset.sample(3, decode={"image": len})["image"] == len(dataset[3]["image"])
        (batch,) = ConcurrentDataLoader(dataset.subset([17]), batch_size=1, decode={"image": "rgb"})
        assert torch.equal(batch["image"][0], sample["image"])
        assert dataset.subset([5, 17]).select_columns(["label"]).sample(1) == {"label": 17}


def test_what_cannot_be_decoded_is_named(url: str) -> None:
    with ShardDataset(url) as dataset:
        assert isinstance(dataset.sample(0)["data"], bytes)
        with pytest.raises(ConfigurationError, match="do not have"):
            dataset.sample(0, decode={"nothing": "rgb"})
        with pytest.raises(ConfigurationError, match="only image columns"):
            dataset.sample(0, decode={"label": "rgb"})
        with pytest.raises(DecodeError) as error:
            dataset.sample(-1, decode={"data": "rgb"})
        assert (error.value.sample, error.value.column) == (202, "data")
        with pytest.raises(IndexError):
            dataset.sample(203)


def test_a_dataset_in_a_notebook(url: str) -> None:
    dataset = ShardDataset(url)
    shown = dataset._repr_html_()
    for text in ("ShardDataset", url, "203 samples", "float32[4]", "data", "bytes"):
        assert text in shown
    assert "data" not in dataset.select_columns(["label"])._repr_html_()
    dataset.close()
    assert dataset._repr_html_() == shown


def test_a_batch_in_a_notebook(url: str) -> None:
    with ShardDataset(url) as dataset:
        batch = next(iter(ConcurrentDataLoader(dataset, batch_size=12)))
    shown = batch._repr_html_()
    for text in ("epoch 0, step 0", "(12,) int64 on cpu", "list of 12", "12 samples: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …"):
        assert text in shown
    assert "&lt;b&gt;" in Batch({"<b>": np.zeros(2)})._repr_html_()


def test_statistics_in_a_notebook() -> None:
    shown = LoaderStats(num_batches=1, num_samples=9, total_s=2.0, wait_s=1.0, wait_store_s=1.0)._repr_html_()
    for text in ("1 batch, 9 samples", "2.00 s, of which waiting 50.0%", "wait for store"):
        assert text in shown
    assert "wait for decode" not in shown


def test_what_print_shows(url: str) -> None:
    with ShardDataset(url) as dataset:
        loader = ConcurrentDataLoader(dataset, 50, shuffle=True, seed=7)
        next(iter(loader))
        lines = str(loader).splitlines()
        assert len(lines) == len(str(dataset).splitlines()) == 5
        for number, text in enumerate(
            (
                f"ConcurrentDataLoader of ShardDataset {url}",
                "5 batches of 50 samples per epoch, shuffled with seed 7, last batch: short",
                "rank 0 of 1, epoch 0, device cpu",
                "ahead",
                "delivered 1 batch, 50 samples; waited",
            )
        ):
            assert text in lines[number]
        for text in ("203 samples of", "float32[4]", "no cache", "fetched"):
            assert text in str(dataset)
        assert "columns: label int64" in str(dataset.select_columns(["label"]))
        assert str(Mixture([dataset] * 5)).splitlines()[-1] == "  and 2 others"
        copy = pickle.loads(pickle.dumps(dataset))
        assert str(copy) == repr(copy)
        assert "samples/s" in loader._repr_html_()
