from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from benchmarks.catalogue import BENCHMARKS
from benchmarks.report_page import (
    RESULTS,
    Results,
    Target,
    _part,
    anchor,
    headline,
    pages,
    report,
    targets,
    with_part,
    write,
)
from benchmarks.report_plots import PLOTS, save
from benchmarks.report_text import by_cell, number, peer_rows, table

COMMITTED = Results(RESULTS)


@pytest.mark.slow
def test_committed_pages_are_what_the_committed_figures_make() -> None:
    told = "run python -m benchmarks.report_page and commit what it changes"
    assert (RESULTS / "REPORT.md").read_text(encoding="utf-8") == report(COMMITTED), told
    assert all(page.read_text(encoding="utf-8") == text for page, text in pages(COMMITTED).items()), told


def test_every_figure_file_has_a_section_and_its_plot() -> None:
    names = {file.name.removesuffix(".json").removesuffix(".failed") for file in RESULTS.glob("*.json")}
    text = report(COMMITTED)
    assert all(f"\n- Figures: [{name}.json]({name}.json)\n" in text for name in names)
    assert {file.stem for file in (RESULTS / "plots").iterdir()} == names & set(PLOTS)
    headings = {anchor(line[3:]) for line in text.splitlines() if line.startswith("## ")}
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert {link[1:] for link in links if link.startswith("#")} <= headings
    assert all((RESULTS / link).exists() for link in links if not link.startswith(("#", "https://")))


@pytest.mark.slow
def test_a_report_without_figures_says_so(tmp_path: Path) -> None:
    text = report(Results(tmp_path))
    assert text.count("\nNot measured. Command: `python -m benchmarks.") == len(BENCHMARKS)
    assert "0 of" in headline(Results(tmp_path))
    assert "**MISSED**" not in text


@pytest.mark.slow
def test_a_failure_is_in_the_report_with_its_exact_error(tmp_path: Path) -> None:
    failure = {"command": "python -m benchmarks.tail", "began": "today", "error": "Traceback …\nOSError: [Errno 98]"}
    Results(tmp_path).failed_file("tail").write_text(json.dumps(failure))
    assert "**The last run failed** (today, `python -m benchmarks.tail`)" in report(Results(tmp_path))
    assert "OSError: [Errno 98]" in report(Results(tmp_path))


@pytest.mark.slow
def test_it_is_written_beside_the_figures(tmp_path: Path) -> None:
    shutil.copy(RESULTS / "cache.json", tmp_path)
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "tail.png").write_bytes(b"of figures that are gone")
    write(Results(tmp_path), with_pages=False)
    assert [file.name for file in (tmp_path / "plots").iterdir()] == ["cache.png"]
    assert "[cache.json](cache.json)" in (tmp_path / "REPORT.md").read_text()
    again = tmp_path / "again.png"
    save("cache", COMMITTED.figures("cache") or {}, again)
    assert again.read_bytes() == (tmp_path / "plots" / "cache.png").read_bytes()


def test_a_part_is_put_between_its_marks() -> None:
    page = "before\n<!-- a: begin; made -->\nstale\n<!-- a: end -->\nafter\n"
    assert with_part(page, "a", "new") == "before\n<!-- a: begin; made -->\n\nnew\n\n<!-- a: end -->\nafter\n"
    with pytest.raises(ValueError, match="marks"):
        with_part("nothing", "a", "new")


# -- targets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "at_least", "verdict"),
    [(2.0, True, "met"), (1.9, True, "**MISSED**"), (2.0, False, "met"), (2.1, False, "**MISSED**"),
     (None, True, "not measured")],
)  # fmt: skip
def test_a_target_is_met_at_its_bound(value: float | None, at_least: bool, verdict: str) -> None:
    found = Target("x", "what", 2.0, at_least, "", value)
    assert (found.verdict, found.bounded) == (verdict, "≥ 2" if at_least else "≤ 2")


