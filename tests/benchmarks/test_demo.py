from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.demo import parse_options

pytestmark = [pytest.mark.s3, pytest.mark.long]

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
    with pytest.raises(SystemExit):
        parse_options(["--images", "0"])
    assert "--images" in capsys.readouterr().err
