from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import cache
from benchmarks.cache import BUDGETS, POLICIES, optimum


def test_the_optimum_keeps_what_is_used_soonest() -> None:
    hits = optimum([[0, 1, 2], [2, 1, 0]], [10, 10, 10], budget_bytes=20)
    assert hits == [[False, False, False], [True, True, False]]
    assert optimum([[0, 1], [0, 1]], [10, 10], budget_bytes=5) == [[False, False], [False, False]]


def test_an_offline_cache_hits_as_much_as_it_holds() -> None:
    epochs = [[(7 * i + 3 * epoch) % 100 for i in range(100)] for epoch in range(3)]
    hits = optimum(epochs, [1] * 100, budget_bytes=30)
    assert [sum(row) for row in hits] == [0, 30, 30]


@pytest.mark.slow
def test_the_program_writes_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cache.main(["--quick", "--json", str(tmp_path / "out.json")]) == 0
    assert "optimum" in capsys.readouterr().out
    report = json.loads((tmp_path / "out.json").read_text())
    rows = {(row["budget"], row["policy"]): row for row in report["rows"]}
    assert set(rows) == {(budget, policy) for budget in BUDGETS for policy in POLICIES}
    for policy in POLICIES:
        assert rows[1.0, policy]["hit_rate"] == 1.0
        assert rows[1.0, policy]["bytes_ratio"] == pytest.approx(1 / 3, abs=0.01)
    for budget in (0.25, 0.5):
        ours, lru, best = (rows[budget, policy]["hit_rate"] for policy in POLICIES)
        assert best - 0.1 < ours < best + 0.1  # shards are few here, and not quite equal
        assert ours > lru
    assert report["load"]["num_epochs"] == 3
