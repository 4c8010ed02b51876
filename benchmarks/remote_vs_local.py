"""The bucket against the local drive.

    python -m benchmarks.remote_vs_local [--json FILE] [--quick]

Photographs as an image folder through torch's DataLoader against the same photographs as shards in a bucket behind
latency through ConcurrentDataLoader, with an empty cache (cold) and with the one that this left (warm): training on
them, only decoding and augmenting them, and only taking their bytes. Every epoch runs in a fresh process. The sides
alternate, and a ratio compares epochs of the same round, so that a machine that changes its pace changes it little.
"""

from __future__ import annotations

import shutil
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.bucket import Bucket, open_bucket
from benchmarks.command import bar, command_line, publish
from benchmarks.figures import check_same_samples, with_spread
from benchmarks.filling import has_shards, ingest, photos_in
from benchmarks.harness import Epoch, Request, Side, Step, run_epoch
from benchmarks.machine import Bystanders
from benchmarks.photos import CLASSES, PhotoFolder, replicate_photos
from concurrent_loader.storage.sizes import parse_size

_STEPS: dict[str, tuple[Step, ...]] = {
    "train": ("train",),
    "none": ("raw", "decoded"),
    "both": ("train", "raw", "decoded"),
}
_NAMES: dict[Step, str] = {"train": "training", "raw": "raw", "decoded": "decoded"}
_BATCH_SIZE: dict[Step, int] = {"train": 64, "decoded": 64, "raw": 256}
# Files in the page cache are read faster than a worker process can hand them over: 40,000 a second without, 8,000 with.
_NUM_WORKERS: dict[Step, int] = {"train": 2, "decoded": 2, "raw": 0}


def run_benchmark(options: Namespace, console: Console) -> dict[str, Any]:
    """Runs all rounds of all steps."""
    options.data.mkdir(parents=True, exist_ok=True)
    photos = photos_in(options.data, options.images, console, seed=options.seed)
    with open_bucket(options.data / "s3", latency_ms=options.latency) as bucket:
        figures: dict[str, Any] = {
            "memory_made_resident": options.resident,
            "server": bucket.server,
            "latency_ms": bucket.latency_ms if bucket.latency_applied else 0.0,
            "first_byte_ms": bucket.latency_ms,
            "latency": bucket.latency,
        }
        for step in _STEPS[options.step]:
            images = photos
            if step == "raw":
                images = replicate_photos(photos, min_bytes=parse_size(options.rss_dataset, name="--rss-dataset"))
            url = f"s3://{bucket.name}/{images.root.parent.name}/shards"
            if not has_shards(images, url, bucket.direct):
                ingest(images, url, bucket.direct)
            others = Bystanders()
            made = _run_rounds(step, images, url, bucket, options, console)
            figures[_NAMES[step]] = {**made, "other_programs_share": round(others.share(), 3)}
    return figures


def _run_rounds(
    step: Step, photos: PhotoFolder, url: str, bucket: Bucket, options: Namespace, console: Console
) -> dict[str, Any]:
    local: list[Epoch] = []
    cold: list[Epoch] = []
    warm: list[Epoch] = []
    server_s_per_1000 = []
    cache = options.data / "benchmark-cache"

    def run(side: Side, location: str) -> Epoch:
        request = Request(
            side=side,
            step=step,
            location=location,
            num_classes=len(CLASSES),
            storage_options=dict(bucket.remote) if side == "shards" else {},
            client=options.client,
            cache_dir=str(cache) if side == "shards" else None,
            batch_size=_BATCH_SIZE[step],
            num_workers=_NUM_WORKERS[step],
            seed=options.seed,
            resident_bytes=photos.num_bytes * 11 // 10 if options.resident else 0,
        )
        epoch = run_epoch(request)
        progress.advance()
        return epoch

    def run_local() -> None:
        local.append(run("folder", str(photos.root)))

    def run_remote() -> None:
        shutil.rmtree(cache, ignore_errors=True)
        before_s = bucket.server_cpu_s()
        cold.append(run("shards", url))
        server_s_per_1000.append(1000 * (bucket.server_cpu_s() - before_s) / cold[-1].num_samples)
        warm.append(run("shards", url))

    with bar(console, f"{_NAMES[step]}: epochs", 3 * options.repeats) as progress:
        for number in range(options.repeats):
            for turn in (run_local, run_remote) if number % 2 == 0 else (run_remote, run_local):
                turn()
    shutil.rmtree(cache, ignore_errors=True)
    check_same_samples({"local": local, "cold": cold, "warm": warm})
    return {**figures_of(local, cold, warm), "server_cpu_s_per_1000": round(median(server_s_per_1000), 3)}


