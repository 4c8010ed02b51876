"""The benchmark of decoding, with a few images."""

from __future__ import annotations

from benchmarks.decode import QUICK, make_sets


def test_the_images_are_what_their_sets_say():
    sets = {photos.name: photos for photos in make_sets(QUICK)}
    assert 90_000 < sets["110kb"].mean_bytes < 130_000
    assert 30_000 < sets["35kb"].mean_bytes < 40_000
