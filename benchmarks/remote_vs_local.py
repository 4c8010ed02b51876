"""The bucket against the local drive, held to its targets.

    python -m benchmarks.remote_vs_local [--json FILE] [--quick]

Photographs as an image folder through torch's DataLoader against the same photographs as shards in a bucket behind
latency through ConcurrentDataLoader, with an empty cache (cold) and with the one that this left (warm): training on
them, only decoding and augmenting them, and only taking their bytes. Every epoch runs in a fresh process; the sides
alternate, and a ratio compares epochs of the same round, so that a machine that changes its pace changes it little.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.bucket import Bucket, open_bucket
from benchmarks.console import bar, ends_with_one_line
from benchmarks.figures import RAW_TARGETS, TRAINING_TARGETS, Target, check_same_samples, section, spread
from benchmarks.filling import has_shards, ingest
from benchmarks.harness import run_epoch
from benchmarks.machine import Bystanders, describe_machine, versions
from benchmarks.measurement import Epoch, Request, Side, Step
from benchmarks.photos import CLASSES, PhotoFolder, make_photos, replicate_photos
from concurrent_loader.storage.sizes import parse_size

# Step → its name in the JSON, and what it is held to.
_NAMES: dict[Step, str] = {"train": "training", "raw": "raw", "decoded": "decoded"}
_TARGETS: dict[Step, Sequence[Target]] = {"train": TRAINING_TARGETS, "raw": RAW_TARGETS, "decoded": ()}
_BATCH_SIZE: dict[Step, int] = {"train": 64, "decoded": 64, "raw": 256}
# Files in the page cache are read faster than a worker process can hand them over: 40,000 a second without, 8,000 with.
_NUM_WORKERS: dict[Step, int] = {"train": 2, "decoded": 2, "raw": 0}


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    data: Path  # folder for everything that is made; the demo's will do
    json: Path | None  # file for the figures, or None
    steps: tuple[Step, ...]  # what to do with the images
    num_rounds: int  # epochs of each side and step
    latency_ms: int  # to the first byte; 0 for none
    num_images: int  # photographs
    raw_bytes: int  # size that they are repeated to for the raw step
    seed: int  # of everything
    client: str  # for the shards, as for `concurrent_loader.storage.open_store`
    resident: bool = True


def run_benchmark(options: Options, console: Console) -> dict[str, object]:
    """Runs all rounds of all steps."""
    options.data.mkdir(parents=True, exist_ok=True)
    figures: dict[str, object] = {
        "machine": describe_machine(),
        "versions": versions(),
        "memory_made_resident": options.resident,
    }
    with bar(console, "Photographs", options.num_images) as progress:
        photos = make_photos(options.data, count=options.num_images, seed=options.seed, on_photo=progress.advance)
    with open_bucket(options.data / "s3", latency_ms=options.latency_ms) as bucket:
        figures |= {
            "server": bucket.server,
            "latency_ms": bucket.latency_ms if bucket.latency_applied else 0.0,
            "first_byte_ms": bucket.latency_ms,
            "latency": bucket.latency,
        }
        console.print(f"{bucket.server}; {bucket.latency}")
        for step in options.steps:
            images = photos
            if step == "raw":
                images = replicate_photos(photos, min_bytes=options.raw_bytes)
            url = _shards(images, bucket)
            others = Bystanders()
            rounds = _run_rounds(step, images, url, bucket, options, console)
            made = {**rounds.figures(), "other_programs_share": round(others.share(), 3)}
            figures[_NAMES[step]] = made
            _show(_NAMES[step], made, _TARGETS[step], console)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        console.print(f"Figures: {options.json.resolve()}")
    return figures


def _shards(photos: PhotoFolder, bucket: Bucket) -> str:
    """URL of the photographs' shards, ingested unless they are there."""
    url = f"s3://{bucket.name}/{photos.root.parent.name}/shards"
    if not has_shards(photos, url, bucket.direct):
        ingest(photos, url, bucket.direct)
    return url


@dataclass(frozen=True, slots=True)
class _Rounds:
    """Epochs of one step, by round."""

    local: list[Epoch]
    cold: list[Epoch]
    warm: list[Epoch]
    server_cpu_s: list[float]

    def figures(self) -> dict[str, object]:
        check_same_samples({"local": self.local, "cold": self.cold, "warm": self.warm})
        per_1000 = [1000 * cpu_s / epoch.num_samples for cpu_s, epoch in zip(self.server_cpu_s, self.cold, strict=True)]
        return {
            **section(self.local, self.cold, self.warm),
            "server_cpu_s_per_1000": round(spread(per_1000).median, 3),
        }


