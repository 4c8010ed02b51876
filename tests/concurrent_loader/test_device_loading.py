"""The loader with a device that is made of the CPU: threads and workers, shards and mixtures, resume, statistics."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import torch

from concurrent_loader import (
    Augment,
    Batch,
    ColorJitter,
    ConcurrentDataLoader,
    Mixture,
    MixUp,
    Normalize,
    RandomResizedCrop,
    RandomVerticalFlip,
    ShardDataset,
    ToDtype,
)
from concurrent_loader.device import open_device
from concurrent_loader.errors import DecodeError, DeviceMemoryError, TooManyDecodeErrors, TransformError
from concurrent_loader.stats.wait_attribution import CAUSES
from concurrent_loader.storage import ShardWriter

sys.path.append(str(Path(__file__).parent / "device"))
from fake_device import FakeDevice

CROP = RandomResizedCrop(16)
NUM_SAMPLES = 40


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


@pytest.fixture
def dataset(image_url: str) -> Iterator[ShardDataset]:
    with ShardDataset(image_url) as dataset:
        yield dataset


def epoch(dataset: Any, **arguments: Any) -> list[Batch]:
    return list(ConcurrentDataLoader(dataset, batch_size=8, shuffle=True, seed=5, **arguments))


def same(one: list[Batch], other: list[Batch]) -> None:
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        assert left.sample_ids.tolist() == right.sample_ids.tolist()
        assert left.keys() == right.keys()
        assert torch.equal(left["label"], right["label"])
        assert (left["image"].shape, left["image"].dtype) == (right["image"].shape, right["image"].dtype)
        assert float((left["image"].float() - right["image"].float()).abs().mean()) < 1.0


@pytest.mark.parametrize("how", [CROP, "rgb", "gray"])
def test_the_device_gives_what_the_cpu_gives(dataset: ShardDataset, cuda: FakeDevice, how: Any, no_leaks: None) -> None:
    same(epoch(dataset, decode={"image": how}, device="cuda"), epoch(dataset, decode={"image": how}))
    assert sum(cuda.calls) == NUM_SAMPLES
    assert cuda.closed == 2  # when it has said what it decodes, and at the end


class FailOnce:
    """A batch transform that fails on its second batch, once."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, batch: Batch) -> Batch:
        self.num_calls += 1
        if self.num_calls == 2:
            raise ZeroDivisionError("once")
        return batch


def test_a_batch_whose_transform_fails_is_the_next_one_after_a_resume(dataset: ShardDataset, cuda: FakeDevice) -> None:
    for device in ("cuda", None):
        loader = ConcurrentDataLoader(
            dataset, 8, decode={"image": CROP}, device=device, batch_transform=FailOnce(), num_threads=1
        )
        seen: list[int] = []
        with pytest.raises(TransformError, match="once"):
            for batch in loader:
                seen += batch.sample_ids.tolist()
        assert loader.state_dict()["step"] == len(seen) // 8 == loader.stats.num_batches
        loader.load_state_dict(loader.state_dict())
        for batch in loader:
            seen += batch.sample_ids.tolist()
        assert seen == list(range(NUM_SAMPLES))


@pytest.mark.parametrize(
    ("how", "tolerance"),
    [
        (Augment(CROP, RandomVerticalFlip(0.5)), 1.0),
        (Augment(CROP, Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.25))), 0.02),
        (Augment(CROP, Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.25), torch.bfloat16, channels_last=True)), 0.03),
        (Augment(CROP, ToDtype(torch.float16)), 0.005),
        (Augment(CROP, ColorJitter(0.4, 0.4), ToDtype(torch.float32)), 0.01),
        (Augment(CROP), 1.0),
    ],
)
def test_augmentations_are_drawn_as_on_the_cpu(
    dataset: ShardDataset, cuda: FakeDevice, how: Augment, tolerance: float
) -> None:
    one, other = (epoch(dataset, decode={"image": how}, device=device) for device in ("cuda", None))
    for left, right in zip(one, other, strict=True):
        assert left["image"].dtype == right["image"].dtype
        assert left["image"].is_contiguous() == right["image"].is_contiguous()
        assert float((left["image"].float() - right["image"].float()).abs().mean()) < tolerance


