"""What `benchmarks.ingest` makes of its turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.ingest import OURS, RIVALS, at_scale, figures
from benchmarks.peers.catalog import find
from benchmarks.photos import PhotoFolder
from benchmarks.report_page import RESULTS, Results, pages

MEASURED = {
    "image_bytes": 50_000,
    "shards_per_gb": 120.0,
    "scaling_2": 1.8,
    "verified_img_s_core": 1000.0,
    "header_img_s_core": 5000.0,
    "fixed_s": 36.0,
    "rss_per_file": 300.0,
}


def test_ratios_are_medians_of_those_within_a_round() -> None:
    def turns(*walls: float) -> dict[int, dict[str, Any]]:
        return {number: {"wall_s": wall, "durable_s": wall + 4, "num_shards": 12} for number, wall in enumerate(walls)}

    found = {side.name: turns(8, 8, 8) for side in OURS}
    found |= {"decode_1": turns(10, 20, 30), "decode_2": turns(5, 12, 10), "none_2": turns(4, 4, 4)}
    found |= {"quarter": turns(5, 5, 5), "litdata": turns(6, 20, 20), "mosaicml": {1: {"wall_s": 8, "durable_s": 28}}}
    rows = [{"side": name, "cpu_s_per_1000": 0.5} for name in ("decode_1", "header_1")]
    photos = PhotoFolder(Path("photos"), count=1000, num_bytes=50_000_000, digest="")
    made = figures(rows, found, photos, {"rss_mb": 100.0, "rss_mb_tenth": 64.0, "rss_per_file": 300.0})
    assert made["scaling_2"] == 2
    assert made["vs_best_peer"] == 2  # of 1.5, 2 (the faster one of two) and 5
    assert made["durable_vs_best_peer"] == 3  # of 1.25, 3 and 3
    assert made["verified_img_s_core"] == 2000
    assert made["fixed_s"] == 4  # a quarter took 5 s, all 8 s: 4 s, and 4 s for each 1,000 images
    assert made["shards_per_gb"] == 240


def test_ten_terabytes() -> None:
    rows = {(row["verify"], row["machines"]): row for row in at_scale(MEASURED)}
    one, many = rows["decode", 1], rows["decode", 64]
    assert one["hours"] == pytest.approx(200e6 / (16 * 1000 * 0.9) / 3600 + 0.01, rel=1e-3)
    assert one["mb_s_machine"] == 16 * 1000 * 0.9 * 50_000 / 1e6
    assert one["dollars"] == pytest.approx((200e6 * 0.4 + (200e3 + 1.25 * 1.2e6) * 5) / 1e6, rel=1e-3)
    assert one["scan_gb"] == 60
    assert one["hours"] / many["hours"] == pytest.approx(64, rel=0.2)  # not quite: the fixed time stays
    assert many["million_requests"] > one["million_requests"]  # each machine lists the source


def test_each_rival_has_an_environment_and_a_writer() -> None:
    from benchmarks import ingest_side

    assert all(find(side.peer or "").environment for side in RIVALS)
    assert all(callable(getattr(ingest_side, side.writer)) for side in (*OURS, *RIVALS))


def test_the_table_of_the_documentation_is_generated() -> None:
    results = Results(RESULTS, {"ingest": {"plan": at_scale(MEASURED)}})
    page = next(text for path, text in pages(results).items() if path.name == "ingest_at_scale.md")
    assert page.count("| 64 |") == 2
