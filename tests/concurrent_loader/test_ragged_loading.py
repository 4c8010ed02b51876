"""Ragged columns through the loader: threads, workers and a device, resume, mixtures, transforms, broken images."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from concurrent_loader import Batch, ConcurrentDataLoader, Mixture, Pad, RandomResizedCrop, ShardDataset
from concurrent_loader.device import open_device
from concurrent_loader.errors import TransformError
from concurrent_loader.storage import ConfigurationError, ShardWriter

sys.path.append(str(Path(__file__).parent / "device"))
from fake_device import FakeDevice

NUM_SAMPLES = 30
COLUMNS = {"image": "jpeg", "boxes": "float32[...]", "tokens": "int32[...]", "label": "int64", "name": "str"}
ARRANGEMENTS: dict[str, Any] = {
    "default": {},
    "list": {"image": "list", "boxes": "list", "tokens": "list"},
    "pad": {"image": Pad(multiple=16, mask=True), "boxes": Pad(value=-1), "tokens": Pad(multiple=8)},
    "nested": {"image": "nested", "boxes": "nested", "tokens": "nested"},
    "packed": {"image": "packed", "boxes": "packed", "tokens": "packed"},
}


NESTED = pytest.param("nested", marks=pytest.mark.slow)  # torch imports its compiler, for 7 s


def boxes(number: int) -> Any:
    return np.random.default_rng(number).random((number % 4, 4), dtype=np.float32)


@pytest.fixture(scope="module")
def ragged_url(tmp_path_factory: pytest.TempPathFactory, make_jpeg: Callable[..., bytes]) -> str:
    url = str(tmp_path_factory.mktemp("ragged"))
    with ShardWriter(url, columns=COLUMNS, shard_size="8KiB") as writer:
        for number in range(NUM_SAMPLES):
            size = (32 + 16 * (number % 3), 32 + 8 * (number % 2))
            image = make_jpeg(number, size=size) if number != 13 else make_jpeg(number)[:300]
            tokens = np.arange(number % 7 + 1, dtype=np.int32)
            writer.write(
                {"image": image, "boxes": boxes(number), "tokens": tokens, "label": number, "name": f"{number}"}
            )
    return url


@pytest.fixture
def dataset(ragged_url: str) -> Iterator[ShardDataset]:
    with ShardDataset(ragged_url) as dataset:
        yield dataset


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevice]:
    """The device that loaders get where they ask for CUDA."""
    fake = FakeDevice()
    library = SimpleNamespace(
        resolve_cuda=lambda device: torch.device("cuda", device.index or 0), CudaBackend=lambda device, *, pinned: fake
    )
    monkeypatch.setattr(open_device, "_cuda", lambda: library)
    yield fake
    assert not fake.wrong


def load(dataset: Any, ragged: Any, **options: Any) -> ConcurrentDataLoader[Any]:
    arguments = {"decode": {"image": "rgb"}, "on_error": "skip", "max_errors": 5, "shuffle": True, "seed": 3}
    return ConcurrentDataLoader(dataset, **{"batch_size": 8, **arguments, **options}, ragged=ragged)


def parts(value: Any) -> list[Any]:
    """A column as tensors that can be compared."""
    if isinstance(value, torch.Tensor) and value.layout is torch.jagged:
        return [value.values(), value.offsets()]
    return value if isinstance(value, list) else [value]


def same(one: list[Batch], other: list[Batch]) -> None:
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        assert left.sample_ids.tolist() == right.sample_ids.tolist()
        assert set(left) == set(right)
        for name in right:
            assert type(left[name]) is type(right[name]), name
            for each, expected in zip(parts(left[name]), parts(right[name]), strict=True):
                if isinstance(expected, torch.Tensor):
                    assert each.dtype == expected.dtype
                    assert torch.equal(each, expected), name
                else:
                    assert each == expected


@pytest.mark.parametrize("how", ["default", "list", "pad", NESTED, "packed"])
def test_the_device_gives_what_the_cpu_gives(dataset: ShardDataset, cuda: FakeDevice, how: str) -> None:
    ragged = ARRANGEMENTS[how]
    expected = list(load(dataset, ragged))
    assert sum(len(batch.sample_ids) for batch in expected) == NUM_SAMPLES - 1  # without the broken image
    same(list(load(dataset, ragged, device="cuda")), expected)
    same(list(load(dataset, ragged, device="cuda", transform=dict)), expected)


def test_replaced_samples_come_with_all_of_their_columns(dataset: ShardDataset, cuda: FakeDevice) -> None:
    for device in (None, "cuda"):
        for batch in load(dataset, ARRANGEMENTS["packed"], on_error="replace", device=device):
            samples = batch.sample_ids.tolist()
            assert torch.equal(batch["boxes"], torch.cat([torch.from_numpy(boxes(number)) for number in samples]))
            assert batch["boxes_seq_lens"].tolist() == [number % 4 for number in samples]
            assert batch["label"].tolist() == samples


@pytest.mark.processes
@pytest.mark.parametrize("how", ["default", "pad", "nested", "packed"])
def test_workers_give_what_threads_give(dataset: ShardDataset, how: str) -> None:
    same(list(load(dataset, ARRANGEMENTS[how], num_workers=1)), list(load(dataset, ARRANGEMENTS[how])))


@pytest.mark.parametrize("how", ["pad", NESTED, "packed"])
def test_a_resumed_epoch_continues_with_the_same_batches(dataset: ShardDataset, how: str) -> None:
    ragged = ARRANGEMENTS[how]
    expected = list(load(dataset, ragged))
    first = load(dataset, ragged)
    iterator = iter(first)
    begun = [next(iterator), next(iterator)]
    second = load(dataset, ragged)
    second.load_state_dict(first.state_dict())
    same([*begun, *second], expected)


@pytest.mark.parametrize("how", ["default", "list", "pad", NESTED, "packed"])
def test_batches_with_ragged_columns_can_be_moved_and_printed(dataset: ShardDataset, how: str) -> None:
    batch = next(iter(load(dataset, ARRANGEMENTS[how])))
    moved = batch.to("meta")
    assert all(part.device.type == "meta" for name in ("image", "boxes") for part in parts(moved[name]))
    assert "boxes" in repr(batch)


def test_datasets_of_a_mixture_have_one_arrangement(dataset: ShardDataset, ragged_url: str) -> None:
    with ShardDataset(ragged_url) as other:
        mixture = Mixture([dataset.select_columns(["boxes"]), other.select_columns(["boxes"])])
        for batch in ConcurrentDataLoader(mixture, 6, ragged={"boxes": "pad"}):
            assert batch["boxes_lengths"].tolist() == [number % 4 for number in batch.sample_ids.tolist()]


def test_a_transform_may_make_ragged_columns(dataset: ShardDataset) -> None:
    def tokenize(sample: dict[str, Any]) -> dict[str, Any]:
        return {"ids": list(range(1, len(sample["name"]) + 1)), "noise": torch.ones(int(sample["label"]) % 3, 2)}

    loader = ConcurrentDataLoader(
        dataset.select_columns(["name", "label"]), 30, transform=tokenize, ragged={"ids": "pad"}
    )
    (batch,) = loader
    assert batch["ids"].tolist() == [[1, 0] if number < 10 else [1, 2] for number in range(30)]
    assert [len(value) for value in batch["noise"]] == [number % 3 for number in range(30)]


def test_arrays_in_samples_can_be_written_to(dataset: ShardDataset) -> None:
    def change(sample: dict[str, Any]) -> dict[str, Any]:
        sample["boxes"] += 1
        return {"boxes": torch.from_numpy(sample["boxes"])}

    samples = dataset.select_columns(["boxes"])
    for _ in range(2):  # the cache keeps its own bytes
        (batch,) = ConcurrentDataLoader(samples, 30, transform=change)
        assert all(torch.equal(value, torch.from_numpy(boxes(n) + 1)) for n, value in enumerate(batch["boxes"]))


def test_a_collate_fn_takes_the_option_itself(dataset: ShardDataset) -> None:
    with pytest.raises(ConfigurationError, match=r"collate\(samples, ragged=…\)"):
        ConcurrentDataLoader(dataset, 4, ragged={"boxes": "pad"}, collate_fn=list)


@pytest.mark.parametrize(
    ("ragged", "words"),
    [
        ({"box": "pad"}, "names a column that the dataset does not have"),
        ({"label": "pad"}, "have one shape"),
        ({"name": "pad"}, "not arrays"),
        ({"image": "pad"}, "a crop gives all images one size"),
        ({"boxes": "padded"}, "invalid value"),
        ("pad", "must map columns"),
    ],
)
def test_columns_that_cannot_be_ragged_are_refused_at_once(ragged: Any, words: str, dataset: ShardDataset) -> None:
    with pytest.raises(ConfigurationError, match=words):
        ConcurrentDataLoader(dataset, 4, decode={"image": RandomResizedCrop(8)}, ragged=ragged)


def test_encoded_images_cannot_be_ragged(dataset: ShardDataset) -> None:
    with pytest.raises(ConfigurationError, match="decode it"):
        ConcurrentDataLoader(dataset, 4, ragged={"image": "pad"})


def test_a_column_that_padding_would_add_must_not_exist() -> None:
    url = "memory://ragged-companions"
    with ShardWriter(url, columns={"x": "int32[...]", "x_mask": "int32"}, overwrite=True) as writer:
        writer.write({"x": [1], "x_mask": 1})
    with ShardDataset(url) as dataset, pytest.raises(ConfigurationError, match="would add the column 'x_mask'"):
        ConcurrentDataLoader(dataset, 4, ragged={"x": "pad"})


def test_a_failing_transform_is_named_as_ever(dataset: ShardDataset) -> None:
    with pytest.raises(TransformError, match="KeyError"):
        list(load(dataset, {"boxes": "pad"}, transform=lambda sample: sample["missing"]))
