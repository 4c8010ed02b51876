from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.scale import exponent, fit, main

OPENED = {
    "num_samples", "num_shards", "manifest_bytes", "open_s", "loader_s", "shuffle_s", "batch_s", "seek_s", "resume_s",
    "schedule_s", "rss_added_mb", "spread",
}  # fmt: skip
READ = {
    "num_shards", "num_samples", "sample_bytes", "batch_size", "open_s", "first_batch_s", "samples_s", "mb_s",
    "cpu_s_per_1000", "gets", "rss_added_mb", "spread",
}  # fmt: skip


NODES = {
    "nodes", "groups", "gets", "bytes", "bytes_ratio", "shared_shards", "most_over_mean", "least_over_mean", "epoch_s",
    "requests_s", "busiest_requests_s", "limit_share", "objects_limit_share",
}  # fmt: skip


@pytest.mark.slow
def test_quick_writes_every_series(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--json", str(tmp_path / "out.json")]) == 0
    told = capsys.readouterr().out
    assert "Nodes, the default number of groups" in told
    report = json.loads((tmp_path / "out.json").read_text())
    assert set(report) == {
        "samples", "shards", "nodes", "sample_bytes", "slopes", "load", "machine", "versions", "took_s",
        "other_programs_share",
    }  # fmt: skip
    assert [set(row) for row in report["samples"]] == [OPENED] * 2
    assert [set(row) for row in report["shards"] + report["sample_bytes"]] == [READ] * 4
    assert [set(row) for row in report["nodes"]] == [NODES] * 6
    assert [row["num_shards"] for row in report["shards"]] == [1, 10]
    assert [row["gets"] for row in report["shards"]] == [1, 10]
    assert [row["nodes"] for row in report["nodes"]] == [1, 2, 4] * 2
    for series in report["slopes"].values():
        assert all(set(exponents) == {"all", "last"} for exponents in series.values())
    assert report["slopes"]["samples"]["manifest_bytes"]["all"] == pytest.approx(1, abs=0.1)
    assert report["slopes"]["nodes, groups by default"]["gets"]["all"] == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("power", [-1.0, 0.0, 0.5, 2.0])
def test_a_power_law_gives_its_power(power: float) -> None:
    sizes = [1, 10, 100, 1000]
    assert exponent(sizes, [3 * size**power for size in sizes]) == pytest.approx(power, abs=1e-3)


def test_a_value_without_a_logarithm_is_left_out() -> None:
    assert exponent([1, 10, 100], [0.0, 20, 200]) == pytest.approx(1)
    assert exponent([1, 10], [0.0, 20]) is None
    assert exponent([10], [20]) is None


def test_a_fixed_cost_hides_growth_from_the_first_slope_only() -> None:
    sizes = [1, 10, 100, 1000, 10_000]
    keys = ("num_shards", "first_batch_s", "samples_s", "mb_s", "cpu_s_per_1000", "gets", "rss_added_mb")
    rows = [{"sample_bytes": size, **dict.fromkeys(keys, 1 + size / 100)} for size in sizes]
    found = fit({"samples": [], "shards": [], "nodes": [], "sample_bytes": rows})["sample_bytes"]["gets"]
    assert found["all"] is not None
    assert found["last"] is not None
    assert found["all"] < 0.6 < 0.95 < found["last"] <= 1
