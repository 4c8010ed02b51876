"""Predictions of ``concurrent-loader whatif`` beside measured runs.

    python -m benchmarks.whatif [--json FILE] [--quick]

Two runs are recorded: photographs in shards that are decoded and hashed (decoding bounds it, and few bytes per second
leave the cores to the loader), and raw objects with eight requests in flight (the store bounds it). From each recording
the rates of other runs are predicted, and these are run: cores by affinity, latencies by toxiproxy, accelerators by
sleeping, a full cache folder by an epoch before. Each run is a fresh process; runs take turns, and the rate is the
median of the rounds. Server and proxy share the cores.

JSON: ``whatif_max_error``: largest error of a prediction, ÷ the measured rate; ``rows``: ``run`` (``shards`` or
``objects``)``, cores, latency_ms, accelerators, step_ms, cached, measured_samples_s, predicted_samples_s, error,
bound_by, spread``; ``recordings, first_byte_ms, server``.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

from rich.console import Console

from benchmarks.bucket import far_away, photos_in, put_all, write_shards
from benchmarks.command import program, rounds
from benchmarks.figures import extremes, four_digits
from benchmarks.fresh_process import in_fresh_process
from concurrent_loader import ConcurrentDataLoader, ObjectDataset, RandomResizedCrop, ShardDataset
from concurrent_loader.storage.testing import local_s3
from concurrent_loader.whatif.run_trace import RunTrace
from concurrent_loader.whatif.simulation import Scenario, predict

_TIMEOUT_S = 300.0
_BUCKET = "whatif"
_IN_FLIGHT = 8
_PROBES = 101


@dataclass(frozen=True, slots=True)
class Run:
    """What is run, and predicted."""

    kind: str  # ``shards`` or ``objects``
    cores: int = 2
    latency_ms: int = 30
    accelerators: int = 1
    step_ms: float = 0.0
    cached: bool = False


RECORDED = (Run("shards"), Run("objects"))
RUNS = (
    *RECORDED,
    Run("shards", cores=1),
    Run("shards", latency_ms=5),
    Run("shards", latency_ms=130),
    Run("shards", cores=1, latency_ms=130),
    Run("shards", step_ms=150),
    Run("shards", accelerators=2, step_ms=100),
    Run("shards", cores=1, accelerators=4, step_ms=100),
    Run("shards", latency_ms=130, cached=True),
    Run("shards", cores=1, latency_ms=130, step_ms=150, cached=True),
    Run("objects", latency_ms=130),
    Run("objects", latency_ms=5, accelerators=2, step_ms=80),
    Run("objects", latency_ms=130, step_ms=600),
)


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    num_photos: int = 1600
    batch_size: int = 32
    hashes: int = 60  # of each decoded image
    num_rounds: int = 3
    runs: tuple[Run, ...] = RUNS


FULL = Load()
QUICK = Load(num_photos=48, batch_size=8, hashes=1, num_rounds=1, runs=(*RECORDED, Run("shards", cores=1)))


def read(load: Load, run: Run, options: dict[str, str], recording: str | None) -> float:
    """Loads one epoch in this process; returns samples per second. Records it if there is a file."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: run.cores])
    with ExitStack() as stack:
        loader = _loader(load, run, options, stack)
        if run.cached:
            for _ in loader:
                pass
        if recording:
            stack.enter_context(loader.record(recording))
        num_samples, began = 0, perf_counter()
        for number, batch in enumerate(loader, 1):
            num_samples += len(batch["image"])
            if number % run.accelerators == 0:
                sleep(run.step_ms / 1000)
        return num_samples / (perf_counter() - began)


def _loader(load: Load, run: Run, options: dict[str, str], stack: ExitStack) -> Any:
    url = f"s3://{_BUCKET}/{run.kind}"
    if run.kind == "objects":
        objects = stack.enter_context(ObjectDataset(url, in_flight=_IN_FLIGHT, storage_options=options))
        return ConcurrentDataLoader(objects, load.batch_size, shuffle=True)
    cache_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="whatif-cache-")) if run.cached else None
    shards = ShardDataset(url, columns=("image",), cache_dir=cache_dir, storage_options=options)
    stack.enter_context(shards)

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        data = memoryview(sample["image"].numpy()).cast("B")
        for _ in range(load.hashes):
            hashlib.blake2b(data).digest()  # takes a core, and releases the GIL
        return sample

    crop = RandomResizedCrop(224)
    return ConcurrentDataLoader(shards, load.batch_size, shuffle=True, decode={"image": crop}, transform=transform)


