"""Which stage holds the GIL is read from py-spy's stacks, and what more cores would do follows from it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmarks.gil import _held, figures

pytestmark = pytest.mark.fast

STACKS = """\
Thread.run (threading.py:982);LoopThread._serve (concurrent_loader/storage/loop_thread.py:207);Handle._run (a.py:1) 30
Thread.run (threading.py:982);DecodeThreads._serve (concurrent_loader/pipeline/thread_pool.py:188);_do (b.py:2) 50
_main (multiprocessing/spawn.py:135);measure.<locals>.epochs (benchmarks/gil.py:92);__next__ (c.py:3) 15
Thread.run (threading.py:982);LiveServer._serve (concurrent_loader/metrics/live_server.py:231) 5
"""


def test_the_time_of_the_gil_is_divided_among_the_stages() -> None:
    held = _held(STACKS, sample_s=100e-6, seconds=2.0)  # 200 looks, half of which found the GIL held
    assert held == pytest.approx({"event loop": 15.0, "decode threads": 25.0, "consumer": 7.5, "other": 2.5})


def test_cores_and_the_gil_bound_the_rate() -> None:
    def run(rate: float, cpu_us: float, gil_us: float = 0.0) -> list[dict[str, Any]]:
        return [{"samples_s": rate, "cpu_us": cpu_us, "gil": Counter({"decode threads": gil_us} if gil_us else {})}]

    made = figures(
        {
            ("raw", "threads", 1): run(10_000, 100, 80),
            ("raw", "threads", 2): run(12_500, 110, 80),  # the GIL bounds it
            ("raw", "processes", 2): run(16_000, 100),
            ("cold", "threads", 2): run(3000, 300, 20),
        }
    )
    rates = {(row["kind"], row["mode"], row["cores"]): row["predicted_s"] for row in made["rows"]}
    assert rates["raw", "threads", 2] == 12_500
    assert rates["raw", "processes", 2] == 20_000
    assert rates["raw", "threads", 1] is None
    assert rates["cold", "threads", 2] is None
    assert made["model_max_error"] == 0.25
    assert made["cores_16_s"] == {"raw": 12_500}
    assert (made["raw_cap_s"], made["cold_cap_s"]) == (12_500, 50_000)
