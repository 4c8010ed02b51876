"""The benchmark of decoding, with a few images."""

from __future__ import annotations

from statistics import mean

from benchmarks.decode import QUICK, make_sets


def test_the_images_are_what_their_sets_say():
    mean_bytes = {photos.name: mean(map(len, photos.jpegs)) for photos in make_sets(QUICK)}
    assert 90_000 < mean_bytes["110kb"] < 130_000
    assert 30_000 < mean_bytes["35kb"] < 40_000