def test_the_worst_latency_counts(tmp_path: Path) -> None:
    figures = {"cold_raw_vs_best": {"5": 3.0, "30": 1.5, "130": None}, "warm_raw_vs_best": 1.3,
               "first_batch_vs_best": {"5": 0.1, "30": 0.6}, "rows": []}  # fmt: skip
    (tmp_path / "peers.json").write_text(json.dumps(figures))
    judged = [each for each in targets(Results(tmp_path)) if each.benchmark == "peers"]
    assert [each.value for each in judged] == [1.5, 1.3, None, 0.6]
    assert [each.verdict for each in judged] == ["**MISSED**", "met", "not measured", "**MISSED**"]


def test_the_cache_is_compared_with_the_optimum(tmp_path: Path) -> None:
    rates = {(0.1, "ours"): 0.08, (0.1, "optimum"): 0.1, (0.5, "ours"): 0.5, (0.5, "optimum"): 0.5, (0.5, "lru"): 0.2}
    rows = [{"budget": budget, "policy": policy, "hit_rate": rate} for (budget, policy), rate in rates.items()]
    (tmp_path / "cache.json").write_text(json.dumps({"rows": rows}))
    [found] = [each for each in targets(Results(tmp_path)) if each.benchmark == "cache"]
    assert (found.value, found.verdict) == (0.02, "**MISSED**")


# -- other loaders -----------------------------------------------------------------------------------------------------


def _row(peer: str, samples_s: float, samples: int = 1000, **others: object) -> dict[str, object]:
    return {
        "peer": peer, "title": peer, "layout": "shards", "kind": "raw", "epoch": "cold", "latency_ms": 30, "workers": 2,
        "of_samples": 1000, "samples": samples, "samples_s": samples_s, "cpu_s_per_1000": 1 / samples_s,
        "first_batch_s": 6.0, "complete": samples == 1000, **others,
    }  # fmt: skip


def test_a_loader_that_was_cut_off_has_no_rate_but_a_reason() -> None:
    load = {"limit_s": 12.0, "objects_limit_s": 20.0}
    cut, ours = peer_rows({"load": load, "rows": [_row("ours", 400.0), _row("slow", 10.0, 128)]})[::-1]
    assert cut["rate"] == "did not finish (first batch after 6 s; limit 12 s: 128 of 1,000 samples)"
    assert cut["cpu"] == "–"
    assert (ours["rate"], ours["unfinished"]) == ("400", None)


def test_the_best_rival_counts_even_if_it_was_cut_off_and_is_marked() -> None:
    rows = [_row("ours", 400.0), _row("slow", 100.0), _row("cut", 200.0, 900), _row("ours_objects", 300.0)]
    [[cell, rate, cpu, first]] = by_cell(peer_rows({"load": {"limit_s": 12, "objects_limit_s": 20}, "rows": rows}))
    assert (cell, rate, cpu, first) == ("raw, cold, 30 ms, 2 workers", "2.00 †", "2.00 †", "1.00")


# -- words -------------------------------------------------------------------------------------------------------------


def test_numbers_have_three_digits() -> None:
    found = [number(value) for value in (None, 0.19444, 41515.2, 3, 0.00001234, 123.4)]
    assert found == ["–", "0.194", "41,515", "3", "1.23e-05", "123"]


def test_a_column_without_values_is_left_out() -> None:
    rows = [{"a": "x|y", "b": None, "c": 2.0, "spread": {"c": [1.0, 3.0]}}]
    assert table(rows, {"A": "a", "B": "b", "C": "c ±"}).splitlines()[0] == "| A | C |"
    assert table(rows, {"A": "a", "B": "b", "C": "c ±"}).splitlines()[2] == "| x\\|y | 2 (1 … 3) |"


def test_circumstances_name_what_was_not_recorded() -> None:
    assert "- Machine: not recorded\n- Versions: not recorded\n" in _part("circumstances", COMMITTED, {})
    figures = {"run": {"other_programs_share": 0.1, "began": "today"}, "remarks": ["slow host"]}
    found = _part("circumstances", COMMITTED, figures)
    assert found.endswith("- When: today\n- Other programs had: 10.0 %\n- Remark: slow host")