def test_pictures_that_the_cpu_decoded_are_augmented_to_the_bit(
    cuda: FakeDevice, make_jpeg: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("concurrent_loader.device.deferred_decoder.screen", lambda *_: None)
    url = f"memory://{uuid4().hex}"
    with ShardWriter(url, columns={"image": "jpeg", "label": "int64"}) as writer:
        for number in range(16):
            writer.write({"image": make_jpeg(number), "label": number})
    how = Augment(CROP, ColorJitter(0.4, 0.4), Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.25)))
    with ShardDataset(url) as dataset:
        one, other = (epoch(dataset, decode={"image": how}, device=device) for device in ("cuda", None))
    for left, right in zip(one, other, strict=True):
        assert torch.equal(left["image"], right["image"])


def test_batches_are_mixed_on_the_device(dataset: ShardDataset, cuda: FakeDevice) -> None:
    arguments: dict[str, Any] = {"decode": {"image": CROP}, "batch_transform": MixUp(num_classes=NUM_SAMPLES)}
    one, other = (epoch(dataset, device=device, **arguments) for device in ("cuda", None))
    for left, right in zip(one, other, strict=True):
        assert torch.equal(left["label"], right["label"])
        assert float((left["image"].float() - right["image"].float()).abs().mean()) < 1.0


def test_all_numbers_of_stats_add_up(dataset: ShardDataset, cuda: FakeDevice) -> None:
    loader = ConcurrentDataLoader(dataset, batch_size=8, decode={"image": CROP}, device="cuda")
    for _ in loader:
        pass
    stats = loader.stats
    assert stats.wait_s == pytest.approx(sum(getattr(stats, f"wait_{cause}_s") for cause in CAUSES))
    assert stats.total_s == pytest.approx(stats.wait_s + stats.device_s + stats.consumer_s)
    assert stats.wait_device_s > 0
    assert (stats.num_device_decoded, stats.num_cpu_decoded) == (NUM_SAMPLES, 0)
    assert min(stats.fill_s, stats.device_decode_s, stats.device_augment_s, stats.device_bytes) > 0


