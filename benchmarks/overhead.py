"""What observing costs: ``python -m benchmarks.overhead [--json FILE] [--quick]``.

Epochs over a dataset on the local drive, in turns: plain, and once with each kind of observation. An observed epoch's
processor time, of all threads of the process, is divided by that of the plain epoch of the same round. The figure is
the median over the rounds, minus one. ``recorder``: the flight recorder. ``trace``: a trace, and writing its file.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

from rich.console import Console

from benchmarks.command import bar, in_turns, program
from benchmarks.resume import write
from concurrent_loader import ConcurrentDataLoader, ShardDataset
from concurrent_loader.recorder import FlightRecorder


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    num_samples: int = 1_000_000
    batch_size: int = 256
    num_rounds: int = 15


FULL, QUICK = Load(), Load(20_000, 256, 1)


@contextmanager
def recorder(loader: ConcurrentDataLoader, folder: Path) -> Iterator[None]:
    """Records what each step delivers."""
    loader._recorder = FlightRecorder(folder / "run", 0, 1)
    yield
    loader._recorder = None


def trace(loader: ConcurrentDataLoader, folder: Path) -> AbstractContextManager[Any]:
    """Traces the epoch, and writes the file."""
    return loader.trace(folder / "trace.json")


VARIANTS: dict[str, Callable[[ConcurrentDataLoader, Path], AbstractContextManager[Any]]] = {
    "recorder": recorder,
    "trace": trace,
}


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Measures each kind of observation."""
    names, cpu_s = ["plain", *VARIANTS], {name: [0.0] * load.num_rounds for name in ["plain", *VARIANTS]}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write(str(folder / "data"), load.num_samples, console)
        with (
            ShardDataset(str(folder / "data")) as dataset,
            bar(console, "Epochs", len(names) * load.num_rounds) as progress,
        ):
            loader = ConcurrentDataLoader(dataset, load.batch_size, shuffle=True)
            _epoch(loader)  # warms up
            for number, name in in_turns(names, load.num_rounds):
                began_s = process_time()
                with VARIANTS[name](loader, folder) if name in VARIANTS else nullcontext():
                    _epoch(loader)
                cpu_s[name][number] = process_time() - began_s
                progress.advance()
    rows: list[dict[str, Any]] = []
    for name in VARIANTS:
        ratios = [with_s / without_s for with_s, without_s in zip(cpu_s[name], cpu_s["plain"], strict=True)]
        rows.append({"variant": name, "cpu_s": round(median(cpu_s[name]), 4), "ratios": [round(r, 4) for r in ratios]})
    return {
        "load": asdict(load),
        "plain_cpu_s": round(median(cpu_s["plain"]), 4),
        "rows": rows,
        **{f"{row['variant']}_cpu_share": round(median(row["ratios"]) - 1, 4) for row in rows},
    }


def _epoch(loader: ConcurrentDataLoader) -> None:
    for _ in loader:
        pass


main = program("overhead", __doc__, run_benchmark, FULL, QUICK)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
