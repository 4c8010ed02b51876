"""The benchmark of observing, small."""

from __future__ import annotations

import pytest
from rich.console import Console

from benchmarks.overhead import VARIANTS, Load, run_benchmark
from concurrent_loader.metrics.running import iterations


@pytest.mark.slow
def test_each_variant_is_compared_with_the_plain_epoch_of_its_round() -> None:
    figures = run_benchmark(Load(300, 2_000, 2_000, 16, 256, 2), Console(quiet=True))
    names = [name for name in VARIANTS if name != "plain"]
    rows = figures["rows"]
    assert [(row["samples"], row["variant"]) for row in rows] == [(s, n) for s in ("images", "tiny") for n in names]
    assert all(row["quartiles"][0] <= row["cpu_share"] <= row["quartiles"][1] for row in rows)
    assert [figures[f"{name}_cpu_share"] for name in names] == [row["cpu_share"] for row in rows[:3]]
    assert iterations.running() == []
