"""The benchmark of the slowest batches, small."""

from __future__ import annotations

import json

import pytest

from benchmarks.tail import main


@pytest.mark.s3
def test_it_measures_both_sides(s3_server, tmp_path):
    if s3_server.kind != "minio":
        pytest.skip("moto is no measure of anything")
    file = tmp_path / "tail.json"
    assert main(["--batches", "6", "--latency", "2", "--json", str(file)]) == 0
    figures = json.loads(file.read_text())
    off, on = figures["rows"]
    assert (off["hedging"], on["hedging"]) == ("off", "on")
    assert off["needed_gets"] == on["needed_gets"] == 6 * 64
    assert off["hedges"] == 0
    assert off["gets"] >= 384
    assert figures["p99_drop"] == pytest.approx(off["p99_s"] / on["p99_s"], rel=0.02)
    assert figures["extra_gets"] == on["extra_gets"]
    assert [len(times) for times in figures["batch_s"].values()] == [6, 6]


@pytest.mark.parametrize("wrong", [["--batches", "1"], ["--latency", "0"], ["--slow", "2"]])
def test_impossible_options(wrong, capsys):
    with pytest.raises(SystemExit):
        main(wrong)
    assert "--batches is at least" in capsys.readouterr().err
