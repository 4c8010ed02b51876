from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scale_tables import DOCS, FIGURES, document_with, main, tables

MARKS = "made by python -m benchmarks.scale_tables -->"


def a_node(nodes: int, groups: int, gets: int) -> dict[str, Any]:
    return {
        "nodes": nodes, "groups": groups, "gets": gets, "bytes_ratio": gets / 1000,
        "least_over_mean": 0.999, "most_over_mean": 1.001,
    }  # fmt: skip


def an_opening(num_samples: int) -> dict[str, Any]:
    names = ("open_s", "loader_s", "shuffle_s", "batch_s", "seek_s", "resume_s", "schedule_s")
    times = dict.fromkeys(names, num_samples * 1e-6)
    facts = {"num_samples": num_samples, "num_shards": num_samples // 10, "manifest_bytes": 210 * num_samples}
    return {**facts, **times, "rss_added_mb": 0.05}


REPORT = {
    "nodes": [a_node(1, 8, 1000), a_node(16, 8, 1800), a_node(1, 8, 1000), a_node(16, 16, 1001)],
    "samples": [an_opening(100), an_opening(100_000), an_opening(10_000_000)],
    "machine": {"cpu": "A processor", "num_cores": 2, "load_before": 0.25},
    "load": {"num_rounds": 5},
}
TEXT = "before\n{}\nold\n{}\nbetween\n{}\n{}\nafter\n".format(
    *(f"<!-- {name}: {end}; {MARKS}" for name in ("nodes", "growth") for end in ("begin", "end"))
)


def test_tables() -> None:
    found = tables(REPORT)
    assert "| 16 | 1,800 | 1.80 | 1,001 | 1.00 | 0.999 … 1.001 |" in found["nodes"]
    assert "| samples | 100 | 100,000 | 10,000,000 | power |" in found["growth"]
    assert "| open the data set | 100 µs | 100 ms | 10 s | 1.00 |" in found["growth"]
    assert "| manifest | 21 KB | 21 MB | 2.1e+03 MB | 1.00 |" in found["growth"]
    assert "| memory added, at its highest | 50 KB | 50 KB | 50 KB | 0.00 |" in found["growth"]
    assert "A processor, 2 cores, load 0.25 before" in found["growth"]


def test_what_is_around_the_tables_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs.md").write_text(TEXT)
    (tmp_path / "scale.json").write_text(json.dumps(REPORT))
    arguments = [str(tmp_path / "scale.json"), "--docs", str(tmp_path / "docs.md")]
    assert main(arguments) == 0
    once = (tmp_path / "docs.md").read_text()
    assert "old" not in once
    assert [word in once for word in ("before\n", "between\n", "after\n", "1,800", "100 ms")] == [True] * 5
    assert main(arguments) == 0
    assert (tmp_path / "docs.md").read_text() == once
    assert "docs.md" in capsys.readouterr().out


def test_a_page_without_marks() -> None:
    with pytest.raises(ValueError, match="nodes"):
        document_with("nothing", tables(REPORT))


def test_the_page_has_what_was_measured() -> None:
    text = DOCS.read_text(encoding="utf-8")
    if FIGURES.exists():
        assert document_with(text, tables(json.loads(FIGURES.read_text(encoding="utf-8")))) == text
    else:
        assert document_with(text, tables(REPORT)) != text  # the marks are there
