from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import psutil
import pytest
from msgspec import structs

from benchmarks.demo import _cells, headline, parse_options, write_page
from benchmarks.peers.job import Fetched, Outcome
from benchmarks.training import Lesson

ROOT = Path(__file__).parents[2]


def start_demo(data: Path) -> subprocess.Popen[str]:
    arguments = ["--data", str(data), "--images", "96", "--objects", "32", "--latency", "5", "--rounds", "1"]
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.demo", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "120"},
    )


@pytest.mark.s3
@pytest.mark.long
def test_the_demo_trains_from_all_four_sides_and_is_stopped_by_ctrl_c(tmp_path: Path) -> None:
    with start_demo(tmp_path) as demo:
        told, _ = demo.communicate(timeout=110)
    assert demo.returncode == 0, told
    for side in ("image folder", "raw objects", "shards, cold cache", "shards, warm cache"):
        assert side in told
    assert "concurrent-loader ingest image-folder " in told
    assert "the first 64 of them" in told
    assert "measured:" in told
    assert "of the local drive's speed with a cold cache" in told
    report = tmp_path / "report.html"
    assert told.rstrip().endswith(f"Report: {report.resolve()}")
    assert "shards, warm cache" in report.read_text(encoding="utf-8")

    # Again, on what is there already; interrupted while it trains.
    with start_demo(tmp_path) as demo:
        assert demo.stdout is not None
        again = ""
        while "Latency" not in again:
            line = demo.stdout.readline()
            assert line, again
            again += line
            started = psutil.Process(demo.pid).children(recursive=True)
        demo.send_signal(signal.SIGINT)
        told, _ = demo.communicate(timeout=30)
    assert demo.returncode == 130
    assert told.strip() == "interrupted: what was started has been stopped"
    assert started
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []


def test_the_command_line_has_defaults_and_limits(capsys: pytest.CaptureFixture[str]) -> None:
    options = parse_options([])
    assert (options.images, options.latency, options.data) == (1600, 30, Path(".demo"))
    assert options.command == "python -m benchmarks.demo"
    with pytest.raises(SystemExit):
        parse_options(["--images", "0"])
    assert "--images" in capsys.readouterr().err


class Tags(HTMLParser):
    """Notes what a page refers to, and which elements are open."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [name for name, _ in attrs if name in ("src", "href", "srcset", "data")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_has_everything_and_refers_to_nothing_outside(tmp_path: Path) -> None:
    fetched = Fetched(gets=1234, num_bytes=5_600_000, dataset_bytes=5_600_000, client="S3Store")
    lesson = Lesson(first_loss=2.0, last_loss=0.5, accuracy=0.912)
    local = {
        number: Outcome(numbers=[1] * 100, build_s=1, first_batch_s=1.25, epoch_s=2, waiting_s=0.1, lesson=lesson)
        for number in range(3)
    }
    cold = {number: structs.replace(each, epoch_s=3, fetched=fetched) for number, each in local.items()}
    faster = {number: structs.replace(each, epoch_s=3 - number / 2) for number, each in local.items()}
    told = headline(local, faster, local)
    assert told.startswith("From the bucket the network trains at 50–100 % of the local drive's speed with a cold")
    assert told.endswith("at 100 % with a warm one (rounds: 3).")
    cells = {"<local>": _cells("<local>", local), "cold": _cells("cold", cold)}
    assert cells["<local>"] == ["<local>", "100", "0.25 s", "10.0%", "–", "–", "2.00 → 0.50", "91.2%"]
    assert cells["cold"][3:6] == ["5.0%", "1,234", "5.6"]
    rows = [
        {"cells": each, "note": f"note of {name}", "pace": pace}
        for (name, each), pace in zip(cells.items(), (100.0, 50.0), strict=True)
    ]
    path = tmp_path / "report.html"
    write_page(path, rows, headline=told, facts={"latency": "30 ms <measured>"}, commands=["make demo"])
    page, tags = path.read_text(encoding="utf-8"), Tags()
    tags.feed(page)
    assert (tags.open, tags.links) == ([], [])
    assert not re.search(r"https?:|//\w|@import|url\(|<script", page)
    assert page.count("width: 100.0%") == page.count("width: 50.0%") == 1
    for text in ("note of &lt;local&gt;", "30 ms &lt;measured&gt;", "make demo", "1,234", "width=device-width"):
        assert text in page
