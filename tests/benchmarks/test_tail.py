"""The benchmark of the slowest batches, small."""

from __future__ import annotations

import pytest
from rich.console import Console

from benchmarks.tail import Load, run_benchmark


@pytest.mark.s3
def test_it_measures_both_sides(s3_server):
    if s3_server.kind != "minio":
        pytest.skip("moto is no measure of anything")
    figures = run_benchmark(Load(num_batches=6, latency_ms=2.0), Console(quiet=True))
    off, on = figures["rows"]
    assert (off["hedging"], on["hedging"]) == ("off", "on")
    assert off["needed_gets"] == on["needed_gets"] == 6 * 64
    assert off["hedges"] == 0
    assert off["gets"] >= 384
    assert figures["p99_drop"] == pytest.approx(off["p99_s"] / on["p99_s"], rel=0.02)
    assert figures["extra_gets"] == on["extra_gets"]
    assert [len(times) for times in figures["batch_s"].values()] == [6, 6]