def _run_rounds(
    step: Step, photos: PhotoFolder, url: str, bucket: Bucket, options: Options, console: Console
) -> _Rounds:
    rounds = _Rounds([], [], [], [])
    cache = options.data / "benchmark-cache"

    def request(side: Side, location: str) -> Request:
        return Request(
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

    def run_local() -> None:
        rounds.local.append(run_epoch(request("folder", str(photos.root))))
        progress.advance()

    def run_remote() -> None:
        shutil.rmtree(cache, ignore_errors=True)
        before_s = bucket.server_cpu_s()
        rounds.cold.append(run_epoch(request("shards", url)))
        rounds.server_cpu_s.append(bucket.server_cpu_s() - before_s)
        progress.advance()
        rounds.warm.append(run_epoch(request("shards", url)))
        progress.advance()

    with bar(console, f"{_NAMES[step]}: epochs", 3 * options.num_rounds) as progress:
        for number in range(options.num_rounds):
            for run in (run_local, run_remote) if number % 2 == 0 else (run_remote, run_local):
                run()
    shutil.rmtree(cache, ignore_errors=True)
    return rounds


def _show(name: str, figures: dict[str, object], targets: Sequence[Target], console: Console) -> None:
    shown = Table(title=f"{name}: {figures['num_samples']:,} images, {figures['rounds']} rounds", box=box.SIMPLE_HEAD)
    for title, justify in (("", "left"), ("median", "right"), ("spread", "right"), ("target", "left")):
        shown.add_column(title, justify=justify)  # type: ignore[arg-type]
    held = {target.key: target for target in targets}
    spreads = figures["spread"]
    assert isinstance(spreads, dict)
    for key, (low, high) in spreads.items():
        value = figures[key]
        assert isinstance(value, float)
        target = held.get(key)
        verdict = "" if target is None else f"{target} {'met' if target.met(value) else 'MISSED'}"
        shown.add_row(key, f"{value:,g}", f"{low:,g} … {high:,g}", verdict)
    console.print(shown)
    console.print(
        f"{figures['client']}; server and proxy took {figures['server_cpu_s_per_1000']} CPU s a thousand images; "
        f"other programs had {figures['other_programs_share']:.1%} of the machine"
    )


def parse_options(arguments: Sequence[str]) -> Options:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote_vs_local", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument(
        "--step", choices=["train", "none", "both"], default="both", help="train, none (raw and decoded), or both"
    )
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--latency", type=int, default=30, help="ms to the first byte; 0 for none (default 30)")
    parser.add_argument("--images", type=int, default=3200, help="photographs (default 3200)")
    parser.add_argument(
        "--rss-dataset", default="1GB", help="repeat the photographs to this size for the raw step (default 1GB)"
    )
    parser.add_argument("--data", type=Path, default=Path(".demo"), help="folder for all that is made (default .demo)")
    parser.add_argument("--seed", type=int, default=0, help="of photographs, order and weights (default 0)")
    parser.add_argument("--client", default="auto", help="for the shards: auto, native, aiobotocore, fsspec")
    parser.add_argument(
        "--no-resident",
        dest="resident",
        action="store_false",
        help="do not put real memory behind the page cache before each epoch (virtual machines: noise)",
    )
    parser.add_argument("--quick", action="store_true", help="a few images, to see that it works")
    parsed = parser.parse_args(arguments)
    if parsed.quick:
        parsed.images, parsed.repeats, parsed.rss_dataset = 12, 1, "1MB"
    if parsed.images < 1 or parsed.repeats < 1 or parsed.latency < 0:
        parser.error("--images and --repeats are at least 1, --latency is at least 0")
    steps: dict[str, tuple[Step, ...]] = {
        "train": ("train",),
        "none": ("raw", "decoded"),
        "both": ("train", "raw", "decoded"),
    }
    return Options(
        data=parsed.data,
        json=parsed.json,
        steps=steps[parsed.step],
        num_rounds=parsed.repeats,
        latency_ms=parsed.latency,
        num_images=parsed.images,
        raw_bytes=parse_size(parsed.rss_dataset, name="--rss-dataset"),
        seed=parsed.seed,
        client=parsed.client,
        resident=parsed.resident,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    options = parse_options(sys.argv[1:] if arguments is None else arguments)
    return ends_with_one_line(lambda: run_benchmark(options, Console()))


if __name__ == "__main__":
    sys.exit(main())
