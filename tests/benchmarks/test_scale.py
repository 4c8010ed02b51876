from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.scale import in_own_process, main
from benchmarks.simulated_nodes import NodesRow

OPENED = {
    "num_samples", "num_shards", "manifest_bytes", "open_s", "loader_s", "shuffle_s", "batch_s", "seek_s", "resume_s",
    "schedule_s", "rss_added_mb", "spread",
}  # fmt: skip
READ = {
    "num_shards", "num_samples", "sample_bytes", "batch_size", "open_s", "first_batch_s", "samples_s", "mb_s",
    "cpu_s_per_1000", "gets", "rss_added_mb", "spread",
}  # fmt: skip


@pytest.mark.slow
def test_quick_writes_every_series(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--json", str(tmp_path / "out.json")]) == 0
    assert "Nodes, a group each" in capsys.readouterr().out
    report = json.loads((tmp_path / "out.json").read_text())
    assert set(report) == {
        "samples",
        "shards",
        "nodes",
        "sample_bytes",
        "rows",
        "slopes",
        "load",
        "machine",
        "versions",
    }
    assert [set(row) for row in report["samples"]] == [OPENED] * 2
    assert [set(row) for row in report["shards"] + report["sample_bytes"]] == [READ] * 4
    assert [set(row) for row in report["nodes"]] == [set(NodesRow.__dataclass_fields__)] * 6
    assert [set(row) for row in report["rows"]] == [READ | {"kind", "rows_per_shard"}] * 4
    assert [row["num_shards"] == 1 for row in report["rows"]] == [False, True] * 2
    assert [row["num_shards"] for row in report["shards"]] == [1, 10]
    assert [row["gets"] for row in report["shards"]] == [1, 10]
    assert [row["nodes"] for row in report["nodes"]] == [1, 2, 4] * 2
    for series in report["slopes"].values():
        assert all(set(exponents) == {"all", "last"} for exponents in series.values())
    assert report["slopes"]["samples"]["manifest_bytes"]["all"] == pytest.approx(1, abs=0.1)
    assert report["slopes"]["nodes, a group each"]["gets"]["all"] == pytest.approx(0, abs=0.02)


@pytest.mark.processes
def test_a_process_of_its_own() -> None:
    assert in_own_process(os.getpid) != os.getpid()
