"""Batches of lossless images: the plan refuses what is not sound, and the kernel says what the processor says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from concurrent_loader.decode import Box
from concurrent_loader.errors import DecodeError
from concurrent_loader.lossless import decode_batch, decode_crops, plan_batch
from concurrent_loader.storage.lossless import encode

PROGRAM = Path(__file__).with_name("kernel_program.py")


def make_image(channels: int, height: int, width: int, dtype: Any = np.uint8) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    soft = [100 + 60 * np.sin(x / 13 + each) + 40 * np.cos(y / 9 - each) for each in range(channels)]
    return (np.stack(soft) + np.random.default_rng(0).normal(0, 2, (channels, height, width))).astype(dtype)


IMAGES = [make_image(3, 70, 1300), make_image(1, 64, 64), make_image(4, 200, 65), make_image(2, 5, 9)]
FILES = [encode(image, compress=at % 2 == 0) for at, image in enumerate(IMAGES)]


def run(tmp_path: Path, argument: str, **environment: str) -> Any:
    """In a process of its own: Triton reads its switches when it is imported."""
    environment = {
        **os.environ,
        "TRITON_CACHE_DIR": str(tmp_path),
        "TRITON_DEFAULT_FP_FUSION": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
        **environment,
    }
    said = subprocess.run(
        [sys.executable, PROGRAM, argument], env=environment, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


@pytest.mark.long
def test_the_kernel_makes_the_same_pixels_in_the_interpreter(tmp_path):
    said = run(tmp_path, "interpret", TRITON_INTERPRET="1")
    assert len(said["same"]) == 20
    assert all(said["same"])  # whole, without alpha, and boxes
    assert said["shape"] == [3, 3, 8, 6]
    assert said["largest"] <= 1  # of crop_resize, where a sum lies within rounding of a half


@pytest.mark.long
def test_batches_of_the_device_stage_go_through_the_kernel_in_the_interpreter(tmp_path):
    said = run(tmp_path, "stage", TRITON_INTERPRET="1")
    assert len(said["same"]) == 6 + 6 + 2
    assert all(said["same"])
    assert said["largest"] <= 1  # of crop_resize


@pytest.mark.long
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernel_compiles_for_gpus_that_are_not_here(tmp_path, capability):
    used = run(tmp_path, str(capability))
    assert used["local"] == used["stack"] == 0  # nothing is spilled
    assert used["reg"] <= 255


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_kernel_makes_the_same_pixels_on_the_gpu():
    for image, found in zip(IMAGES, decode_batch(FILES, device="cuda", alpha=True), strict=True):
        assert np.array_equal(found.cpu().numpy(), image)


def test_without_a_gpu_the_processor_decodes():
    for image, found in zip(IMAGES, decode_batch(FILES, alpha=True), strict=True):
        assert np.array_equal(found.numpy(), image)
    boxes = [Box(1, 2, 3, 4, True)] * len(FILES)
    made = decode_crops(FILES, boxes, (3, 4))
    assert made.shape == (4, 3, 3, 4)
    assert np.array_equal(made[0].numpy(), IMAGES[0][:, 1:4, 2:6][:, :, ::-1])
    assert np.array_equal(made[1].numpy(), np.repeat(IMAGES[1][:, 1:4, 2:6][:, :, ::-1], 3, axis=0))


def test_a_crop_takes_only_its_tiles_along():
    whole, part = plan_batch(FILES[:1]), plan_batch(FILES[:1], [Box(10, 700, 40, 60)])
    assert len(whole.facts) == 2 * 21
    assert len(part.facts) == 2  # tiles 10 and 11 of the first row
    assert len(part.data) < 0.4 * len(whole.data)  # a group of three in a row
    assert (part.shapes, part.starts) == ([(3, 40, 60)], [0, 3 * 40 * 60])


def test_everything_that_the_kernel_will_read_lies_within_its_bytes():
    plan = plan_batch(FILES, alpha=True)
    channels = plan.facts[:, 10]
    assert (plan.facts[:, 1] + channels <= len(plan.data)).all()
    for channel in range(4):
        places = plan.facts[channels > channel, 12 + 3 * channel : 15 + 3 * channel]
        assert (places >= 0).all()
        assert (places <= len(plan.data)).all()
    assert plan.starts[-1] == sum(image.size for image in IMAGES)


@pytest.mark.parametrize(
    ("files", "boxes", "options", "words"),
    [
        ([FILES[0], b"nothing"], None, {}, "ends within its header"),
        ([FILES[0], FILES[1][:-1]], None, {}, "length"),
        ([FILES[1], FILES[0]], None, {"max_pixels": 70 * 1300 - 1}, "too large"),
        ([FILES[0], encode(make_image(1, 9, 9, np.uint16))], None, {}, "8 bits"),
        ([FILES[0], FILES[1]], [None, Box(0, 0, 65, 1)], {}, "does not lie"),
        ([FILES[0], FILES[1]], [None, Box(-1, 0, 5, 1)], {}, "does not lie"),
        ([FILES[0], FILES[1]], [None, Box(0, 0, 0, 1)], {}, "does not lie"),
    ],
)
def test_what_is_not_sound_is_refused_before_a_launch(files, boxes, options, words):
    with pytest.raises(DecodeError, match=words) as caught:
        plan_batch(files, boxes, **options)
    assert caught.value.sample == 1


@pytest.mark.parametrize("data", [b"nothing", encode(make_image(1, 9, 9, np.uint16))])
def test_the_processor_refuses_it_too(data):
    with pytest.raises(DecodeError):
        decode_batch([FILES[0], data])


@settings(settings.get_profile("thorough"))
@given(data=st.data())
def test_a_changed_file_is_refused_or_planned_within_bounds(data):
    file = bytearray(data.draw(st.sampled_from(FILES)))
    end = len(file) - 1
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.one_of(st.integers(0, min(200, end)), st.integers(0, end)))
        file[at] = data.draw(st.integers(0, 255))
    try:
        plan = plan_batch([file], max_pixels=1 << 20)
    except DecodeError:
        return
    if not len(plan.facts):
        return
    facts, channels = plan.facts, int(plan.facts[0, 10])
    assert set(np.unique((facts[:, 0, None] >> (2 * np.arange(4))) & 3)) <= {0, 1, 2}
    half_bytes = facts[:, 2] + channels * ((facts[:, 3] * facts[:, 4] + 1) // 2)
    assert (half_bytes <= len(plan.data)).all()
    assert (facts[:, 12 : 12 + 3 * channels] <= len(plan.data)).all()
