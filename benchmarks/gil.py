"""How much of a sample's way holds the GIL, and what that says of a process with more cores.

    python -m benchmarks.gil [--json FILE] [--quick]

Samples of 56 KB from the page cache (``raw``: bytes; ``crop``: JPEGs that become crops of 128 × 128), and from a local
S3 server without a cache (``cold``: bytes). Each side is a process of its own that is bound to one or two cores, with
threads or with two worker processes; sides take turns. Epochs follow each other for some seconds, first for the rate
and the processor time, and then py-spy looks a hundred times a second which thread holds the GIL.

With c cores, p processor seconds and g seconds of the GIL per sample, a process reaches at most min(c ÷ p, 1 ÷ g)
samples per second. p of ``raw`` and ``crop`` is that of one core, and the prediction for two cores and for two worker
processes is compared with what they reach. ``cold`` shares its cores with the server, so only its g is of use.

JSON: ``rows``: ``kind, mode, cores, samples_s, cpu_us, gil_us`` (both per sample)``, predicted_s, spread_s``.
``stages``: kind → stage → microseconds of the GIL per sample. ``raw_cap_s, cold_cap_s, crop_cap_s``: 1 ÷ g.
``cores_16_s``: kind → prediction for 16 cores. ``model_max_error``: largest difference of a prediction from what was
measured.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.bucket import write_shards
from benchmarks.command import program, rounds
from benchmarks.figures import extremes, four_digits
from benchmarks.fresh_process import in_fresh_process
from benchmarks.machine import cpu_of_tree_s
from benchmarks.photos import make_photos
from benchmarks.synthetic import write_noise
from concurrent_loader import ConcurrentDataLoader, RandomResizedCrop, ShardDataset
from concurrent_loader.storage.testing import local_s3

_RATE_HZ = 100
_SIDE_S = 300.0
_BUCKET = "gil"
_STAGES = {"LoopThread._serve": "event loop", "DecodeThreads._serve": "decode threads", "epochs": "consumer"}
_SET_PTRACER, _ANY = 0x59616D61, ctypes.c_ulong(-1)  # of Linux' prctl: any process of this user may look


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    num_samples: int = 4000
    sample_bytes: int = 56_000
    batch_size: int = 256
    seconds: float = 4.0
    num_rounds: int = 5


FULL, QUICK = Load(), Load(num_samples=64, sample_bytes=5000, batch_size=16, seconds=0.5, num_rounds=1)
Side = tuple[str, str, int]  # kind, "threads" or "processes", cores
SIDES: tuple[Side, ...] = (
    *((kind, *way) for kind in ("raw", "crop") for way in (("threads", 1), ("threads", 2), ("processes", 2))),
    ("cold", "threads", 2),
)  # fmt: skip


def measure(side: Side, load: Load, place: dict[str, Any]) -> dict[str, Any]:
    """Measures one side, in the process that it is called in."""
    kind, mode, cores = side
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True} if mode == "processes" else {}
    if kind == "crop":
        options["decode"] = {"image": RandomResizedCrop(128)}
    with ShardDataset(**place) as dataset:
        loader = ConcurrentDataLoader(dataset, load.batch_size, shuffle=True, **options)

        def epochs(until_s: float) -> int:
            """Loads whole epochs until some time; returns the number of samples."""
            count = 0
            while not count or time.perf_counter() < until_s:
                count += sum(len(batch.sample_ids) for batch in loader)
            return count

        epochs(0.0)
        cpu_s, began_s = cpu_of_tree_s(), time.perf_counter()
        count = epochs(began_s + load.seconds)
        took_s, cpu_s = time.perf_counter() - began_s, cpu_of_tree_s() - cpu_s
        found = {"samples_s": count / took_s, "cpu_us": 1e6 * cpu_s / count, "gil": Counter[str]()}
        if mode == "threads":
            with tempfile.NamedTemporaryFile(suffix=".txt") as file, _spy(file.name, load.seconds) as spy:
                while spy.poll() is None:
                    epochs(0.0)
                if spy.returncode:
                    raise RuntimeError("py-spy could not look into this process, see above")
                found["gil"] = _held(Path(file.name).read_text(), took_s / count, load.seconds)
    return found


def _spy(file: str, seconds: float) -> subprocess.Popen[bytes]:
    program = shutil.which("py-spy", path=f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        raise RuntimeError("benchmarks.gil needs py-spy: pip install py-spy")
    ctypes.CDLL(None).prctl(_SET_PTRACER, _ANY, 0, 0, 0)
    what = ["--gil", "--format", "raw", "--rate", str(_RATE_HZ), "--duration", str(max(1, round(seconds)))]
    return subprocess.Popen([program, "record", *what, "--output", file, "--pid", str(os.getpid())], stdout=sys.stderr)


def _held(stacks: str, sample_s: float, seconds: float) -> Counter[str]:
    """Returns the microseconds of the GIL per sample by stage, from stacks that held it, one line each."""
    us_per_look = 1e6 * sample_s / (_RATE_HZ * max(1, round(seconds)))
    held: Counter[str] = Counter()
    for line in stacks.splitlines():
        stack, _, count = line.rpartition(" ")
        stage = next((stage for name, stage in _STAGES.items() if f"{name} (" in stack), "other")
        held[stage] += int(count) * us_per_look  # type: ignore[assignment]
    return held


def run_benchmark(load: Load, console: Console) -> dict[str, Any]:
    """Writes the datasets, and lets the sides take turns."""
    with tempfile.TemporaryDirectory(prefix="gil-benchmark-") as folder, local_s3() as server:
        server.make_bucket(_BUCKET)
        places: dict[str, dict[str, Any]] = {
            "raw": {"url": f"{folder}/raw"},
            "crop": {"url": f"{folder}/crop", "columns": ("image",)},
            "cold": {"url": f"s3://{_BUCKET}/cold", "storage_options": server.storage_options()},
        }
        for kind in ("raw", "cold"):
            write_noise(**places[kind], num_samples=load.num_samples, sample_bytes=load.sample_bytes)
        write_shards(make_photos(Path(folder), count=max(8, load.num_samples // 4)), places["crop"]["url"])

        def turn(side: Side) -> dict[str, Any]:
            return in_fresh_process(measure, (side, load, places[side[0]]), what=str(side), timeout_s=_SIDE_S)

        found = rounds(console, "gil", SIDES, load.num_rounds, turn)
    return {**figures(found), "server": server.kind, "load": asdict(load)}


def figures(found: dict[Side, list[dict[str, Any]]]) -> dict[str, Any]:
    """Returns the JSON: rows, stages and predictions, from what each side measured in each round."""
    looked_at = {kind: [run["gil"] for run in runs] for (kind, *way), runs in found.items() if way == ["threads", 2]}
    stages = {
        kind: {stage: median(held[stage] for held in each) for stage in sorted(set().union(*each))}
        for kind, each in looked_at.items()
    }
    gil_s = {kind: max(sum(held.values()), 1e-3) / 1e6 for kind, held in stages.items()}
    cpu_s = {side: median(run["cpu_us"] for run in runs) / 1e6 for side, runs in found.items()}
    alone_s = {kind: seconds for (kind, _, cores), seconds in cpu_s.items() if cores == 1}
    rows, errors = [], []
    for (kind, mode, cores), runs in found.items():
        rates = [run["samples_s"] for run in runs]
        row = {
            "kind": kind, "mode": mode, "cores": cores, "samples_s": four_digits(median(rates)),
            "cpu_us": four_digits(1e6 * cpu_s[kind, mode, cores]),
            "gil_us": four_digits(1e6 * gil_s[kind]), "predicted_s": None, "spread_s": extremes(rates),
        }  # fmt: skip
        if kind in alone_s and cores > 1:
            num_processes = 2 if mode == "processes" else 1
            row["predicted_s"] = four_digits(min(cores / alone_s[kind], num_processes / gil_s[kind]))
            errors.append(abs(row["predicted_s"] / median(rates) - 1))
        rows.append(row)
    return {
        "rows": rows,
        "stages": {kind: {stage: four_digits(us) for stage, us in held.items()} for kind, held in stages.items()},
        **{f"{kind}_cap_s": four_digits(1 / seconds) for kind, seconds in gil_s.items()},
        "cores_16_s": {kind: four_digits(min(16 / alone_s[kind], 1 / gil_s[kind])) for kind in alone_s},
        "model_max_error": four_digits(max(errors)),
    }


main = program("gil", __doc__, run_benchmark, FULL, QUICK)

if __name__ == "__main__":
    raise SystemExit(main())
