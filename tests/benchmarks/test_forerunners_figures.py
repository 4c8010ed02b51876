"""What is made of the forerunners' measurements: rows, ratios, ours beside theirs, Markdown and the plot."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from benchmarks.forerunners import READERS, committed
from benchmarks.forerunners_figures import (
    CASES,
    DIFFERENCES,
    PUBLISHED,
    Case,
    Cell,
    compared,
    figures_of,
    heat_map,
    layer_rows,
    loads_s,
    remote_share,
    sequential_rows,
    speedups,
)
from benchmarks.peers.job import Outcome


def epoch(epoch_s: float, load_s: list[float]) -> Outcome:
    spans = [(0.0, seconds) for seconds in load_s]
    return Outcome(
        numbers=list(range(64)), epoch_s=epoch_s, cpu_s=0.32, first_batch_s=0.1, spans=spans, peak_rss_mb=500.0
    )


def test_items_make_batches_in_the_order_in_which_they_were_begun():
    spans = [(0.0, 1.0), (2.0, 3.5), (0.5, 2.0), (3.0, 3.2), (4.0, 5.0)]
    assert loads_s(Outcome(numbers=list(range(5)), spans=spans), 2) == [2.0, 1.5]
    assert loads_s(Outcome(numbers=list(range(8)), spans=spans[:2]), 4) == [1.0, 1.5]
    assert loads_s(Outcome(numbers=[0, 1]), 2) == []


def rows_of_rates(rates: dict[tuple[str, str], float]) -> list[dict[str, Any]]:
    found = {
        Case(place, "loader", side): [epoch(64 / rate, [] if side == "shards" else [32 / rate])]
        for (place, side), rate in rates.items()
    }  # type: ignore[arg-type]
    return layer_rows(found, 32)


RATES = {
    ("local", "vanilla"): 400.0,
    ("local", "threads"): 500.0,
    ("local", "shards"): 640.0,
    ("s3", "vanilla"): 32.0,
    ("s3", "threads"): 320.0,
    ("s3", "coroutines"): 400.0,
    ("s3", "shards"): 640.0,
}


def test_a_row_has_medians_of_rounds_and_of_all_batches():
    case = Case("s3", "loader", "threads")
    (row,) = layer_rows({case: [epoch(1.0, [0.5, 0.1]), epoch(4.0, [0.1]), epoch(2.0, [0.2, 0.2])]}, 32)
    assert (row["place"], row["layer"], row["side"]) == ("s3", "loader", "threads")
    assert (row["samples_s"], row["samples_s_spread"]) == (32.0, [16.0, 64.0])
    assert (row["batch_load_s"], row["batch_every_s"]) == (0.2, 1.0)
    assert (row["cpu_s_per_1000"], row["peak_rss_mb"], row["num_samples"]) == (5.0, 500.0, 64)


def test_items_without_a_beginning_have_no_load():
    (row,) = layer_rows({Case("s3", "loader", "shards"): [epoch(1.0, [])]}, 32)
    assert row["batch_load_s"] is None


def test_speedups_are_over_vanilla_from_s3():
    rows = rows_of_rates(RATES)
    assert speedups(rows, "loader", "batch_every_s") == {"threads": 10.0, "coroutines": 12.5, "shards": 20.0}
    assert speedups(rows, "loader", "batch_load_s") == {"threads": 10.0, "coroutines": 12.5}


def test_shares_are_of_the_local_drive():
    found = remote_share(rows_of_rates(RATES), "loader")
    assert found["of_vanilla_local"] == {"threads": 0.8, "coroutines": 1.0, "shards": 1.6}
    assert found["of_own_local"] == {"threads": 0.64, "coroutines": 0.8, "shards": 1.0}


def cells(rates: dict[Cell, float]) -> dict[Cell, list[Outcome]]:
    numbers = list(range(100))
    return {cell: [Outcome(numbers=numbers, epoch_s=100 / rate, cpu_s=0.1)] for cell, rate in rates.items()}


def test_a_map_says_what_share_of_the_possible_is_reached():
    rates = {Cell(0, 1): 16.0, Cell(0, "auto"): 60.0, Cell(2, 1): 40.0, Cell(2, "auto"): 30.0}
    made = heat_map(cells(rates), 0.05)
    assert (made["workers"], made["in_flight"]) == ([0, 2], [1, "auto"])
    assert [cell["of_in_flight"] for cell in made["cells"]] == [0.8, None, 1.0, None]
    assert made["auto_vs_best"] == {"0": 3.75, "2": 0.75}


def test_a_map_without_auto_compares_nothing():
    made = heat_map(cells({Cell(0, 1): 16.0}), 0.05)
    assert made["auto_vs_best"] == {"0": None}


def reading(num_samples: int, epoch_s: float) -> Outcome:
    return Outcome(numbers=list(range(num_samples)), epoch_s=epoch_s, cpu_s=0.1, first_batch_s=0.01, peak_rss_mb=90.0)


def test_a_readers_row_is_of_all_its_passes():
    (row,) = sequential_rows({"files": [reading(1000, seconds) for seconds in (1, 2, 4)]})
    assert (row["samples_s"], row["samples_s_spread"], row["samples_s_core"]) == (500.0, [250.0, 1000.0], 10000.0)
    assert (row["cpu_s_per_1000"], row["first_sample_s"], row["peak_rss_mb"]) == (0.1, 0.01, 90.0)


@pytest.fixture
def figures() -> dict[str, Any]:
    """As of a run, with the committed figures of the two benchmarks that are not run again."""
    epochs: dict[Any, Any] = {case: [epoch(1.0, [0.5])] for case in CASES}
    epochs |= cells({Cell(workers, number): 10.0 for workers in (0, 2) for number in (1, 16, "auto")})
    epochs |= {name: [reading(10, 1.0)] for name in READERS}
    others = {name: committed(name) for name in ("pipelines", "lossless")}
    found: dict[str, Any] = {**figures_of(epochs, 32, 0.05), **others}
    return {"compared": compared(found), **found}


def test_every_published_figure_has_ours_beside_it(figures):
    assert len(figures["compared"]) == len(PUBLISHED)
    assert all(row["theirs"] and row["ours"] and row["source"] for row in figures["compared"])
    assert {row["forerunner"] for row in figures["compared"]} == set(DIFFERENCES)


def test_a_gpus_figures_come_first_where_there_are_any(figures):
    assert [row["ours"] for row in figures["compared"]][-1] == "not measured: no GPU"
    changed = copy.deepcopy(figures)
    changed["lossless"] |= {"gpu_prepare_vs_png": 12.5, "gpu_train_vs_png": 2.0}
    *_, decoding, training = compared(changed)
    assert decoding["ours"].startswith("12.5× on the GPU")
    assert training["ours"] == "2.00×"
