"""The benchmark of resuming, small."""

from __future__ import annotations

import pytest
from rich.console import Console

from benchmarks.resume import Load, run_benchmark


@pytest.mark.slow
def test_it_measures_both_places():
    figures = run_benchmark(Load(20_000, 1), Console(quiet=True))
    begin, middle = figures["rows"]
    assert (begin["sample"], middle["sample"]) == (0, 10_000)
    for row in figures["rows"]:
        assert row["gets"] >= row["shards"]
    assert figures["ratio"] > 0
