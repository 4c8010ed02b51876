"""A batch keeps its place in the order through copies and moves."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from concurrent_loader.batch.batch import Batch


def make_batch() -> Batch:
    data = {"x": torch.ones(2, 3), "t": ["a", "b"]}
    return Batch(data, epoch=1, step=4, sample_ids=torch.tensor([7, 8]), num_padded=1)


def test_a_batch_is_a_dict_that_knows_its_place() -> None:
    batch = make_batch()
    assert isinstance(batch, dict)
    assert list(batch) == ["x", "t"]
    assert (batch.epoch, batch.step, batch.sample_ids.tolist(), batch.num_padded) == (1, 4, [7, 8], 1)
    assert repr(batch) == "Batch(epoch=1, step=4, {x: (2, 3) float32 on cpu, t: list of 2})"
    assert Batch().sample_ids.dtype == torch.int64


@pytest.mark.parametrize("again", [lambda b: pickle.loads(pickle.dumps(b)), lambda b: b.to("cpu")])
def test_copies_keep_the_place(again: Any) -> None:
    batch, other = make_batch(), again(make_batch())
    assert type(other) is Batch
    assert torch.equal(other["x"], batch["x"])
    assert other["t"] == batch["t"]
    assert (other.epoch, other.step, other.sample_ids.tolist(), other.num_padded) == (1, 4, [7, 8], 1)


def test_to_moves_tensors_and_nothing_else() -> None:
    moved = make_batch().to("meta", non_blocking=True)
    assert moved["x"].device.type == "meta"
    assert moved["t"] == ["a", "b"]
    assert moved.sample_ids.device.type == "cpu"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pinned_batches_reach_the_device() -> None:
    pinned = make_batch().pin_memory()
    assert pinned["x"].is_pinned()
    assert torch.equal(pinned.to("cuda", non_blocking=True)["x"].cpu(), make_batch()["x"])
