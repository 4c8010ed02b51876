from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import scaling
from benchmarks.scaling import Load, Row, Side, main, medians, ratios

TINY = Load(num_photos=16, num_rounds=1, batch_size=4, loop_length=100)


def test_the_program_writes_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = [Side("threads", 1, "python"), Side("processes", 1, "python")]
    monkeypatch.setattr(scaling, "QUICK", TINY)
    monkeypatch.setattr(scaling, "sides", lambda: few)
    assert main(["--quick", "--json", str(tmp_path / "out.json")]) == 0
    assert "processes" in capsys.readouterr().out
    report = json.loads((tmp_path / "out.json").read_text())
    assert {(row["mode"], row["n"], row["transform"]) for row in report["rows"]} == {
        (side.mode, side.n, side.transform) for side in few
    }
    for row in report["rows"]:
        assert set(row) == {"mode", "n", "transform", "samples_s", "cpu_s_per_1000", "peak_rss_mb", "start_s"}
        assert min(row["samples_s"], row["cpu_s_per_1000"], row["peak_rss_mb"]) > 0
    assert set(report["ratios"]) == {"python-threads-1", "python-processes-1"}
    assert report["ratios"]["python-threads-1"] == 1


def test_all_sides_are_there() -> None:
    found = {(side.mode, side.n) for side in scaling.sides()}
    assert {("threads", 1), ("threads", 2), ("threads", 4), ("processes", 1), ("processes", 2)} <= found
    assert {side.transform for side in scaling.sides()} == {"native", "python"}


def test_medians_and_ratios_are_over_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [Side("threads", 1, "native"), Side("processes", 2, "native")]
    monkeypatch.setattr(scaling, "sides", lambda: two)

    def row(side: Side, samples_s: float) -> Row:
        return Row(side.mode, side.n, side.transform, samples_s, 1.0, 2.0, 3.0)

    rounds = [[row(two[0], alone), row(two[1], both)] for alone, both in ((100, 150), (200, 500), (300, 390))]
    assert [found.samples_s for found in medians(rounds)] == [200, 390]
    assert ratios(rounds) == {"native-threads-1": 1, "native-processes-2": 1.5}
