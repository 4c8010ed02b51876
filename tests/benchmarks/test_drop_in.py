"""The benchmark of the drop-in loader, small."""

from __future__ import annotations

import json

import pytest

from benchmarks import drop_in
from benchmarks.drop_in import FULL, Case, Epoch, main


@pytest.mark.s3
@pytest.mark.usefixtures("toxiproxy_program")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_it_measures_both_sides(s3_server, tmp_path):
    if s3_server.kind != "minio":
        pytest.skip("moto is no measure of anything")
    file = tmp_path / "drop_in.json"
    assert main(["--quick", "--json", str(file)]) == 0
    figures = json.loads(file.read_text())
    assert (figures["num_workers"], figures["in_flight"]) == (2, 64)
    assert figures["speedup"] == pytest.approx(figures["vanilla_batch_s"] / figures["ours_batch_s"], rel=0.02)
    assert figures["measured_latency_ms"] > 15
    assert [row["client"] for row in figures["rows"]] == ["botocore", "obstore async"]
    assert all(row["ours_batch_s"] > 0 for row in figures["rows"])
    assert len(figures["batch_s"]) == 4


def test_figures_are_medians():
    epochs = [Epoch(batch_s, 0.5, 2.0) for batch_s in (0.4, 0.9, 0.5)]
    row = drop_in._row(Case("botocore", 2, 64), epochs, [Epoch(0.05, 0.1, 1.0)])
    assert (row["vanilla_batch_s"], row["ours_batch_s"], row["speedup"]) == (0.5, 0.05, 10.0)
    assert (row["vanilla_items_per_s"], row["ours_items_per_s"]) == (64, 640)


def test_the_main_case_is_the_default():
    assert FULL.cases[0] == Case("botocore", 2, 64)
    assert FULL.num_rounds >= 5


def test_options_leave_out_cases(monkeypatch):
    asked = []
    monkeypatch.setattr(drop_in, "run_benchmark", lambda load, console: asked.append(load))
    monkeypatch.setattr(drop_in, "show", lambda figures, console: None)
    assert main(["--main", "--rounds", "2"]) == 0
    assert (asked[0].cases, asked[0].num_rounds) == (FULL.cases[:1], 2)


def test_impossible_options(capsys):
    with pytest.raises(SystemExit):
        main(["--rounds", "0"])
    assert "--rounds is at least 1" in capsys.readouterr().err
