"""The benchmark of resuming, small."""

from __future__ import annotations

import json

import pytest

from benchmarks.resume import main


@pytest.mark.slow
def test_it_measures_both_places(tmp_path):
    file = tmp_path / "resume.json"
    assert main(["--samples", "20000", "--rounds", "1", "--json", str(file)]) == 0
    figures = json.loads(file.read_text())
    begin, middle = figures["rows"]
    assert (begin["sample"], middle["sample"]) == (0, 10_000)
    for row in figures["rows"]:
        assert row["gets"] >= row["shards"]
    assert figures["ratio"] > 0


def test_impossible_options(capsys):
    with pytest.raises(SystemExit):
        main(["--samples", "1"])
    assert "--samples is at least" in capsys.readouterr().err
