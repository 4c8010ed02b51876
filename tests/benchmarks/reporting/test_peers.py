from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.reporting.peers import PEERS, by_latency


def make_row(peer: str, epoch: str, samples_s: float | None, **changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "peer": peer,
        "layout": "shards",
        "kind": "raw",
        "epoch": epoch,
        "latency_ms": 30,
        "samples_s": samples_s,
        "cpu_s_per_1000": 0.1,
        "peak_rss_mb": 500.0,
        "first_batch_s": 0.3,
        "gets": 23,
        "bytes_ratio": 1.0,
        "error": None,
    }
    return {**facts, **changes}


FIGURES = {
    "rows": [
        make_row("slow", "cold", 100.0, note="its own cache"),
        make_row("ours", "cold", 8000.0, workers=1),
        make_row("ours", "cold", 8500.0, spread={"samples_s": [8000.0, 9000.0]}, workers=2),
        make_row("ours", "warm", 9000.0),
        make_row(
            "slow", "cold", 50.0, kind="decoded", latency_ms=5, title="Slow", fault="2 pictures again", complete=False
        ),
        make_row("ours_local", "warm", 40_000.0, latency_ms=None),
        make_row("broken", "cold", None, error="ImportError: no such | thing"),
    ],
    "cold_raw_vs_best": {"30": 80.0, "5": None},
    "warm_raw_vs_best": 2.5,
    "best": {"warm_raw_vs_best": "slow"},
}


def test_rows_are_grouped_by_work_and_the_best_is_on_top() -> None:
    text = PEERS.body(FIGURES)
    raw, decoded = text.index("**Raw, 30 ms:**"), text.index("**Decoded, 5 ms:**")
    assert raw < decoded
    text = text[raw:]
    lines = [line for line in text.splitlines() if "| shards |" in line]
    assert [line.split(" | ")[0] for line in lines[:4]] == ["| **ours**", "| **ours**", "| slow", "| **ours**"]
    assert "8,500 (8,000 … 9,000)" in lines[0]
    assert "- slow, shards: its own cache" in text
    assert "- Slow, shards: delivered 2 pictures again; cut short (decoded, cold, 5 ms)" in text
    assert "**Raw, local drive:**" in text


def test_ratios_are_told_or_said_not_to_be_there() -> None:
    text = PEERS.body(FIGURES)
    assert "- raw bytes, cold: samples/s, ours ÷ best peer: 80 at 30 ms\n" in text
    assert "ours ÷ best peer: 2.5 (the best: slow)" in text
    assert "time to the first batch, ours ÷ best peer: not measured" in text


def test_what_did_not_run_has_its_exact_error() -> None:
    assert "| broken | shards | raw, cold | ImportError: no such \\| thing |" in PEERS.body(FIGURES)
    assert "| broken" not in PEERS.body(FIGURES).partition("What did not run")[0]


def test_latencies_are_named() -> None:
    assert PEERS.latency(FIGURES) == "5, 30 ms to the first byte, as the tables say"
    assert PEERS.latency({**FIGURES, "bandwidth_mb_s": 90}).endswith("; 90 MB/s a connection")


def test_it_can_be_drawn(tmp_path: Path) -> None:
    assert PEERS.plot is not None
    PEERS.plot(FIGURES, tmp_path / "peers.png")
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("value", "found"), [(2, {"all": 2.0}), ({"5": 1.5, "30": None}, {"5": 1.5}), (None, {})])
def test_a_ratio_is_one_number_or_one_a_latency(value: object, found: dict[str, float]) -> None:
    assert by_latency(value) == found


def test_rows_of_other_runs_are_named_by_run_and_table() -> None:
    rows = [
        make_row("ours", "cold", 8000.0, workers=1, measured="today"),
        make_row("ours", "warm", 9000.0, workers=1, measured="today"),
        make_row("slow", "cold", 200.0, workers=1, measured="today"),
        make_row("slow", "cold", 100.0, latency_ms=None, measured="yesterday"),
        make_row("slow", "warm", 300.0),
    ]
    text = PEERS.body({"rows": rows})
    assert "- run of today: raw, 30 ms, 1 worker (ours, shards; slow, shards)\n" in text
    assert text.endswith("- run of yesterday: raw, local drive (slow, shards)")
    assert "other runs" not in PEERS.body({"rows": rows[-1:]})


def test_each_cell_says_where_ours_is_not_first() -> None:
    rows = [
        make_row("ours", "cold", 300.0, workers=1, first_batch_s=0.6, cpu_s_per_1000=2.0),
        make_row("ours_local", "cold", 900.0, workers=1, latency_ms=None),
        make_row("slow", "cold", 100.0, workers=1, first_batch_s=0.5, cpu_s_per_1000=5.0),
        make_row("other", "cold", 200.0, workers=1, first_batch_s=0.9, cpu_s_per_1000=3.0),
        make_row("other", "warm", 200.0, workers=1),
    ]
    text = PEERS.body({"rows": rows})
    assert "| raw, cold, 30 ms, 1 worker | 1.5 | 1.5 | 1.2 |" in text
    assert "| raw, warm" not in text.partition("The same in each cell")[2]
