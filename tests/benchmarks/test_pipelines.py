"""The benchmark of the four pipelines, with a few pictures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.pipelines import PIPELINES, changes


def test_it_times_all_eight_and_sets_them_beside_the_paper(tmp_path):
    file = tmp_path / "pipelines.json"
    command = [sys.executable, "-m", "benchmarks.pipelines", "--quick", "--json", str(file)]
    subprocess.run(command, cwd=Path(__file__).parent.parent.parent, check=True, timeout=100, capture_output=True)
    figures = json.loads(file.read_text())
    assert len(figures["rows"]) == 8
    assert {(row["source"], row["place"], row["operations"]) for row in figures["rows"]} == {
        (each.source, each.place, each.operations) for each in PIPELINES
    }
    for row in figures["rows"]:
        assert row["epoch_s"] > 0
        assert row["images_s"] > 0
        assert 0 <= row["waiting_share"] <= 1
    assert figures["zolnouri"] == {"reader": -0.28, "device": -0.40}
    for name in ("reader", "device"):
        for operations in ("few", "many"):
            assert figures[f"{name}_change_{operations}"] > -1
    assert figures["num_samples"] == 12


def test_changes_are_over_files_and_the_cpu():
    epoch_s = dict(zip(PIPELINES, (10.0, 9.0, 8.0, 5.0, 20.0, 15.0, 18.0, 12.0), strict=True))
    assert changes(epoch_s) == pytest.approx(
        {"reader_change_few": -0.2, "device_change_few": -0.5, "reader_change_many": -0.1, "device_change_many": -0.4}
    )
