"""An image that is prepared for the kernel: the same facts as a batch's plan, and still an image."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from concurrent_loader.decode import Box
from concurrent_loader.errors import DecodeError
from concurrent_loader.lossless import TilePlan, decode_prepared, plan_batch, prepare_image
from concurrent_loader.lossless.prepare import FACT_COLUMNS
from concurrent_loader.lossless.tile_plan import NUM_FACTS
from concurrent_loader.storage.lossless import decode, encode, parse_header


def make_image(channels: int, height: int, width: int, dtype: Any = np.uint8) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    soft = [100 + 60 * np.sin(x / 13 + each) + 40 * np.cos(y / 9 - each) for each in range(channels)]
    return (np.stack(soft) + np.random.default_rng(0).normal(0, 2, (channels, height, width))).astype(dtype)


NOISE = np.random.default_rng(9).integers(0, 256, (4, 40, 60)).astype(np.uint8)  # stored as it is
IMAGES = [
    make_image(3, 70, 1300),
    make_image(1, 64, 64),
    make_image(4, 200, 65),
    make_image(2, 5, 9),
    make_image(3, 130, 530),
    NOISE,
]
FILES = [encode(image, compress=at % 2 == 0) for at, image in enumerate(IMAGES)]


def facts_of(content: memoryview, plan: TilePlan) -> np.ndarray:
    return np.frombuffer(content[: plan.facts_bytes], np.int64).reshape(-1, NUM_FACTS)


@st.composite
def parts(draw: st.DrawFn) -> tuple[int, Box | None]:
    at = draw(st.integers(0, len(IMAGES) - 1))
    _, height, width = IMAGES[at].shape
    if draw(st.booleans()):
        return at, None
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    return at, Box(
        top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left)), draw(st.booleans())
    )


@settings(deadline=None)
@given(parts(), st.sampled_from(["rgb", "gray", "unchanged"]))
def test_what_is_left_is_a_picture_with_the_part_in_it(which: tuple[int, Box | None], mode: str) -> None:
    at, box = which
    content, plan = prepare_image(FILES[at], box, mode)
    channels, height, width = plan.shape
    part = plan.located(Box(0, 0, height, width))
    found = decode(content[plan.facts_bytes :], box=(part.top, part.left, height, width))[:channels]
    whole = Box(0, 0, *IMAGES[at].shape[1:]) if box is None else box
    expected = IMAGES[at][:, whole.top : whole.top + whole.height, whole.left : whole.left + whole.width]
    assert channels == (len(expected) if mode == "unchanged" else len(expected) - (len(expected) + 1) % 2)
    assert np.array_equal(found, expected[:channels])


@settings(deadline=None)
@given(parts(), st.booleans())
def test_the_facts_are_those_of_a_batch_of_one(which: tuple[int, Box | None], alpha: bool) -> None:
    at, box = which
    content, plan = prepare_image(FILES[at], box, "unchanged" if alpha else "rgb")
    batch = plan_batch([FILES[at]], [box], alpha=alpha)
    assert plan.shape == batch.shapes[0]
    assert plan.num_tiles == len(batch.facts)
    facts = facts_of(content, plan).copy()
    if not plan.num_tiles:
        assert np.array_equal(np.frombuffer(content, np.uint8)[-len(batch.data) :], batch.data)
        return
    sections_at = len(content) - len(batch.data)
    assert bytes(content[sections_at:]) == batch.data.tobytes()
    facts[:, FACT_COLUMNS] -= sections_at
    assert np.array_equal(facts[:, : 12 + 3 * facts[0, 10]], batch.facts[:, : 12 + 3 * facts[0, 10]])


def test_a_part_takes_only_its_groups_along_and_only_its_tiles() -> None:
    content, plan = prepare_image(FILES[0], Box(10, 700, 40, 60), "rgb")
    whole, all_of_it = prepare_image(FILES[0], None, "rgb")
    header = parse_header(content[plan.facts_bytes :])
    assert (header.height, header.width) == (64, 512)  # the second of three groups
    assert (plan.top, plan.left) == (10, 700 - 512)
    assert (plan.num_tiles, all_of_it.num_tiles) == (2, 42)
    assert len(content) < 0.4 * len(whole)


def test_a_plan_changes_processes() -> None:
    _, plan = prepare_image(FILES[0], None, "rgb")
    assert pickle.loads(pickle.dumps(plan)) == plan


@pytest.mark.parametrize(
    ("data", "box", "words"),
    [
        (b"nothing", None, "ends within its header"),
        (FILES[0][:-1], None, "length"),
        (FILES[-1][:-1], None, "length"),
        (encode(make_image(1, 9, 9, np.uint16)), None, "8 bits"),
        (FILES[1], Box(0, 0, 65, 1), "does not lie"),
        (FILES[1], Box(-1, 0, 5, 1), "does not lie"),
        (FILES[-1], Box(0, 0, 41, 1), "does not lie"),
    ],
)
def test_what_is_not_sound_is_refused(data: bytes, box: Box | None, words: str) -> None:
    with pytest.raises(DecodeError, match=words):
        prepare_image(data, box, "rgb")


@settings(settings.get_profile("thorough"))
@given(data=st.data())
def test_a_changed_file_is_refused_or_planned_within_its_own_bytes(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, 3))
    file = bytearray(FILES[at])
    end = len(file) - 1
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.one_of(st.integers(20, min(200, end)), st.integers(20, end)))
        file[place] = data.draw(st.integers(0, 255))
    box = data.draw(st.sampled_from([None, Box(0, 0, 3, 3), Box(2, 3, 3, 4)]))
    try:
        content, plan = prepare_image(file, box, "unchanged")
    except DecodeError:
        return
    facts = facts_of(content, plan)
    if not len(facts):
        return
    channels = int(facts[0, 10])
    assert set(np.unique((facts[:, 0, None] >> (2 * np.arange(4))) & 3)) <= {0, 1, 2}
    half_bytes = facts[:, 2] + channels * ((facts[:, 3] * facts[:, 4] + 1) // 2)
    places = facts[:, 12 : 12 + 3 * channels]
    assert (half_bytes <= len(content)).all()
    assert ((places >= plan.facts_bytes) & (places <= len(content))).all()
    # The same bytes are what a processor gets, if it has to: the same pixels, or an error.
    part = plan.located(Box(0, 0, *plan.shape[1:]))
    place = (part.top, part.left, part.height, part.width)
    was = decode(file, box=None if box is None else (box.top, box.left, box.height, box.width))
    assert np.array_equal(decode(content[plan.facts_bytes :], box=place), was)


def test_stored_samples_need_no_kernel() -> None:
    for mode, channels in (("rgb", 3), ("unchanged", 4)):
        box = Box(3, 5, 20, 30)
        prepared = [prepare_image(FILES[-1], each, mode) for each in (None, box)]
        payloads = [torch.frombuffer(bytearray(content), dtype=torch.uint8) for content, _ in prepared]
        whole, part = decode_prepared(payloads, [plan for _, plan in prepared], mode)
        assert np.array_equal(whole.numpy(), NOISE[:channels])
        assert np.array_equal(part.numpy(), NOISE[:channels, 3:23, 5:35])
