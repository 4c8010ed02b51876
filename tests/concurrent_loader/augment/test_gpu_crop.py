"""A batch of crops in one go: torch's antialiased resize, whatever the boxes; and the kernel's word against torch's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import interpolate

from concurrent_loader.augment import gpu_crop
from concurrent_loader.augment.gpu_crop import boxes_and_flips, crop_resize, has_triton
from concurrent_loader.decode.crop import Box
from concurrent_loader.storage.errors import ConfigurationError

WORKS = gpu_crop._works
PROGRAM = Path(__file__).with_name("fused_program.py")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def picture(channels: int, height: int, width: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(height * 1000 + width)
    return torch.randint(0, 256, (channels, height, width), dtype=torch.uint8, generator=random)


def cropped(image: torch.Tensor, box: Box) -> torch.Tensor:
    part = image[:, box.top : box.top + box.height, box.left : box.left + box.width]
    return part.flip(2) if box.flip else part


IMAGES = [picture(3, 50, 40), picture(1, 200, 13), picture(4, 17, 300), picture(3, 5, 5).permute(0, 2, 1)]
BOXES = [Box(3, 4, 40, 30, True), Box(0, 0, 200, 13), Box(2, 100, 15, 200, True), Box(1, 1, 3, 4)]


def filled(level: int) -> Any:
    def launch(images: Any, wanted: Any, out: torch.Tensor, *_: Any) -> None:
        out.fill_(level)

    return launch


def failing(error: Exception) -> Any:
    def launch(*_: Any) -> None:
        raise error

    return launch


@pytest.mark.parametrize(
    ("launch", "works", "said"),
    [
        (filled(100), True, ""),
        (filled(99), False, "wrong results on cpu"),
        (failing(RuntimeError("Failed to find C compiler")), False, "RuntimeError: Failed to find C compiler"),
        (failing(AssertionError("of a compiler")), False, "of a compiler"),
    ],
)
def test_where_the_kernel_does_not_work_torch_makes_crops(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, launch: Any, works: bool, said: str
) -> None:
    monkeypatch.setattr(gpu_crop, "_launch", launch)
    monkeypatch.setattr(gpu_crop, "has_triton", lambda: True)
    tried = cache(WORKS.__wrapped__)
    monkeypatch.setattr(gpu_crop, "_works", lambda device: tried(torch.device("cpu")))
    assert gpu_crop._takes_kernel("auto", torch.device("cuda")) is works
    assert gpu_crop._takes_kernel("auto", torch.device("cuda")) is works
    assert gpu_crop._takes_kernel(True, torch.device("cuda"))
    assert [record.getMessage() for record in caplog.records if said not in record.getMessage()] == []
    assert len(caplog.records) == (not works)  # once
    assert not gpu_crop._takes_kernel(False, torch.device("cuda"))
    assert not gpu_crop._takes_kernel("auto", torch.device("cpu"))


def test_a_device_that_fails_is_not_taken_for_one_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (torch.OutOfMemoryError("Allocation on device"), torch.AcceleratorError("CUDA error: unspecified")):
        monkeypatch.setattr(gpu_crop, "_launch", failing(error))
        with pytest.raises(type(error)):
            WORKS.__wrapped__(torch.device("cpu"))


def test_it_is_torchs_antialiased_resize():
    made = crop_resize(IMAGES, *boxes_and_flips(BOXES), (20, 37))
    assert (made.shape, made.dtype) == ((4, 3, 20, 37), torch.uint8)
    for image, box, found in zip(IMAGES, BOXES, made, strict=True):
        part = cropped(image, box)[:3].float()
        wanted = interpolate(part[None], size=(20, 37), mode="bilinear", antialias=True)[0]
        assert (found - wanted).abs().max() < 0.501
        # What CPU decoders do: whole numbers, between rows and columns as well.
        rounded = interpolate(part[None].byte(), size=(20, 37), mode="bilinear", antialias=True)[0]
        assert (found.int() - rounded.int()).abs().max() <= 1
        assert (found.float() - rounded.float()).abs().mean() < 0.3


def test_normalising_is_that_of_the_levels():
    boxes = boxes_and_flips(BOXES)
    levels = crop_resize(IMAGES, *boxes, 16).float() / 255
    assert torch.allclose(crop_resize(IMAGES, *boxes, 16, dtype=torch.float32), levels)
    wanted = (levels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    found = crop_resize(IMAGES, *boxes, 16, mean=MEAN, std=STD, dtype=torch.float32)
    assert torch.allclose(found, wanted, atol=2e-6)
    for dtype in (torch.float16, torch.bfloat16):
        half = crop_resize(IMAGES, *boxes, 16, mean=MEAN, std=STD, dtype=dtype, channels_last=True)
        assert half.dtype == dtype
        assert half.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(half, found.to(dtype))


def test_it_fills_what_it_is_given():
    whole = torch.full((6, 3, 8, 8), 77, dtype=torch.uint8)
    out = whole[1:5]
    assert crop_resize(IMAGES, *boxes_and_flips(BOXES), 8, out=out) is out
    assert torch.equal(out, crop_resize(IMAGES, *boxes_and_flips(BOXES), 8))
    assert (whole[[0, 5]] == 77).all()
    assert crop_resize([], *boxes_and_flips([]), 8).shape == (0, 3, 8, 8)


@given(
    start=st.floats(0, 30),
    extent=st.floats(0.001, 33),
    height=st.integers(1, 40),
    dtype=st.sampled_from([torch.uint8, torch.float32]),
)
def test_any_box_within_the_picture_is_read_within_it(start, extent, height, dtype):
    # A slope: what is seen lies between the values at the box's edges, and nothing beyond them.
    slope = torch.arange(64, dtype=torch.uint8).view(1, 64, 1).expand(3, 64, 2)
    box = torch.tensor([[start, 0, extent, 2]], dtype=torch.float64)
    made = crop_resize([slope], box, torch.tensor([False]), (height, 2), dtype=dtype)
    levels = (made if dtype == torch.uint8 else (made * 255).round()).int()
    assert levels.min() >= int(start)
    assert levels.max() <= int(start + extent) + 1
    assert (levels.diff(dim=2) >= 0).all()


def test_half_a_pixel_is_half_a_pixel():
    slope = (torch.arange(64, dtype=torch.uint8) * 2).view(1, 1, 64).expand(3, 8, 64)
    box = torch.tensor([[0, 4.5, 8, 16]], dtype=torch.float64)
    made = crop_resize([slope], box, torch.tensor([False]), (8, 16))
    assert made[0, 0, 0, 1:-1].tolist() == [9 + 2 * at for at in range(1, 15)]


@pytest.mark.parametrize(
    "change",
    [
        {"boxes": torch.tensor([[0.0, 0, 51, 40]])},
        {"boxes": torch.tensor([[0.0, 0.5, 50, 40]])},
        {"boxes": torch.tensor([[-1.0, 0, 5, 5]])},
        {"boxes": torch.tensor([[0.0, 0, 0, 5]])},
        {"boxes": torch.tensor([[0.0, 0, 5, float("nan")]])},
        {"boxes": torch.tensor([[0.0, 0, 5, float("inf")]])},
        {"boxes": torch.zeros(2, 4)},
        {"boxes": torch.zeros(1, 4, device="meta")},
        {"flips": torch.tensor([1])},
        {"flips": torch.tensor([True, False])},
        {"images": [picture(3, 50, 40).float()]},
        {"images": [picture(2, 50, 40)]},
        {"images": [picture(3, 50, 40)[0]]},
        {"images": [picture(3, 50, 40)[:, :0]]},
        {"size": 0},
        {"dtype": torch.int32},
        {"mean": MEAN},
        {"mean": MEAN, "std": STD},
        {"mean": MEAN, "std": (0, 1, 1), "dtype": torch.float32},
        {"mean": MEAN[:2], "std": STD, "dtype": torch.float32},
        {"out": torch.empty(1, 3, 9, 9, dtype=torch.uint8)},
        {"out": torch.empty(1, 3, 8, 8)},
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_read(change):
    arguments: dict[str, Any] = {
        "images": [picture(3, 50, 40)],
        "boxes": torch.tensor([[0.0, 0, 50, 40]]),
        "flips": torch.tensor([False]),
        "size": 8,
    }
    with pytest.raises(ConfigurationError):
        crop_resize(**{**arguments, **change})


def test_pictures_of_two_devices_are_refused():
    images = [picture(3, 8, 8), torch.empty(3, 8, 8, dtype=torch.uint8, device="meta")]
    with pytest.raises(ConfigurationError, match="on one device"):
        crop_resize(images, *boxes_and_flips([Box(0, 0, 8, 8)] * 2), 8)


def run(tmp_path: Path, argument: str, **environment: str) -> Any:
    """In a process of its own: Triton reads its switches when it is imported."""
    environment = {
        **os.environ,
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
        **environment,
    }
    said = subprocess.run(
        [sys.executable, PROGRAM, argument], env=environment, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


@pytest.mark.long
def test_the_kernel_says_the_same_in_the_interpreter(tmp_path):
    results = run(tmp_path, "interpret", TRITON_INTERPRET="1")["results"]
    assert len(results) == 5
    for result in results:
        assert result["largest"] < 1.01  # a level, where a sum lies within rounding of a half
        assert result["differing"] < 0.02
        assert result["same_layout"]
        assert result["brightest"] < 100  # nothing from around the pictures, which is white


@pytest.mark.long
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernel_compiles_for_gpus_that_are_not_here(tmp_path, capability):
    for kind, used in run(tmp_path, str(capability)).items():
        assert used["local"] == used["stack"] == 0, kind  # nothing is spilled
        assert used["reg"] <= 96, kind


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16])
def test_the_kernel_says_the_same_on_the_gpu(dtype):
    assert has_triton()
    boxes = boxes_and_flips(BOXES)
    wanted = crop_resize(IMAGES, *boxes, (64, 70), dtype=dtype)
    found = crop_resize([image.cuda() for image in IMAGES], *boxes, (64, 70), dtype=dtype).cpu()
    level = 1 if dtype == torch.uint8 else 1 / 255
    assert (wanted.float() - found.float()).abs().max() < 1.01 * level


@pytest.mark.processes
def test_triton_is_left_alone_unless_a_gpu_asks(tmp_path):
    program = (
        "import sys, torch; from concurrent_loader.augment.gpu_crop import crop_resize;"
        "picture, box = torch.zeros(3, 4, 4, dtype=torch.uint8), torch.tensor([[0., 0, 4, 4]]);"
        "crop_resize([picture], box, torch.tensor([True]), 2);"
        "assert not torch.cuda.is_initialized();"
        "assert 'concurrent_loader.augment.gpu_crop_kernel' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], env=environment, cwd=tmp_path, check=True)
