"""What observing costs: ``python -m benchmarks.overhead [--json FILE] [--quick]``.

Epochs over datasets on the local drive, in turns: plain, and once with each kind of observation. An observed epoch's
processor time, of all threads of the process, is divided by that of the plain epoch of the same round. The figure is
the median over the rounds, minus one. Samples are raw images' bytes, as many as a photo of ImageNet has, or tiny, where
a batch takes the least time and so observing the largest share. ``metrics``: `concurrent-loader top`, which asks once a
second and whose socket plain epochs do without, and snapshots every second for OpenTelemetry (without an SDK),
Prometheus and a file. ``recorder``: the flight recorder. ``trace``: a trace, and writing its file.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from time import process_time
from typing import Any
from unittest.mock import patch

from rich.console import Console

from benchmarks.command import program, rounds
from benchmarks.synthetic import write_noise
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

    num_images: int = 8_000
    image_bytes: int = 56_000
    num_tiny: int = 50_000
    tiny_bytes: int = 16
    batch_size: int = 256
    num_rounds: int = 50


FULL, QUICK = Load(), Load(512, 56_000, 10_000, 16, 256, 2)


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
Variant = Callable[[ConcurrentDataLoader, Path], AbstractContextManager[None]]
VARIANTS: dict[str, Variant] = {"plain": plain, "metrics": metrics, "recorder": recorder, "trace": trace}


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Measures each kind of observation on both kinds of samples. The first round warms up."""
    rows: list[dict[str, Any]] = []
    datasets = {"images": (load.num_images, load.image_bytes), "tiny": (load.num_tiny, load.tiny_bytes)}
    with tempfile.TemporaryDirectory() as temporary, patch.dict("os.environ", {"XDG_RUNTIME_DIR": temporary}):
        for samples, (num_samples, size) in datasets.items():
            folder = Path(temporary) / samples
            shard_bytes = max(150 * size, 64_000)
            write_noise(str(folder / "data"), num_samples=num_samples, sample_bytes=size, shard_bytes=shard_bytes)
            cpu_s, num_batches = _measure(load, folder, console), -(-num_samples // load.batch_size)
            for name in list(VARIANTS)[1:]:
                ratios = [with_s / without_s for with_s, without_s in zip(cpu_s[name], cpu_s["plain"], strict=True)]
                low, middle, high = quantiles(ratios, n=4)
                observed_ms, plain_ms = (round(1e3 * median(cpu_s[of]) / num_batches, 3) for of in (name, "plain"))
                rows.append({
                    "variant": name, "samples": samples,
                    "cpu_ms_per_batch": observed_ms, "plain_cpu_ms_per_batch": plain_ms,
                    "cpu_share": round(middle - 1, 4), "quartiles": [round(low - 1, 4), round(high - 1, 4)],
                })  # fmt: skip
    return {
        "load": asdict(load),
        "rows": rows,
        **{f"{row['variant']}_cpu_share": row["cpu_share"] for row in rows if row["samples"] == "images"},
    }


def _measure(load: Load, folder: Path, console: Console) -> dict[str, list[float]]:
    """Returns the processor seconds of each round's epoch, for each kind of observation."""
    with ShardDataset(str(folder / "data")) as dataset:
        loader = ConcurrentDataLoader(dataset, load.batch_size, shuffle=True)

        def epoch(name: str) -> float:
            with VARIANTS[name](loader, folder):
                began_s = process_time()
                for _ in loader:
                    pass
                return process_time() - began_s

        found = rounds(console, f"Epochs, {folder.name}", VARIANTS, load.num_rounds + 1, epoch)
    return {name: cpu_s[1:] for name, cpu_s in found.items()}


main = program("overhead", __doc__, run_benchmark, FULL, QUICK)

if __name__ == "__main__":
    raise SystemExit(main())
