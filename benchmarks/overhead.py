"""What observing costs: ``python -m benchmarks.overhead [--json FILE] [--quick]``.

Epochs over a dataset on the local drive, in turns: plain, and once with each kind of observation. An observed epoch's
processor time, of all threads of the process, is divided by that of the plain epoch of the same round. The figure is
the median over the rounds, minus one. ``metrics``: `concurrent-loader top`, which asks once a second and whose socket
plain epochs do without, and snapshots every second for OpenTelemetry (without an SDK), Prometheus and a file.
``recorder``: the flight recorder. ``trace``: a trace, and writing its file.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any
from unittest.mock import patch

from rich.console import Console

from benchmarks.command import bar, in_turns, program
from benchmarks.resume import write
from concurrent_loader import (
    ConcurrentDataLoader,
    JsonLinesMetrics,
    OpenTelemetryMetrics,
    PrometheusMetrics,
    ShardDataset,
    observe,
)
from concurrent_loader.metrics.live_socket import ask_all
from concurrent_loader.metrics.running import Iterations
from concurrent_loader.recorder import FlightRecorder


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    num_samples: int = 400_000
    batch_size: int = 256
    num_rounds: int = 12


FULL, QUICK = Load(), Load(20_000, 256, 2)


@contextmanager
def plain(loader: ConcurrentDataLoader, folder: Path) -> Iterator[None]:
    """Hides iterations, so that they have no socket and no thread that notes counters."""
    with patch.object(Iterations, "begin", lambda self, iteration: iteration):
        yield


@contextmanager
def metrics(loader: ConcurrentDataLoader, folder: Path) -> Iterator[None]:
    """Observes a loader in every way, once a second."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(1.0):
            ask_all()

    watcher = threading.Thread(target=watch, daemon=True)
    with PrometheusMetrics(0) as prometheus:
        observers = OpenTelemetryMetrics(), prometheus, JsonLinesMetrics(folder / "metrics.jsonl")
        with observe(loader, *observers, every_s=1.0):
            watcher.start()
            yield
            ended.set()
            watcher.join()


@contextmanager
def recorder(loader: ConcurrentDataLoader, folder: Path) -> Iterator[None]:
    """Records what each step delivers."""
    with plain(loader, folder):
        loader._recorder = FlightRecorder(folder / "run", 0, 1)
        yield
        loader._recorder = None


@contextmanager
def trace(loader: ConcurrentDataLoader, folder: Path) -> Iterator[None]:
    """Traces the epoch, and writes the file."""
    with plain(loader, folder), loader.trace(folder / "trace.json"):
        yield


# Another kind of observation is another row. Except `metrics`, they hide iterations, too.
VARIANTS: dict[str, Callable[[ConcurrentDataLoader, Path], AbstractContextManager[None]]] = {
    "plain": plain,
    "metrics": metrics,
    "recorder": recorder,
    "trace": trace,
}


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Measures each kind of observation. The first round warms up."""
    cpu_s: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write(str(folder / "data"), load.num_samples, console)
        with (
            ShardDataset(str(folder / "data")) as dataset,
            bar(console, "Epochs", len(VARIANTS) * (load.num_rounds + 1)) as progress,
            patch.dict("os.environ", {"XDG_RUNTIME_DIR": temporary}),
        ):
            loader = ConcurrentDataLoader(dataset, load.batch_size, shuffle=True)
            for number, name in in_turns(list(VARIANTS), load.num_rounds + 1):
                with VARIANTS[name](loader, folder):
                    began_s = process_time()
                    for _ in loader:
                        pass
                    if number:
                        cpu_s[name].append(process_time() - began_s)
                progress.advance()
    rows: list[dict[str, Any]] = []
    for name in list(VARIANTS)[1:]:
        ratios = [with_s / without_s for with_s, without_s in zip(cpu_s[name], cpu_s["plain"], strict=True)]
        rows.append({"variant": name, "cpu_s": round(median(cpu_s[name]), 4), "ratios": [round(r, 4) for r in ratios]})
    return {
        "load": asdict(load),
        "plain_cpu_s": round(median(cpu_s["plain"]), 4),
        "rows": rows,
        **{f"{row['variant']}_cpu_share": round(median(row["ratios"]) - 1, 4) for row in rows},
    }


main = program("overhead", __doc__, run_benchmark, FULL, QUICK)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