def predicted(trace: RunTrace, run: Run, latency_s: float) -> tuple[float, str]:
    """Returns the rate that a recording predicts for a run, and what bounds it."""
    scenario = replace(
        Scenario.of(trace).with_cores(run.cores), accelerators=run.accelerators, step_s=run.step_ms / 1000,
        latency_s=latency_s, cached=float(run.cached),
    )  # fmt: skip
    found = predict(trace, scenario)
    return found.samples_s, found.bound_by


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Records two runs, predicts all, and measures them."""
    data, stores, first_byte_ms = Path(".demo/whatif"), {}, {}
    photos = photos_in(data, load.num_photos, console)
    objects = {f"{path.parent.name}/{path.name}": path for path in photos.paths()}
    with tempfile.TemporaryDirectory() as folder, local_s3(data_dir=data / "s3") as server, ExitStack() as proxies:
        server.make_bucket(_BUCKET)
        write_shards(photos, f"s3://{_BUCKET}/shards", server.storage_options())
        put_all(f"s3://{_BUCKET}/objects", server.storage_options(), objects)
        for latency in sorted({run.latency_ms for run in load.runs}):
            far, _ = proxies.enter_context(far_away(server, latency))
            stores[latency] = far.storage_options()
            first_byte_ms[latency] = 1000 * _first_byte_s(stores[latency], min(_PROBES, len(objects)))
        files = {run.kind: f"{folder}/{run.kind}.rec" for run in RECORDED}

        def measure(run: Run, file: str | None = None) -> float:
            arguments, preload = (load, run, stores[run.latency_ms], file), ("benchmarks.whatif",)
            return in_fresh_process(read, arguments, what=str(run), preload=preload, timeout_s=_TIMEOUT_S)

        for run in RECORDED:
            measure(run, files[run.kind])
        traces = {kind: RunTrace.load(Path(file)) for kind, file in files.items()}
        rates = rounds(console, "runs", load.runs, load.num_rounds, measure)
    # The recorded times to the first byte have what a busy client adds; other latencies differ by what proxies do.
    rows = [_row(run, rates[run], traces[run.kind], first_byte_ms) for run in load.runs]
    recordings = {
        kind: {"samples_s": four_digits(trace.num_samples / trace.wall_s), "first_byte_s": trace.first_byte_s}
        for kind, trace in traces.items()
    }
    return {
        "whatif_max_error": max(row["error"] for row in rows),
        "rows": rows,
        "recordings": recordings,
        "first_byte_ms": {str(latency): round(value, 2) for latency, value in first_byte_ms.items()},
        "rounds": load.num_rounds,
        "server": server.kind,
    }


def _row(run: Run, rates: list[float], trace: RunTrace, first_byte_ms: Mapping[int, float]) -> dict[str, Any]:
    more_s = (first_byte_ms[run.latency_ms] - first_byte_ms[RECORDED[0].latency_ms]) / 1000
    rate, bound_by = predicted(trace, run, max(0.0, trace.first_byte_s[0] + more_s))
    measured, facts = median(rates), asdict(run)
    return {
        "run": facts.pop("kind"),
        **facts,
        "measured_samples_s": four_digits(measured),
        "predicted_samples_s": four_digits(rate),
        "error": round(abs(rate / measured - 1), 4),
        "bound_by": bound_by,
        "spread": {"measured_samples_s": extremes(rates)},
    }


def _first_byte_s(options: dict[str, str], num_probes: int) -> float:
    """Returns the loader's own figure for single requests: of small objects, the time to the first byte has the body.

    The proxy draws another delay for each piece of a body, so whole objects come later than the first byte of a tiny
    one, in proportion to the latency.
    """
    with ObjectDataset(f"s3://{_BUCKET}/objects", in_flight=1, storage_options=options) as objects:
        for number in range(num_probes):
            objects[number]
        return objects.fetch_stats.first_byte_p50_s


main = program("whatif", __doc__, run_benchmark, FULL, QUICK)

if __name__ == "__main__":
    raise SystemExit(main())
