"""The arithmetic of the benchmark of text; `benchmarks.smoke` runs it as a whole."""

from __future__ import annotations

import numpy as np

from benchmarks.modalities import Load, _padding, _timed


def test_density_counts_padding_and_the_map_is_timed_apart():
    rows = [None, np.array([[1, 2, 0], [3, 4, 5]]), np.array([[6, 0, 0]])]
    figures = _timed(iter(rows), 3)
    assert (figures["num_tokens"], figures["density"]) == (6, round(6 / 9, 4))


def test_buckets_save_padding():
    lengths = Load(num_documents=2000).lengths
    assert _padding(lengths) < 0.5 < _padding(lengths, buckets=1)
