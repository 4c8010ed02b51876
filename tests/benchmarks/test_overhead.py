"""The benchmark of observing, small."""

from __future__ import annotations

import pytest
from rich.console import Console

from benchmarks.overhead import VARIANTS, Load, run_benchmark
from concurrent_loader.metrics.running import iterations


@pytest.mark.slow
def test_each_variant_is_compared_with_the_plain_epoch_of_its_round() -> None:
    figures = run_benchmark(Load(2_000, 256, 2), Console(quiet=True))
    assert [row["variant"] for row in figures["rows"]] == [name for name in VARIANTS if name != "plain"]
    assert all(len(row["ratios"]) == 2 for row in figures["rows"])
    assert figures["metrics_cpu_share"] == pytest.approx(sum(figures["rows"][0]["ratios"]) / 2 - 1, abs=2e-4)
    assert iterations.running() == []
