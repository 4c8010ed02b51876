from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.figures import RAW_TARGETS, TRAINING_TARGETS
from benchmarks.report_page import SECTIONS
from benchmarks.reporting.claims import CLAIMS, Claim, Judged, judge
from benchmarks.reporting.results import Results


@pytest.mark.parametrize(
    ("value", "at_least", "verdict"),
    [(2.0, True, "met"), (1.9, True, "**MISSED**"), (2.0, False, "met"), (2.1, False, "**MISSED**"),
     (None, True, "not measured")],
)  # fmt: skip
def test_a_target_is_met_at_its_bound(value: float | None, at_least: bool, verdict: str) -> None:
    claim = Claim("x", "what", lambda figures: None, 2.0, at_least=at_least)
    assert Judged(claim, value).verdict == verdict
    assert Judged(claim, value).target == ("≥ 2" if at_least else "≤ 2")


def test_units_are_told() -> None:
    share = Claim("x", "what", lambda figures: None, 0.06, at_least=False, unit="%")
    assert (share.told(0.0179), Judged(share, 0.01).target) == ("1.8 %", "≤ 6.0 %")
    assert Claim("x", "what", lambda figures: None, 5, unit=" ×").told(8.46) == "8.46 ×"


def test_every_claim_has_a_section_and_words_of_its_own() -> None:
    assert {claim.benchmark for claim in CLAIMS} <= {section.name for section in SECTIONS}
    assert len({claim.what for claim in CLAIMS}) == len(CLAIMS)


def test_remote_against_local_is_held_to_the_benchmarks_own_targets() -> None:
    found = {(claim.benchmark, claim.bound) for claim in CLAIMS}
    assert {("remote_vs_local.train", target.bound) for target in TRAINING_TARGETS} <= found
    assert {("remote_vs_local.none", target.bound) for target in RAW_TARGETS} <= found


def test_the_worst_latency_counts(tmp_path: Path) -> None:
    figures = {
        "cold_raw_vs_best": {"5": 3.0, "30": 1.5, "130": None},
        "warm_raw_vs_best": 1.3,
        "first_batch_vs_best": {"5": 0.1, "30": 0.6},
    }
    (tmp_path / "peers.json").write_text(json.dumps(figures))
    judged = [each for each in judge(Results(tmp_path)) if each.claim.benchmark == "peers"]
    assert [each.value for each in judged] == [1.5, 1.3, None, 0.6]
    assert [each.verdict for each in judged] == ["**MISSED**", "met", "not measured", "**MISSED**"]


def test_the_cache_is_held_to_the_optimum(tmp_path: Path) -> None:
    rates = {(0.1, "ours"): 0.08, (0.1, "optimum"): 0.1, (0.5, "ours"): 0.5, (0.5, "optimum"): 0.5, (0.5, "lru"): 0.2}
    rows = [{"budget": budget, "policy": policy, "hit_rate": rate} for (budget, policy), rate in rates.items()]
    (tmp_path / "cache.json").write_text(json.dumps({"rows": rows}))
    [found] = [each for each in judge(Results(tmp_path)) if each.claim.benchmark == "cache"]
    assert found.value == 0.02
    assert found.verdict == "**MISSED**"


def test_a_figure_that_is_null_was_not_measured(tmp_path: Path) -> None:
    (tmp_path / "lossless.json").write_text(json.dumps({"size_vs_png": 0.8, "gpu_prepare_vs_png": None}))
    found = {each.claim.what: each.value for each in judge(Results(tmp_path)) if each.claim.benchmark == "lossless"}
    assert list(found.values()) == [0.8, None, None, None, None]
