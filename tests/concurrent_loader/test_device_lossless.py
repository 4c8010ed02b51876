"""Lossless pictures on a device that is made of the CPU: prepared by threads or workers, decoded where they arrive."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch

from concurrent_loader import (
    Augment,
    Batch,
    CenterCrop,
    ConcurrentDataLoader,
    Normalize,
    RandomResizedCrop,
    ShardDataset,
)
from concurrent_loader.decode import parse_header
from concurrent_loader.device import open_device
from concurrent_loader.errors import DecodeError
from concurrent_loader.lossless import TilePlan
from concurrent_loader.storage import ShardWriter
from concurrent_loader.storage.lossless import encode

sys.path.append(str(Path(__file__).parent / "device"))
from fake_device import FakeDevice

CROP = RandomResizedCrop(16)
NUM_SAMPLES = 24
COLUMNS = {"image": "image/lossless", "label": "int64"}


def pixels(number: int, channels: int = 3, size: tuple[int, int] = (150, 200), dtype: Any = np.uint8) -> np.ndarray:
    y, x = np.mgrid[: size[0], : size[1]]
    soft = [120 + 60 * np.sin((x + number) / 13 + each) + 40 * np.cos(y / 9 - number) for each in range(channels)]
    noise = np.random.default_rng(number).normal(0, 2, (channels, *size))
    return (np.stack(soft) + noise).clip(0, 255).astype(dtype)


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


def stored(pictures: list[bytes], columns: dict[str, str] = COLUMNS, *, url: str = "") -> str:
    url = url or f"memory://{uuid4().hex}"
    with ShardWriter(url, columns=columns) as writer:
        for number, data in enumerate(pictures):
            writer.write({"image": data, "label": number})
    return url


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Pictures of one size: gray, with alpha, coloured, stored with zstd, without, and as they are."""
    made = [encode(pixels(number, 1 + number % 4), compress=number % 3 > 0) for number in range(NUM_SAMPLES - 1)]
    noise = np.random.default_rng(1).integers(0, 256, (3, 150, 200)).astype(np.uint8)
    return stored([*made, encode(noise)], url=str(tmp_path_factory.mktemp("stored")))


def epoch(url: str, **arguments: Any) -> list[Batch]:
    with ShardDataset(url) as dataset:
        return list(ConcurrentDataLoader(dataset, batch_size=8, shuffle=True, seed=5, **arguments))


def same(one: list[Batch], other: list[Batch], difference: float) -> None:
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        assert torch.equal(left["label"], right["label"])
        assert (left["image"].shape, left["image"].dtype) == (right["image"].shape, right["image"].dtype)
        assert float((left["image"].float() - right["image"].float()).abs().max()) <= difference