def figures_of(local: Sequence[Epoch], cold: Sequence[Epoch], warm: Sequence[Epoch]) -> dict[str, Any]:
    """Returns the figures of one step, with epochs of the same rounds: medians, and the extremes under ``spread``.

    A ratio is the median over the rounds of (remote ÷ local in the same round).
    """

    def of(epochs: Sequence[Epoch], name: str) -> list[float]:
        return [getattr(epoch, name) for epoch in epochs]

    def ratio(remote: Sequence[Epoch]) -> list[float]:
        return [one.samples_per_s / other.samples_per_s for one, other in zip(remote, local, strict=True)]

    figures = with_spread(
        {
            "local_img_s": of(local, "samples_per_s"),
            "cold_img_s": of(cold, "samples_per_s"),
            "warm_img_s": of(warm, "samples_per_s"),
            "cold_ratio": ratio(cold),
            "warm_ratio": ratio(warm),
            "build_s": of(cold, "build_s"),
            "first_batch_s": of(cold, "first_batch_s"),
            "first_batch_local_s": of(local, "first_batch_s"),
            "first_batch_warm_s": of(warm, "first_batch_s"),
            "waiting_share": of(cold, "waiting_share"),
            "waiting_share_local": of(local, "waiting_share"),
            "gets": of(cold, "num_gets"),
            "gets_warm": of(warm, "num_gets"),
            "bytes_ratio": [epoch.num_bytes / epoch.dataset_bytes for epoch in cold],
            "cpu_s_per_1000": of(cold, "cpu_s_per_1000"),
            "cpu_s_per_1000_local": of(local, "cpu_s_per_1000"),
            "cpu_s_per_1000_warm": of(warm, "cpu_s_per_1000"),
            "peak_rss_mb": of(cold, "peak_rss_mb"),
            "peak_rss_mb_local": of(local, "peak_rss_mb"),
            "rss_added_mb": of(cold, "rss_added_mb"),
            "rss_added_mb_warm": of(warm, "rss_added_mb"),
        }
    )
    return {**figures, "client": cold[0].client, "num_samples": cold[0].num_samples, "rounds": len(cold)}


def parse_options(arguments: Sequence[str] | None) -> Namespace:
    """Reads the command line."""
    parser = command_line("remote_vs_local", __doc__)
    add = parser.add_argument
    add("--step", choices=list(_STEPS), default="both", help="train, none (raw and decoded), or both")
    add("--repeats", type=int, default=5, help="rounds (default 5)")
    add("--latency", type=int, default=30, help="ms to the first byte; 0 for none (default 30)")
    add("--images", type=int, default=3200, help="photographs (default 3200)")
    add("--rss-dataset", default="1GB", help="repeat the photographs to this size for the raw step (default 1GB)")
    add("--data", type=Path, default=Path(".demo"), help="folder for all that is made (default .demo)")
    add("--seed", type=int, default=0, help="of photographs, order and weights (default 0)")
    add("--client", default="auto", help="for the shards: auto, native, aiobotocore, fsspec")
    no_resident = "do not put real memory behind the page cache before each epoch (virtual machines: noise)"
    add("--no-resident", dest="resident", action="store_false", help=no_resident)
    options = parser.parse_args(arguments)
    if options.quick:
        options.images, options.repeats, options.rss_dataset = 12, 1, "1MB"
    if options.images < 1 or options.repeats < 1 or options.latency < 0:
        parser.error("--images and --repeats are at least 1, --latency is at least 0")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    options = parse_options(arguments)
    name = "remote_vs_local.train" if options.step == "train" else "remote_vs_local.none"
    return publish(name, lambda console: run_benchmark(options, console), options.json)


if __name__ == "__main__":
    sys.exit(main())
