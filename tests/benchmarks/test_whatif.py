"""The benchmark of predictions: what a row compares."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import whatif
from benchmarks.whatif import RECORDED, RUNS, Run


def test_a_row_compares_the_median_with_the_prediction_at_the_measured_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def predicted(trace: object, run: Run, latency_s: float) -> tuple[float, str]:
        asked.append(latency_s)
        return 110.0, "store"

    monkeypatch.setattr(whatif, "predicted", predicted)
    trace: Any = SimpleNamespace(first_byte_s=(0.035, 0.04, 0.05))
    row = whatif._row(Run("objects", latency_ms=130), [90.0, 100.0, 130.0], trace, {30: 31.0, 130: 132.0})
    assert asked == [pytest.approx(0.035 + 0.101)]
    assert (row["run"], row["measured_samples_s"], row["error"]) == ("objects", 100.0, 0.1)
    assert row["spread"] == {"measured_samples_s": [90.0, 130.0]}


def test_ten_runs_and_more_are_predicted_from_two_recordings() -> None:
    assert len({run for run in RUNS if run not in RECORDED}) >= 10
    assert {run.kind for run in RUNS} == {run.kind for run in RECORDED}
    assert all(run.cores <= 2 for run in RUNS)
