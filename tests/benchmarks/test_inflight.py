from __future__ import annotations

import json

import pytest

from benchmarks import inflight
from benchmarks.inflight import QUICK, Auto, Cell, best_fixed, converged_after_s, limit_per_s, rate_over


def test_what_is_possible_is_bounded_by_latency_wire_and_processors() -> None:
    def possible(in_flight: int) -> float:
        return limit_per_s(Cell("object", 30, in_flight), latency_s=0.03 - 115_000 / 90e6, cpu_per_s=500)

    assert possible(1) == pytest.approx(1 / 0.03)
    assert possible(10) == pytest.approx(10 / 0.03)
    assert possible(100) == 500


def test_the_best_number_is_of_medians() -> None:
    few, many = Cell("object", 30, 1), Cell("object", 30, 64)
    rates = {few: [30, 99999, 31], many: [900, 1000, 990], Cell("range", 30, 1): [9999.0]}
    assert best_fixed({cell: [(rate, 1.0) for rate in found] for cell, found in rates.items()}, "object", 30) == many


def test_rates_are_of_bytes() -> None:
    assert rate_over([(1.0, 0), (1.5, 1000), (2.0, 4000)], num_bytes=100) == 40


@pytest.mark.parametrize(
    ("rates", "after_s"),
    [([100, 100, 100], 0.5), ([10, 20, 95, 95, 100], 1.0), ([10, 20, 30], 0.75), ([], 0.0)],
)
def test_convergence_is_when_the_rate_first_is_near_its_end(rates: list[float], after_s: float) -> None:
    assert converged_after_s(rates, final_per_s=100) == after_s


def test_the_figures_have_what_readers_of_them_expect() -> None:
    pairs = [(kind, latency) for kind in ("object", "range") for latency in QUICK.latencies_ms]
    cells = [Cell(kind, latency, number) for kind, latency in pairs for number in QUICK.in_flight]
    cells += [Cell(kind, 0, 16) for kind in ("object", "range")]
    figures = inflight._figures(
        {cell: [(10.0 * cell.in_flight, 0.5)] for cell in cells},
        {pair: [Auto([600.0, 590.0, 700.0], [640.0, 660.0, 640.0], 64, 1.5)] for pair in pairs},
        {0: 0.001, **{latency: latency / 1000 for latency in QUICK.latencies_ms}},
    )
    figures = json.loads(json.dumps(figures))
    assert set(figures["rows"][0]) >= {"kind", "latency_ms", "in_flight", "per_s", "limit_per_s", "ratio"}
    assert len(figures["rows"]) == 2 * len(QUICK.latencies_ms) * len(QUICK.in_flight)
    assert figures["auto_ratio"] == {"5": 0.938, "30": 0.938}
