"""Numbers that belong to a sample: the same whoever asks, uniform, and unlike their neighbours'."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concurrent_loader.augment import uniforms
from concurrent_loader.augment.random_draws import MAX_DRAWS

U64 = st.integers(0, 2**64 - 1)


@given(seed=U64, epoch=U64, samples=st.lists(st.integers(0, 2**57 - 1), max_size=20), num_draws=st.integers(1, 64))
def test_each_sample_has_its_own(seed, epoch, samples, num_draws):
    drawn = uniforms(seed, epoch, np.array(samples, dtype=np.int64), num_draws)
    assert drawn.shape == (len(samples), num_draws)
    assert ((drawn >= 0) & (drawn < 1)).all()
    for row, sample in zip(drawn, samples, strict=True):
        alone = uniforms(seed, epoch, np.array([sample]), MAX_DRAWS)[0]
        assert np.array_equal(row, alone[:num_draws])


def test_they_are_uniform_and_independent():
    drawn = uniforms(1, 2, np.arange(4000), 8)
    counts = np.histogram(drawn, bins=20, range=(0, 1))[0]
    assert np.abs(counts / drawn.size * 20 - 1).max() < 0.1
    assert np.abs(np.corrcoef(drawn.T) - np.eye(8)).max() < 0.08
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 0.08


@pytest.mark.parametrize("other", [(1, 0), (0, 1)])
def test_another_seed_or_epoch_is_another_picture(other):
    assert not np.isclose(uniforms(0, 0, np.arange(50), 4), uniforms(*other, np.arange(50), 4)).any()


def test_they_stay_what_they_are():
    # Pictures of a resumed run are those of the run before an upgrade.
    assert uniforms(7, 3, np.array([0, 12345]), 2).round(12).tolist() == GOLDEN


GOLDEN = [[0.087369352415, 0.0689660565], [0.75463512384, 0.345875849316]]


@pytest.mark.parametrize("number", [0, 65])
def test_too_many_or_none(number):
    with pytest.raises(ValueError, match="num_draws"):
        uniforms(0, 0, np.arange(3), number)
