"""The benchmark of the shuffle, small."""

from __future__ import annotations

import json

import pytest

from benchmarks.shuffle_quality import Options, main, windows


def test_it_compares_windows_with_a_permutation(tmp_path):
    file = tmp_path / "shuffle.json"
    small = ["--num-shards", "80", "--per-shard", "20", "--num-classes", "10", "--batch-size", "64"]
    assert main([*small, "--json", str(file)]) == 0
    figures = json.loads(file.read_text())
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


def test_impossible_options(capsys):
    with pytest.raises(SystemExit):
        main(["--num-shards", "0"])
    assert "at least 1" in capsys.readouterr().err
