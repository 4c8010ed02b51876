"""The bucket against the local drive.

    python -m benchmarks.remote_vs_local --step train|none [--json FILE] [--quick]

Photographs as an image folder through torch's DataLoader against the same photographs as shards in a bucket behind
latency through ConcurrentDataLoader, with an empty cache (cold) and with the one that this left (warm): training on
them (``train``), only decoding and augmenting them, and only taking their bytes (both ``none``). Every epoch runs in a
fresh process, and what it delivers is compared with the files. The sides alternate, and a ratio compares epochs of the
same round, so that a machine that changes its pace changes it little.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import structs
from rich.console import Console

from benchmarks.bucket import Bucket, open_bucket, photos_in, write_shards
from benchmarks.command import Bar, bar, command_line, publish
from benchmarks.figures import with_spread
from benchmarks.machine import Bystanders
from benchmarks.peers.bucket import led_to
from benchmarks.peers.figures import image_digest
from benchmarks.peers.job import Job, Outcome
from benchmarks.peers.turns import Side, checked_outcome, take_turns
from benchmarks.photos import PhotoFolder, replicate_photos
from benchmarks.training import INPUT_SIZE, MIN_SCALE

_DECODE = Job(
    peer="torch_items", photos="", options={"client": "files"}, decoded=True, size=INPUT_SIZE, min_scale=MIN_SCALE,
    batch_size=64,
)  # fmt: skip
TRAIN = structs.replace(_DECODE, train=True)
# Step of the command line → name in the JSON → what torch's DataLoader does with the files.
_STEPS = {
    "train": {"training": TRAIN},
    # Files in the page cache are read faster than a worker can hand them over: 40,000 a second without, 8,000 with.
    "none": {"raw": structs.replace(_DECODE, decoded=False, batch_size=256, num_workers=0), "decoded": _DECODE},
}


@dataclass(frozen=True, slots=True)
class Load:
    """How much is measured."""

    num_photos: int = 3200
    raw_bytes: int = 1_000_000_000  # size that the photographs are repeated to for the raw step
    num_rounds: int = 5
    latency_ms: int = 30
    data: Path = Path(".demo")  # folder for all that is made


FULL, QUICK = Load(), Load(num_photos=12, raw_bytes=1_000_000, num_rounds=1)


def sides_of(step: Job, photos: PhotoFolder, prefix: str, bucket: Bucket) -> list[Side]:
    """Returns the image folder and the shards, with all settings that they have in common."""
    folder = structs.replace(step, photos=str(photos.root), resident_bytes=photos.num_bytes * 11 // 10)
    options = {"layout": "shards", "transform": True}
    shards = structs.replace(folder, peer="ours", prefix=prefix, num_workers=None, options=options)
    shards = led_to(shards, bucket.remote, bucket=bucket.name)
    return [Side("local", sys.executable, folder, False), Side("shards", sys.executable, shards, True)]


def run_benchmark(name: str, load: Load, console: Console) -> dict[str, Any]:
    """Runs all rounds of the steps of a name."""
    load.data.mkdir(parents=True, exist_ok=True)
    photos = photos_in(load.data, load.num_photos, console)
    with open_bucket(load.data / "s3", latency_ms=load.latency_ms) as bucket:
        figures: dict[str, Any] = {
            "memory_made_resident": True,
            "server": bucket.server,
            "latency_ms": bucket.latency_ms if bucket.latency_applied else 0.0,
            "first_byte_ms": bucket.latency_ms,
            "latency": bucket.latency,
        }
        for part, step in _STEPS[name].items():
            images = photos if step.decoded else replicate_photos(photos, min_bytes=load.raw_bytes)
            with bar(console, f"{part}: epochs", 3 * load.num_rounds) as progress:
                figures[part] = _run_rounds(step, images, bucket, load, progress)
    return figures


def _run_rounds(step: Job, photos: PhotoFolder, bucket: Bucket, load: Load, progress: Bar) -> dict[str, Any]:
    prefix = f"{photos.root.parent.name}/shards"
    write_shards(photos, f"s3://{bucket.name}/{prefix}", bucket.direct)
    others = Bystanders()
    digests = [image_digest(path.read_bytes(), number) for number, path in enumerate(photos.paths())]
    server_s_per_1000 = []

    def run(side: Side, job: Job, epoch: str, number: int) -> Outcome:
        before_s = bucket.server_cpu_s()
        outcome = checked_outcome(side, job, digests)
        if side.caches and epoch == "cold":
            server_s_per_1000.append(1000 * (bucket.server_cpu_s() - before_s) / len(outcome.numbers))
        progress.advance()
        return outcome

    local, shards = sides_of(step, photos, prefix, bucket)
    take_turns([local, shards], load.num_rounds, load.data / "benchmark-cache", run)
    share = others.share()
    epochs = (local.outcomes["cold"], shards.outcomes["cold"], shards.outcomes["warm"])
    figures = figures_of(*([made[number] for number in sorted(made)] for made in epochs))
    server_cpu_s = round(median(server_s_per_1000), 3)
    return {**figures, "server_cpu_s_per_1000": server_cpu_s, "other_programs_share": share}


def pace(outcome: Outcome) -> float:
    """Returns images per second from the request for the first batch on."""
    return len(outcome.numbers) / (outcome.epoch_s - outcome.build_s)


def waiting_share(outcome: Outcome) -> float:
    """Returns the share of that time that the consumer spent waiting for batches, 0 … 1."""
    return outcome.waiting_s / (outcome.epoch_s - outcome.build_s)


def figures_of(local: Sequence[Outcome], cold: Sequence[Outcome], warm: Sequence[Outcome]) -> dict[str, Any]:
    """Returns the figures of one step, with epochs of the same rounds: medians, and the extremes under ``spread``.

    A ratio is the median over the rounds of (remote ÷ local in the same round).
    """
    of: dict[str, tuple[Callable[[Any], float], str]] = {
        "{side}_img_s": (pace, "local cold warm"),
        "build_s": (lambda each: each.build_s, "cold"),
        "first_batch{}_s": (lambda each: each.first_batch_s - each.build_s, "cold local warm"),
        "waiting_share": (waiting_share, "cold local"),
        "gets": (lambda each: each.fetched.gets, "cold warm"),
        "bytes_ratio": (lambda each: each.fetched.num_bytes / each.fetched.dataset_bytes, "cold"),
        "cpu_s_per_1000": (lambda each: each.cpu_s_per_1000, "cold local warm"),
        "peak_rss_mb": (lambda each: each.peak_rss_mb, "cold local"),
        "rss_added_mb": (lambda each: each.rss_added_mb, "cold warm"),
    }
    epochs = {"local": local, "cold": cold, "warm": warm}
    values: dict[str, list[float]] = {}
    for name, (figure, sides) in of.items():
        for side in sides.split():
            suffix = "" if side == "cold" else f"_{side}"
            key = name.format(suffix, side=side) if "{" in name else f"{name}{suffix}"
            values[key] = [figure(each) for each in epochs[side]]
    for side, remote in (("cold", cold), ("warm", warm)):
        values[f"{side}_ratio"] = [pace(one) / pace(other) for one, other in zip(remote, local, strict=True)]
    fetched = cold[0].fetched
    assert fetched is not None
    common = {"client": fetched.client, "num_samples": len(cold[0].numbers), "rounds": len(cold)}
    return {**with_spread(values), **common}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    parser = command_line("remote_vs_local", __doc__)
    parser.add_argument("--step", choices=list(_STEPS), required=True, help="train, or none (raw and decoded)")
    options = parser.parse_args(arguments)
    load = QUICK if options.quick else FULL
    name = f"remote_vs_local.{options.step}"
    return publish(name, lambda console: run_benchmark(options.step, load, console), options.json)


if __name__ == "__main__":
    raise SystemExit(main())
