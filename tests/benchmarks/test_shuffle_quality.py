"""The benchmark of the shuffle, small."""

from __future__ import annotations

import pytest
from rich.console import Console

from benchmarks.shuffle_quality import QUICK, Options, run_benchmark, windows


def test_it_compares_windows_with_a_permutation():
    figures = run_benchmark(QUICK, Console(quiet=True))
    rows = {row["window_shards"]: row for row in figures["rows"]}
    assert list(rows) == [1, 4, 16, 64, 80]
    assert [row["window_shards"] for row in figures["rows"] if row["default"]] == [16]
    distances = [row["sorted_distance"] for row in figures["rows"]]
    assert distances == sorted(distances, reverse=True)
    assert rows[80]["same_shard"] == rows[80]["next_in_batch"] == 1
    assert rows[1]["same_shard"] > 3
    # What was written in random order is as well mixed by any window.
    assert all(row["random_distance"] == pytest.approx(distances[-1], abs=0.02) for row in figures["rows"])
    assert figures["share_of_shards"]["8"]["largest"] == pytest.approx(1 / 8, abs=0.03)


def test_windows_end_with_all():
    assert windows(1400) == [1, 4, 16, 64, 256, 1024, 1400]
    assert windows(3) == [1, 3]
    assert Options().num_samples == 201_600