def test_transforms_still_get_samples_and_the_batch_goes_by_the_stage(dataset: ShardDataset, cuda: FakeDevice) -> None:
    def darker(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "image": sample["image"] // 2}

    arguments: dict[str, Any] = {"decode": {"image": CROP}, "transform": darker}
    one, other = epoch(dataset, device="cuda", **arguments), epoch(dataset, **arguments)
    for left, right in zip(one, other, strict=True):
        assert torch.equal(left["image"], right["image"])
    assert not cuda.calls
    assert len(cuda.copied_bytes) == len(one)


def test_what_collate_fn_makes_is_left_alone(dataset: ShardDataset, cuda: FakeDevice) -> None:
    batches = epoch(dataset, decode={"image": CROP}, collate_fn=lambda samples: len(samples), device="cuda")
    assert batches == [8] * 5
    assert not cuda.log


def test_columns_that_stay_encoded_do(dataset: ShardDataset, cuda: FakeDevice) -> None:
    (first, *_) = epoch(dataset, device="cuda")
    assert isinstance(first["image"], list)
    assert not cuda.calls


def test_it_goes_on_where_it_was(dataset: ShardDataset, cuda: FakeDevice) -> None:
    arguments: dict[str, Any] = {"batch_size": 8, "shuffle": True, "decode": {"image": CROP}, "device": "cuda"}
    whole = list(ConcurrentDataLoader(dataset, **arguments))
    loader = ConcurrentDataLoader(dataset, **arguments)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    state = loader.state_dict()
    batches.close()  # type: ignore[attr-defined]
    resumed = ConcurrentDataLoader(dataset, **arguments)
    resumed.load_state_dict(state)
    same(list(resumed), whole[2:])
    for one, other in zip(list(resumed), list(ConcurrentDataLoader(dataset, **arguments, seed=0)), strict=False):
        assert one.step == other.step


def test_mixtures_by_batch_and_by_sample(dataset: ShardDataset, cuda: FakeDevice, image_url: str) -> None:
    with ShardDataset(image_url) as other:
        for per in ("batch", "sample"):
            mixture = Mixture([dataset, other], weights=[1, 1], per=per)
            same(
                epoch(mixture, decode={"image": CROP}, device="cuda"),
                epoch(mixture, decode={"image": CROP}),
            )


@pytest.fixture
def stored_url(tmp_path: Path, make_jpeg: Callable[..., bytes]) -> str:
    """Where workers find it, too."""
    with ShardWriter(str(tmp_path / "set"), columns={"image": "jpeg", "label": "int64"}, shard_size="6KiB") as writer:
        for number in range(NUM_SAMPLES):
            writer.write({"image": make_jpeg(number), "label": number})
    return str(tmp_path / "set")


@pytest.mark.processes
def test_workers_send_compressed_pictures(stored_url: str, cuda: FakeDevice, no_leaks: None) -> None:
    with ShardDataset(stored_url) as dataset:
        same(
            epoch(dataset, decode={"image": CROP}, device="cuda", num_workers=2),
            epoch(dataset, decode={"image": CROP}),
        )
    assert sum(cuda.calls) == NUM_SAMPLES


def test_out_of_memory_is_one_error_and_the_loader_can_be_left(
    dataset: ShardDataset, cuda: FakeDevice, no_leaks: None
) -> None:
    cuda.memory_bytes = 100
    loader = ConcurrentDataLoader(dataset, batch_size=8, decode={"image": CROP}, device="cuda")
    with pytest.raises(DeviceMemoryError):
        next(iter(loader))
    cuda.memory_bytes = 1 << 30
    assert len(list(loader)) == 5


@pytest.fixture
def broken_url(make_jpeg: Callable[..., bytes]) -> str:
    """16 samples: of number 11 header and end are whole, and nothing lies between; number 5 is no picture at all."""
    url = f"memory://{uuid4().hex}"
    with ShardWriter(url, columns={"image": "bytes", "label": "int64"}) as writer:
        for number in range(16):
            data = make_jpeg(number)
            changed = {11: data[:180] + b"\xff\xd9", 5: b"nothing"}
            writer.write({"image": changed.get(number, data), "label": number})
    return url


def test_a_broken_picture_is_an_error_that_names_it(cuda: FakeDevice, broken_url: str) -> None:
    arguments: dict[str, Any] = {"batch_size": 8, "decode": {"image": CROP}, "device": "cuda"}
    with ShardDataset(broken_url) as dataset:
        for view, sample in ((dataset, 5), (dataset.subset(range(8, 16)), 11)):
            with pytest.raises(DecodeError) as caught:
                list(ConcurrentDataLoader(view, **arguments))
            assert (caught.value.sample, caught.value.column) == (sample, "image")
            assert caught.value.key


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_broken_pictures_are_put_up_with_as_on_the_cpu(cuda: FakeDevice, broken_url: str, on_error: Any) -> None:
    arguments: dict[str, Any] = {"decode": {"image": CROP}, "on_error": on_error, "max_errors": 2}
    with ShardDataset(broken_url) as dataset:
        same(epoch(dataset, device="cuda", **arguments), epoch(dataset, **arguments))
        arguments["decode"] = {"image": Augment(CROP, Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.25)))}
        same(epoch(dataset, device="cuda", **arguments), epoch(dataset, **arguments))
        with pytest.raises(TooManyDecodeErrors):
            epoch(dataset, device="cuda", **{**arguments, "max_errors": 1})


def test_leaving_early_leaves_nothing(dataset: ShardDataset, cuda: FakeDevice, no_leaks: None) -> None:
    loader = ConcurrentDataLoader(dataset, batch_size=4, decode={"image": CROP}, device="cuda")
    for batch in loader:
        assert len(batch["label"]) == 4
        break
    assert cuda.closed == 2  # when it has said what it decodes, and at the end
