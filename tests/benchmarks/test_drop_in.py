"""The benchmark of the drop-in loader, small."""

from __future__ import annotations

import pytest

from benchmarks import drop_in
from benchmarks.drop_in import FULL, Case, Epoch, main


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
