"""The loader's `sampling=`, and repeated samples: the same batches for any number of ranks, and after any resume."""

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
    ConcurrentDataLoader,
    ConfigurationError,
    LoaderStateError,
    Mixture,
    NativeDataLoader,
    ObjectDataset,
    ShardDataset,
    Weighted,
)
from concurrent_loader.storage import ShardWriter

NUM = 203
SAMPLINGS = {
    "weighted": Weighted(np.arange(NUM) % 7),
    "column": Weighted("label", num_samples=90),
    "once": Weighted(np.arange(NUM) % 3, replacement=False),
    "balanced": Balanced("kind", num_samples=120),
}


@pytest.fixture(scope="module")
def many() -> Any:
    """203 samples in about 20 shards, of three classes of different sizes."""
    url = f"memory://{uuid4().hex}"
    with ShardWriter(url, columns={"data": "bytes", "label": "int64", "kind": "str"}, shard_size="6KiB") as writer:
        for number in range(NUM):
            kind = "abc"[0 if number < 10 else 1 + number % 2]
            writer.write({"data": number.to_bytes(2, "little") * 250, "label": number, "kind": kind})
    with ShardDataset(url) as dataset:
        yield dataset


def numbers(loader: Any) -> list[list[int]]:
    found = []
    for batch in loader:
        ids = batch.sample_ids.tolist()
        assert batch["label"].tolist() == ids
        assert [int.from_bytes(data[:2], "little") for data in batch["data"]] == ids
        found.append(ids[: len(ids) - batch.num_padded])
    return found


def of_ranks(dataset: Any, world_size: int, batch: int = 24, **options: Any) -> list[list[int]]:
    ranks = [
        numbers(NativeDataLoader(dataset, batch // world_size, rank=rank, world_size=world_size, **options))
        for rank in range(world_size)
    ]
    assert len({len(each) for each in ranks}) == 1
    return [[number for part in parts for number in part] for parts in zip(*ranks, strict=True)]


@pytest.mark.parametrize("name", SAMPLINGS)
def test_ranks_make_the_same_global_batches(many: ShardDataset, name: str) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "shuffle_window": 64, "sampling": SAMPLINGS[name]}
    one = of_ranks(many, 1, **options)
    drawn = SAMPLINGS[name].draw(many.column, NUM, seed=3, epoch=0)
    assert sorted(number for batch in one for number in batch) == drawn.tolist()
    for world_size in (2, 8):
        assert of_ranks(many, world_size, **options) == one


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(st.sampled_from(sorted(SAMPLINGS)), st.integers(0, 2**32), st.integers(0, 3), st.data())
def test_resumes_at_any_step(many: ShardDataset, name: str, seed: int, epoch: int, data: st.DataObject) -> None:
    def make(world_size: int, rank: int) -> NativeDataLoader:
        loader = NativeDataLoader(
            many, 16 // world_size, shuffle=True, seed=seed, shuffle_window=50, rank=rank, world_size=world_size,
            sampling=SAMPLINGS[name],
        )  # fmt: skip
        loader.set_epoch(epoch)
        return loader

    loader = make(1, 0)
    whole = numbers(loader)
    step = data.draw(st.integers(0, len(whole)))
    loader = make(1, 0)
    batches = iter(loader)
    for _ in range(step):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    batches.close()
    parts = []
    for rank in range(2):
        other = make(2, rank)
        other.load_state_dict(state)
        parts.append(numbers(other))
    assert [first + second for first, second in zip(*parts, strict=True)] == whole[step:]


def test_epochs_differ_and_other_weights_are_another_order(many: ShardDataset) -> None:
    loader = NativeDataLoader(many, 32, shuffle=True, sampling=Weighted("label"))
    first, second = (sorted(number for batch in numbers(loader) for number in batch) for _ in range(2))
    assert first != second
    assert len(first) == len(second) == NUM
    state = loader.state_dict()
    NativeDataLoader(many, 32, shuffle=True, sampling=Weighted("label")).load_state_dict(state)
    for sampling in (None, Weighted(np.ones(NUM)), Balanced("kind")):
        with pytest.raises(LoaderStateError, match="dataset"):
            NativeDataLoader(many, 32, shuffle=True, sampling=sampling).load_state_dict(state)


def test_a_view_is_sampled_by_its_own_samples(many: ShardDataset) -> None:
    view = many.subset(range(100, 110))
    loader = ConcurrentDataLoader(view, 5, sampling=Weighted([0] * 8 + [1, 3]))
    found = [number for batch in numbers(loader) for number in batch]
    assert found in ([108] * 2 + [109] * 8, [108] * 3 + [109] * 7)


def test_a_few_rare_samples_fetch_a_few_ranges(tmp_path: Path) -> None:
    with ShardWriter(str(tmp_path / "d"), columns={"data": "bytes", "label": "int64"}, shard_size="4MiB") as writer:
        for number in range(100):
            writer.write({"data": bytes([number]) * 100_000, "label": number})
    with ShardDataset(str(tmp_path / "d")) as dataset:
        weights = np.zeros(100)
        weights[[3, 50]] = 1
        loader = ConcurrentDataLoader(dataset, 10, shuffle=True, sampling=Weighted(weights))
        found = list(loader)
        assert sorted(number for batch in found for number in batch.sample_ids.tolist()) == [3] * 50 + [50] * 50
        assert all(
            data[0] == label for batch in found for data, label in zip(batch["data"], batch["label"], strict=True)
        )


def test_repeated_samples(many: ShardDataset) -> None:
    view = many.subset([7, 1, 1, 200, 1])
    assert len(view) == 5
    assert numbers(ConcurrentDataLoader(view, 2)) == [[1, 1], [1, 7], [200]]
    assert [sample["label"] for sample in view[:]] == [1, 1, 1, 7, 200]
    assert view.column("label").tolist() == [1, 1, 1, 7, 200]
    assert view.subset([0, 0, 4]).sample_numbers.tolist() == [1, 1, 200]
    assert view.fingerprint != many.subset([7, 1, 200]).fingerprint
    everything_and_more = many.subset([0, *range(NUM - 1)])
    assert everything_and_more.fingerprint != many.fingerprint
    shuffled = numbers(ConcurrentDataLoader(everything_and_more, 16, shuffle=True))
    assert sorted(number for batch in shuffled for number in batch) == [0, *range(NUM - 1)]


def test_objects_are_sampled_too(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number:02}.bin").write_bytes(bytes([number]))
    with ObjectDataset(str(tmp_path), suffixes=[".bin"], column="data", column_type="bytes") as dataset:
        loader = ConcurrentDataLoader(dataset, 8, shuffle=True, sampling=Weighted([0] * 10 + [1, 2], num_samples=30))
        found = [bytes(data)[0] for batch in loader for data in batch["data"]]
    assert sorted(found) == [10] * 10 + [11] * 20


def test_what_cannot_be_sampled_is_refused(many: ShardDataset) -> None:
    with pytest.raises(ConfigurationError, match="Mixture"):
        NativeDataLoader(Mixture([many, many]), 4, sampling=Balanced("kind"))
    with pytest.raises(ConfigurationError, match="sampling must be"):
        NativeDataLoader(many, 4, sampling="label")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="one weight per sample"):
        NativeDataLoader(many, 4, sampling=Weighted([1.0]))