@pytest.mark.parametrize(
    ("how", "difference"),
    [
        ("rgb", 0),
        ("gray", 0),
        (CROP, 1),  # resized on the device: rounded differently
        (CenterCrop(16), 1),
        (Augment(CROP, Normalize((0.5,) * 3, (0.2,) * 3)), 1.01 / 255 / 0.2),
    ],
)
def test_the_device_gives_what_the_cpu_gives(
    url: str, cuda: FakeDevice, how: Any, difference: float, no_leaks: None
) -> None:
    same(epoch(url, decode={"image": how}, device="cuda"), epoch(url, decode={"image": how}), difference)
    assert cuda.calls == [8] * (NUM_SAMPLES // 8)


def test_alpha_is_kept_where_it_was_asked_for(cuda: FakeDevice) -> None:
    url = stored([encode(pixels(number, 4)) for number in range(8)])
    same(
        epoch(url, decode={"image": "unchanged"}, device="cuda"),
        epoch(url, decode={"image": "unchanged"}),
        difference=0,
    )
    assert cuda.calls == [8]


def test_nobody_waits_for_the_device(url: str, cuda: FakeDevice) -> None:
    with ShardDataset(url) as dataset:
        loader = ConcurrentDataLoader(dataset, batch_size=8, decode={"image": CROP}, device="cuda")
        assert len(list(loader)) == 3
        assert (loader.stats.num_device_decoded, loader.stats.num_cpu_decoded) == (NUM_SAMPLES, 0)
    assert "drain" not in cuda.log
    assert cuda.log.count("copy") == 3


@pytest.mark.slow
def test_only_the_groups_of_a_crop_are_copied(cuda: FakeDevice) -> None:
    url = stored([encode(pixels(number, size=(300, 1400)), compress=False) for number in range(8)])
    with ShardDataset(url) as dataset:
        for how in ("rgb", CenterCrop(48)):
            list(ConcurrentDataLoader(dataset, batch_size=8, decode={"image": how}, device="cuda"))
    whole, part = cuda.copied_bytes
    assert part < 0.4 * whole  # of three groups in each row the middle one


@pytest.mark.processes
def test_workers_prepare_pictures_too(url: str, cuda: FakeDevice) -> None:
    same(
        epoch(url, decode={"image": CROP}, device="cuda", num_workers=2),
        epoch(url, decode={"image": CROP}),
        difference=1,
    )
    assert sum(cuda.calls) == NUM_SAMPLES


def test_16_bits_are_decoded_by_the_cpu(cuda: FakeDevice) -> None:
    url = stored([encode(pixels(number, 1, dtype=np.uint16)) for number in range(8)])
    for how in ("unchanged", "rgb"):
        same(epoch(url, decode={"image": how}, device="cuda"), epoch(url, decode={"image": how}), difference=0)
    assert not cuda.calls


def test_a_device_without_the_kernel_gets_pixels(url: str, cuda: FakeDevice) -> None:
    cuda.codecs = ("nvjpeg",)
    same(epoch(url, decode={"image": "rgb"}, device="cuda"), epoch(url, decode={"image": "rgb"}), difference=0)
    assert not cuda.calls


def test_other_encodings_of_a_column_go_their_own_way(cuda: FakeDevice, make_jpeg: Callable[..., bytes]) -> None:
    jpeg = make_jpeg(0)
    header = parse_header(jpeg)
    ours = [encode(pixels(number, size=(header.height, header.width))) for number in range(4)]
    url = stored([ours[0], jpeg, ours[1], jpeg, ours[2], jpeg, ours[3], jpeg], {"image": "bytes", "label": "int64"})
    same(epoch(url, decode={"image": "rgb"}, device="cuda"), epoch(url, decode={"image": "rgb"}), difference=0)
    assert cuda.log.index("decode nvjpeg") < cuda.log.index("copy") < cuda.log.index("decode lossless")
    assert cuda.calls == [4, 4]


def damaged(number: int) -> bytes:
    """A header that is well, and behind it widths that do not add up."""
    data = bytearray(encode(pixels(number), compress=False))
    data[200:1200] = bytes(each ^ 0x55 for each in data[200:1200])
    return bytes(data)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("on_error", "labels"), [("skip", [0, 1, 3, 4, 6, 7]), ("replace", [0, 1, 1, 3, 4, 4, 6, 7])])
def test_damaged_pictures_never_get_to_the_device(
    cuda: FakeDevice, tmp_path: Path, on_error: Any, labels: list[int], num_workers: int
) -> None:
    pictures = [damaged(number) if number in (2, 5) else encode(pixels(number)) for number in range(8)]
    url = stored(pictures, url=str(tmp_path))
    with ShardDataset(url) as dataset:
        loader = ConcurrentDataLoader(
            dataset,
            batch_size=8,
            decode={"image": "rgb"},
            device="cuda",
            on_error=on_error,
            max_errors=2,
            num_workers=num_workers,
        )
        (batch,) = loader
    assert batch["label"].tolist() == labels
    for row, label in enumerate(labels):
        assert np.array_equal(batch["image"][row].numpy(), pixels(label))
    assert sum(cuda.calls) in (6, 8)  # what stands in for another may be decoded twice


def test_a_damaged_picture_is_named(cuda: FakeDevice) -> None:
    url = stored([damaged(number) if number == 5 else encode(pixels(number)) for number in range(8)])
    with pytest.raises(DecodeError) as caught:
        epoch(url, decode={"image": CROP}, device="cuda")
    assert (caught.value.sample, caught.value.column) == (5, "image")
    assert not cuda.calls


@pytest.mark.parametrize("how", ["gray", CROP])
def test_what_the_device_makes_nothing_of_the_cpu_decodes(
    url: str, cuda: FakeDevice, monkeypatch: pytest.MonkeyPatch, how: Any
) -> None:
    def nothing(payloads: list[torch.Tensor], plans: list[TilePlan], mode: str) -> list[torch.Tensor]:
        return [torch.zeros(3, 1, 2, dtype=torch.uint8)] * len(plans)

    monkeypatch.setattr(cuda, "decode_tiles", nothing)
    same(epoch(url, decode={"image": how}, device="cuda"), epoch(url, decode={"image": how}), difference=0)
