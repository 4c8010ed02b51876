"""The loader's `batching=ByLength(…)`: the same batches for any number of ranks, and after any resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from concurrent_loader import (
    Balanced,
    ByLength,
    ConcurrentDataLoader,
    ConfigurationError,
    LoaderStateError,
    Mixture,
    NativeDataLoader,
    ShardDataset,
)
from concurrent_loader.storage import SchemaError, ShardWriter

NUM = 203
LENGTHS = 1 + np.random.default_rng(5).integers(0, 60, NUM)


def write(url: str) -> None:
    columns = {
        "tokens": "int32[...]",
        "label": "int64",
        "size": "uint16",
        "text": "str",
        "pad": "bytes",
        "x": "float32",
    }
    with ShardWriter(url, columns=columns, shard_size="6KiB") as writer:
        for number, length in enumerate(LENGTHS.tolist()):
            tokens = np.full(length, number, np.int32)
            writer.write(
                {"tokens": tokens, "label": number, "size": length, "text": "é" * length, "pad": bytes(300), "x": 0.0}
            )


@pytest.fixture(scope="module")
def many() -> Any:
    url = f"memory://{uuid4().hex}"
    write(url)
    with ShardDataset(url) as dataset:
        yield dataset


def ids(batch: Any) -> list[int]:
    numbers = batch["label"].tolist()
    assert numbers == batch.sample_ids.tolist()
    return numbers[: len(numbers) - batch.num_padded]


def loader_of(dataset: Any, **options: Any) -> NativeDataLoader:
    return NativeDataLoader(
        dataset.select_columns(["label", "pad"]), **{"shuffle": True, "seed": 3, "shuffle_window": 64, **options}
    )


def test_lengths_come_without_payload(tmp_path: Path) -> None:
    write(str(tmp_path / "d"))
    with ShardDataset(str(tmp_path / "d")) as dataset:
        for name in ("tokens", "size", "text"):
            assert dataset.lengths(name).tolist() == LENGTHS.tolist()
        assert dataset.subset([5, 5, 9]).lengths("tokens").tolist() == LENGTHS[[5, 5, 9]].tolist()
        assert set(dataset.lengths("pad").tolist()) == {300}
        with pytest.raises(SchemaError, match="no lengths"):
            dataset.lengths("x")


def test_the_payload_is_not_fetched_for_the_lengths(many: ShardDataset) -> None:
    with ShardDataset(many.url) as dataset:
        before = dataset.fetch_stats.num_bytes
        dataset.lengths("tokens")
        payload = int(dataset.manifest.table.payload_bytes.sum())
        assert dataset.fetch_stats.num_bytes - before < dataset.manifest.num_bytes - payload + 1


@pytest.mark.slow
@pytest.mark.parametrize("last_batch", ["short", "drop", "pad"])
@pytest.mark.parametrize("tokens", [None, 64])
def test_ranks_make_the_same_global_batches(many: ShardDataset, last_batch: str, tokens: int | None) -> None:
    def made(world_size: int) -> list[list[int]]:
        parts = []
        for rank in range(world_size):
            each = 16 // world_size if tokens is None else 1
            batching = ByLength("tokens", max_tokens=None if tokens is None else tokens * 8 // world_size, buckets=6)
            loader = loader_of(
                many, batch_size=each, batching=batching, last_batch=last_batch, rank=rank, world_size=world_size
            )
            parts.append([ids(batch) for batch in loader])
            assert len(parts[-1]) == len(loader)
        return [[number for part in step for number in part] for step in zip(*parts, strict=True)]

    one = made(1)
    found = [number for batch in one for number in batch]
    assert len(found) == len(set(found))
    assert len(found) == NUM or last_batch == "drop"
    assert made(2) == made(8) == one


def test_tokens_of_a_rank_are_bounded(many: ShardDataset) -> None:
    for rank in range(4):
        loader = loader_of(many, batching=ByLength("size", max_tokens=130, buckets=8), rank=rank, world_size=4)
        for batch in loader:
            numbers = batch["label"].tolist()
            assert len(numbers) * LENGTHS[numbers].max() <= 130


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=12)
@given(st.integers(0, 2**32), st.integers(0, 3), st.booleans(), st.data())
def test_resumes_at_any_step(many: ShardDataset, seed: int, epoch: int, sampled: bool, data: st.DataObject) -> None:
    def make(world_size: int = 1, rank: int = 0) -> NativeDataLoader:
        loader = loader_of(
            many, seed=seed, batching=ByLength("text", max_tokens=400 // world_size, buckets=5), rank=rank,
            world_size=world_size, sampling=Balanced("size") if sampled else None,
        )  # fmt: skip
        loader.set_epoch(epoch)
        return loader

    whole = [ids(batch) for batch in make()]
    step = data.draw(st.integers(0, len(whole)))
    loader = make()
    batches = iter(loader)
    for _ in range(step):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    batches.close()
    parts = []
    for rank in range(2):
        other = make(2, rank)
        other.load_state_dict(state)
        parts.append([ids(batch) for batch in other])
    assert [first + second for first, second in zip(*parts, strict=True)] == whole[step:]


def test_other_buckets_are_another_order(many: ShardDataset) -> None:
    state = loader_of(many, batching=ByLength("size", max_tokens=200)).state_dict()
    loader_of(many, batching=ByLength("tokens", max_tokens=200)).load_state_dict(state)  # the same lengths
    for batching in (None, ByLength("size", max_tokens=201), ByLength("size", max_tokens=200, buckets=3)):
        with pytest.raises(LoaderStateError, match="another order"):
            loader_of(many, batching=batching).load_state_dict(state)


def test_epochs_differ_and_without_shuffling_they_do_not(many: ShardDataset) -> None:
    loader = loader_of(many, batching=ByLength("size"), batch_size=16)
    assert [ids(batch) for batch in loader] != [ids(batch) for batch in loader]
    loader = ConcurrentDataLoader(many.select_columns(["label"]), 16, batching=ByLength(LENGTHS, buckets=[20, 60]))
    first = [ids(batch) for batch in loader]
    assert [ids(batch) for batch in loader] == first
    assert first[0] == sorted(first[0])


def test_an_empty_view_has_no_batches(many: ShardDataset) -> None:
    assert list(loader_of(many.subset([]), batching=ByLength("size", max_tokens=100))) == []


@pytest.mark.processes
def test_worker_processes_make_the_same_batches(tmp_path: Path) -> None:
    write(str(tmp_path / "d"))
    with ShardDataset(str(tmp_path / "d")) as dataset:
        options: dict[str, Any] = {"batching": ByLength("size", max_tokens=200), "sampling": Balanced("size")}
        threads = [ids(batch) for batch in loader_of(dataset, **options)]
        assert [ids(batch) for batch in loader_of(dataset, num_workers=2, **options)] == threads


def test_what_cannot_be_batched_is_refused(many: ShardDataset) -> None:
    with pytest.raises(ConfigurationError, match="leave batch_size out"):
        loader_of(many, batch_size=4, batching=ByLength("size", max_tokens=100))
    with pytest.raises(ConfigurationError, match="one length per sample"):
        loader_of(many, batching=ByLength([1, 2]))
    with pytest.raises(ConfigurationError, match="name of a column"):
        loader_of(many, batching=ByLength(LENGTHS), sampling=Balanced("size"))
    with pytest.raises(ConfigurationError, match="Mixture"):
        NativeDataLoader(Mixture([many, many]), 4, batching=ByLength("size"))
    with pytest.raises(ConfigurationError, match="batching must be"):
        loader_of(many, batching="size")
