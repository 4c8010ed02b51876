from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.harness import Epoch
from benchmarks.report import Row, headline, table, write_report


def make_row(name: str, seconds: float, *, client: str | None, note: str = "") -> Row:
    epoch = Epoch(
        num_samples=1000,
        build_s=0.1,
        epoch_s=seconds,
        first_batch_s=0.25,
        waiting_s=seconds / 10,
        num_gets=1234,
        num_bytes=5_600_000,
        dataset_bytes=5_600_000,
        cpu_s=3.0,
        peak_rss_mb=500.0,
        rss_added_mb=50.0,
        first_loss=2.0,
        last_loss=0.5,
        accuracy=0.912,
        class_counts=[500, 500],
        digest=None,
        client=client,
        timeline=[(seconds / 2, 500), (seconds, 1000)],
    )
    return Row(name, epoch, note)


@pytest.fixture
def rows() -> list[Row]:
    return [
        make_row("image folder", 4.0, client=None),
        make_row("objects", 40.0, client="botocore", note="640 of 3,200 <images>"),
        make_row("shards, cold cache", 5.0, client="S3Store"),
        make_row("shards, warm cache", 4.0, client="S3Store"),
    ]


def test_the_headline_compares_the_shards_with_the_local_drive_round_by_round(rows: list[Row]) -> None:
    assert "80 %" in headline(rows)
    assert "100 % with a warm one (one round)" in headline(rows)
    rates = [(100.0, 200.0, 100.0), (9.0,), (98.0, 242.0, 110.0), (120.0, 240.0, 120.0)]
    told = headline([replace(row, rates=each) for row, each in zip(rows, rates, strict=True)])
    assert "at 98–121 % of the local drive's speed" in told
    assert told.endswith("at 120 % with a warm one (three rounds).")


def test_the_terminals_table_shows_every_side(rows: list[Row]) -> None:
    console = Console(width=80, record=True, file=None, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        console.print(table(rows))
    text = capture.get()
    assert "1,234" in text
    assert "91.2%" in text
    assert "2.00 → 0.50" in text
    for row in rows:
        assert row.name in text
    folder = next(line for line in text.splitlines() if "image folder" in line)
    assert "1,234" not in folder  # the local drive takes no requests


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [name for name, _ in attrs if name in ("src", "href", "srcset", "data", "xlink:href")]
        if tag not in ("meta", "rect", "line", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "line", "polyline"):
            assert self.open.pop() == tag


def test_the_report_is_well_formed_and_refers_to_nothing_outside(tmp_path: Path, rows: list[Row]) -> None:
    path = tmp_path / "report.html"

    write_report(path, rows, facts={"latency": "30 ms <measured>"}, commands=["make demo"])

    page = path.read_text(encoding="utf-8")
    parser = _Links()
    parser.feed(page)
    assert parser.open == []
    assert parser.links == []
    assert not re.search(r"https?:|//\w|@import|url\(|<script", page)
    assert page.count("<svg") == 2
    assert page.count("<polyline") == 4
    assert "640 of 3,200 &lt;images&gt;" in page
    assert "30 ms &lt;measured&gt;" in page
    assert "make demo" in page
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
