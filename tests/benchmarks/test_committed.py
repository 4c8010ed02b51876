"""Committed figures of another benchmark: taken with their date, or measured where there are none."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from benchmarks import committed
from benchmarks.committed import committed_or, dated


def test_committed_figures_are_taken_with_their_date(tmp_path):
    figures = {"rows": [1], "machine": {"measured_at": "2026-01-02 03:04 UTC"}}
    (tmp_path / "pipelines.json").write_text(json.dumps(figures))
    found = committed_or("pipelines", Console(), results=tmp_path)
    origin = "benchmarks/results/pipelines.json, measured at 2026-01-02 03:04 UTC"
    assert found == {**figures, "origin": origin}


def test_without_any_the_benchmark_is_run(tmp_path, monkeypatch):
    monkeypatch.setitem(committed._RUNS, "lossless", lambda console: {"rows": [2]})
    found = committed_or("lossless", Console(), results=tmp_path)
    assert found == {"rows": [2], "origin": "benchmarks.lossless, run now"}


@pytest.mark.processes
def test_figures_outside_a_repository_have_no_date(tmp_path):
    assert dated(tmp_path / "pipelines.json", {"machine": {}}) == "at a time that they do not say"
