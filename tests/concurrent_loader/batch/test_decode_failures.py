"""Chooses the sample that replaces a failed one, with pure functions."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.augment import RandomResizedCrop
from concurrent_loader.batch.decode_failures import (
    FailedImage,
    blank_image,
    picklable_error,
    repaired_index,
    source_rows,
)
from concurrent_loader.decode.crop import Box
from concurrent_loader.errors import DecodeError
from concurrent_loader.order.protocol import BatchIndex


def batches():
    return st.integers(1, 40).flatmap(lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1))))


def planned(size: int, num_padded: int = 0, *, mixture: bool = False) -> BatchIndex:
    rows = np.arange(size)
    return BatchIndex(3, rows + 100, rows + 200, rows + 300, num_padded, rows + 400 if mixture else None)


@given(batches())
def test_skipping_leaves_sound_samples_in_their_order(batch):
    size, broken = batch
    assert source_rows(size, broken, "skip") == [row for row in range(size) if row not in broken]


@given(batches())
def test_the_nearest_sound_sample_stands_in(batch):
    size, broken = batch
    shown = source_rows(size, broken, "replace")
    sound = set(range(size)) - broken
    assert len(shown) == (size if sound else 0)
    for row, source in enumerate(shown):
        assert source in sound
        assert (abs(source - row), source) == min((abs(other - row), other) for other in sound)


def test_a_large_batch_takes_little_memory():
    assert source_rows(100_000, {7}, "replace")[5:9] == [5, 6, 6, 8]


@given(batches(), st.data())
def test_the_index_says_what_is_shown(batch, data):
    size, broken = batch
    num_padded = data.draw(st.integers(0, size))
    on_error = data.draw(st.sampled_from(["skip", "replace"]))
    shown = source_rows(size, broken, on_error)
    index = repaired_index(planned(size, num_padded, mixture=True), shown, on_error)
    rows = np.array(shown or range(1 if on_error == "skip" else size))
    assert index.step == 3
    for offset, values in ((100, index.shard), (200, index.row), (300, index.sample), (400, index.source)):
        assert np.array_equal(values, rows + offset)
    real = [row for row in range(size - num_padded) if row not in broken]
    if not shown:
        assert index.num_padded == len(index)
    elif on_error == "replace":
        assert index.num_padded == num_padded
    else:
        assert len(index) - index.num_padded == len(real)


def test_without_a_mixture_there_are_no_sources():
    assert repaired_index(planned(3), [0, 2], "skip").source is None


def test_a_blank_picture_is_black_or_the_error():
    error = DecodeError("damaged")
    image = blank_image(FailedImage(error, (3, *RandomResizedCrop((4, 5)).size)))
    assert image.shape == (3, 4, 5)
    assert not image.any()
    with pytest.raises(DecodeError) as caught:
        blank_image(FailedImage(error, None))
    assert caught.value is error


def test_errors_go_anywhere_as_text():
    class Odd:
        def __str__(self) -> str:
            return "odd" * 100

    error = DecodeError("no", sample=3, column="image", key="k", expected=Odd(), got=Box(1, 2, 3, 4))
    again = pickle.loads(pickle.dumps(picklable_error(error)))
    assert (again.what, again.sample, again.column, again.key, again.stage) == ("no", 3, "image", "k", "decode")
    assert "top=1" in str(again)
    assert len(again.expected) == 200
