"""The loader's `batching=` with torch samplers: their order, divided among the ranks, and resumed exactly."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler, SequentialSampler

from concurrent_loader import (
    ConfigurationError,
    LoaderStateError,
    NativeDataLoader,
    ShardDataset,
    ShardWriter,
    Weighted,
)

NUM = 203


def ids(batch: Any) -> list[int]:
    numbers = batch["label"].tolist()
    assert numbers == batch.sample_ids.tolist()
    return numbers[: len(numbers) - batch.num_padded]


def of_ranks(dataset: Any, world_size: int, batch_size: int, sampler: Any, **options: Any) -> list[list[int]]:
    ranks = [
        [
            ids(batch)
            for batch in NativeDataLoader(
                dataset, batch_size, batching=sampler, rank=rank, world_size=world_size, **options
            )
        ]
        for rank in range(world_size)
    ]
    return [[number for part in step for number in part] for step in zip(*ranks, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(("last_batch", "sizes"), [("short", 3), ("drop", 16), ("pad", 3)])
def test_a_sampler_gives_the_order(dataset: ShardDataset, last_batch: Any, sizes: int) -> None:
    numbers = list(range(NUM - 24, 0, -1))  # 179 = 11 * 16 + 3
    for world_size in (1, 2, 8):
        found = of_ranks(dataset, world_size, 16 // world_size, _Listed(numbers), last_batch=last_batch)
        assert [number for batch in found for number in batch] == numbers[: 176 if last_batch == "drop" else None]
        assert len(found[-1]) == sizes


def test_a_batch_sampler_gives_global_batches(dataset: ShardDataset) -> None:
    sampler = _Listed([[5, 5, 9, 200], [1], [7, 3, 2]])
    assert of_ranks(dataset, 1, 1, sampler) == [[5, 5, 9, 200], [1], [7, 3, 2]]
    assert of_ranks(dataset, 2, 1, sampler) == [[5, 5, 9, 200], [1], [7, 3, 2]]


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_random_samplers_resume_at_every_step(dataset: ShardDataset, own: bool) -> None:
    def make() -> NativeDataLoader:
        generator = torch.Generator() if own else None
        sampler = BatchSampler(RandomSampler(range(NUM), replacement=True, generator=generator), 40, drop_last=False)
        return NativeDataLoader(dataset, batching=sampler, seed=4)

    torch.manual_seed(1)
    first, second = ([ids(batch) for batch in loader] for loader in [make()] * 2)
    assert first != second
    torch.manual_seed(2)
    assert [ids(batch) for batch in make()] == first
    for step in range(len(first)):
        loader = make()
        batches = iter(loader)
        for _ in range(step):
            next(batches)
        other = make()
        other.load_state_dict(loader.state_dict())
        batches.close()
        assert [ids(batch) for batch in other] == first[step:]
    with pytest.raises(LoaderStateError, match="another order"):
        NativeDataLoader(dataset, batching=SequentialSampler(range(NUM)), seed=4).load_state_dict(make().state_dict())


def test_listing_leaves_the_random_numbers_alone(dataset: ShardDataset) -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    len(NativeDataLoader(dataset, 8, batching=RandomSampler(range(NUM))))
    assert torch.rand(1) == expected


def test_what_cannot_be_is_refused(dataset: ShardDataset) -> None:
    sampler = SequentialSampler(range(NUM))
    with pytest.raises(ConfigurationError, match="DistributedSampler"):
        NativeDataLoader(dataset, batching=DistributedSampler(range(NUM), 2, 0))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="shuffle"):
        NativeDataLoader(dataset, 4, shuffle=True, batching=sampler)
    with pytest.raises(ConfigurationError, match="sampling"):
        NativeDataLoader(dataset, 4, sampling=Weighted([1.0] * NUM), batching=sampler)
    with pytest.raises(ConfigurationError, match="batch_size"):
        NativeDataLoader(dataset, 4, batching=BatchSampler(sampler, 4, drop_last=False))
    with pytest.raises(IndexError, match="sample 203"):
        NativeDataLoader(dataset, 4, batching=_Listed([203]))
    with pytest.raises(ConfigurationError, match="list sample numbers"):
        NativeDataLoader(dataset, 4, batching=_Listed([0.5]))


class _Listed(Sampler[Any]):
    def __init__(self, listed: list[Any]) -> None:
        self._listed = listed

    def __iter__(self) -> Any:
        return iter(self._listed)


class Permuted(Sampler[int]):
    """Draws from NumPy or Python's random numbers."""

    def __init__(self, draw: str) -> None:
        self.draw = draw

    def __iter__(self) -> Iterator[int]:
        if self.draw == "numpy":
            return iter(np.random.permutation(NUM).tolist())
        return iter(random.sample(range(NUM), NUM))


@pytest.mark.processes
@pytest.mark.parametrize("draw", ["numpy", "python"])
def test_a_sampler_of_other_random_numbers_is_the_same_everywhere(tmp_path: Path, draw: str) -> None:
    with ShardWriter(str(tmp_path), columns={"label": "int64"}) as writer:
        for number in range(NUM):
            writer.write({"label": number})
    dataset, batches = ShardDataset(str(tmp_path)), []
    for num_workers, rank, world_size in ((0, 0, 1), (2, 0, 1), (0, 0, 2), (0, 1, 2)):
        np.random.seed(rank + 10 * num_workers)
        random.seed(rank + 10 * num_workers)
        loader = NativeDataLoader(
            dataset, 8 // world_size, batching=Permuted(draw), num_workers=num_workers, rank=rank, world_size=world_size
        )
        drawn = random.getstate(), np.random.get_state()[1].tolist()
        batches.append([ids(batch) for batch in loader])
        assert (random.getstate(), np.random.get_state()[1].tolist()) == drawn
    assert sorted(number for batch in batches[0] for number in batch) == list(range(NUM))
    assert batches[1] == batches[0]
    assert [one + other for one, other in zip(*batches[2:], strict=True)] == batches[0]
    dataset.close()
