"""The main job, end to end, on real photographs: ``python -m benchmarks.demo``, or ``make demo``.

A local S3 server, photographs as an image folder, as raw objects and as unified shards, and one epoch of training from
each of them, the shards with a cold and with a warm cache; then a table and a report. What is there already is used
again.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.bucket import Bucket, open_bucket
from benchmarks.console import bar, ends_with_one_line
from benchmarks.filling import has_shards, ingest, ingest_command, put_objects, shown
from benchmarks.harness import run_epoch
from benchmarks.machine import Bystanders, cpu_name, num_cores, versions
from benchmarks.measurement import Epoch, Request
from benchmarks.photos import CLASSES, PhotoFolder, make_photos
from benchmarks.report import Row, headline, table, write_report

_BATCH_SIZE = 64
_COLD = "shards, cold cache"
_NOISE = 0.05  # share of the machine that others may take before figures are called noisy


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    data: Path  # folder for everything that the demo makes
    num_images: int  # photographs
    num_objects: int  # how many of the raw objects to train on
    latency_ms: int  # to the first byte; 0 for none
    num_rounds: int  # epochs from each side but the raw objects; the one of median speed is shown
    seed: int  # of photographs, order and weights
    client: str  # for the shards, as for `concurrent_loader.storage.open_store`
    command: str  # as it was typed


def run_demo(options: Options, console: Console) -> Path:
    """Runs the whole demo."""
    console.print("[bold]concurrent-loader[/]: training from a bucket as fast as from a local drive\n")
    options.data.mkdir(parents=True, exist_ok=True)
    photos = _make_photos(options, console)
    with open_bucket(options.data / "s3", latency_ms=options.latency_ms) as bucket:
        console.print(f"[bold]Bucket[/]       {bucket.server}, at {bucket.direct['endpoint_url']}")
        prefix = f"s3://{bucket.name}/{photos.root.parent.name}"
        _fill(photos, prefix, bucket, console)
        console.print(f"[bold]Latency[/]      {bucket.latency}\n", soft_wrap=True)
        others = Bystanders()
        rows = _train(options, photos, prefix, bucket, console)
        others_share = others.share()
        facts = _facts(photos, bucket, others_share)
        console.print(table(rows))
        for row in rows:
            if row.note:
                console.print(f"[dim]{row.name}: {row.note}[/]")
        if others_share > _NOISE:
            console.print(
                f"[yellow]Other programs took {others_share:.0%} of the machine meanwhile: figures are noisy.[/]"
            )
        console.print(f"\n[bold]{headline(rows)}[/]")
        command = shown(ingest_command(photos, f"{prefix}/shards", bucket.direct["endpoint_url"]))
        report = options.data / "report.html"
        write_report(report, rows, facts=facts, commands=[options.command, command])
    console.print(f"Report: {report.resolve()}", soft_wrap=True)
    return report


def _make_photos(options: Options, console: Console) -> PhotoFolder:
    with bar(console, "Photographs", options.num_images) as progress:
        photos = make_photos(options.data, count=options.num_images, seed=options.seed, on_photo=progress.advance)
    console.print(
        f"[bold]Photographs[/]  {photos.count:,} JPEGs of {photos.mean_bytes / 1e3:.0f} KB on average, "
        f"{len(CLASSES)} classes, in {photos.root}"
    )
    return photos


def _fill(photos: PhotoFolder, prefix: str, bucket: Bucket, console: Console) -> None:
    with bar(console, "Raw objects", photos.count) as progress:
        num_put = put_objects(photos, f"{prefix}/objects", bucket.direct, on_object=progress.advance)
    reused = "" if num_put else " (from an earlier run)"
    console.print(f"[bold]Raw objects[/]  {photos.count:,} in {prefix}/objects{reused}")
    shards = f"{prefix}/shards"
    if has_shards(photos, shards, bucket.direct):
        console.print(f"[bold]Shards[/]       in {shards} (from an earlier run)")
        return
    console.print(
        "[bold]Shards[/]       by the command that you would type (straight to the server, without the latency):"
    )
    console.print(f"  $ {shown(ingest_command(photos, shards, bucket.direct['endpoint_url']))}", soft_wrap=True)
    ingest(photos, shards, bucket.direct)


def _train(options: Options, photos: PhotoFolder, prefix: str, bucket: Bucket, console: Console) -> list[Row]:
    """One epoch from each side, in processes of their own."""
    cache = options.data / "cache"
    sides = _sides(options, photos, prefix, bucket, cache)
    epochs: dict[str, list[Epoch]] = {name: [] for name, _, _ in sides}
    for number in range(options.num_rounds):
        # Alternating, so that what the machine does meanwhile hits all sides alike; raw objects take too long for more.
        turn = sides if number == 0 else [sides[0], *sides[2:]] if number % 2 == 0 else [*sides[2:], sides[0]]
        for name, request, _ in turn:
            if name == _COLD:
                shutil.rmtree(cache, ignore_errors=True)
            with bar(console, f"{name}, round {number + 1}", request.limit or photos.count) as progress:
                epochs[name].append(run_epoch(request, on_progress=progress.reach))
    return [
        Row(name, _median(epochs[name]), note, tuple(epoch.samples_per_s for epoch in epochs[name]))
        for name, _, note in sides
    ]


def _median(epochs: Sequence[Epoch]) -> Epoch:
    """The epoch of median speed (the slower one of two)."""
    return sorted(epochs, key=lambda epoch: epoch.samples_per_s)[(len(epochs) - 1) // 2]


def _sides(
    options: Options, photos: PhotoFolder, prefix: str, bucket: Bucket, cache: Path
) -> list[tuple[str, Request, str]]:
    """Name, request and note of each side, in order of appearance."""
    folder = Request(
        side="folder",
        step="train",
        location=str(photos.root),
        num_classes=len(CLASSES),
        batch_size=_BATCH_SIZE,
        seed=options.seed,
        resident_bytes=photos.num_bytes * 11 // 10,
    )
    num_objects = min(options.num_objects, photos.count)
    of_all = f"{num_objects:,} of the {photos.count:,} objects, chosen at random, to save time; "
    objects = msgspec.structs.replace(
        folder,
        side="objects",
        location=f"{prefix}/objects",
        storage_options=dict(bucket.remote),
        limit=num_objects,
        resident_bytes=0,  # it writes no files
    )
    shards = msgspec.structs.replace(
        folder,
        side="shards",
        location=f"{prefix}/shards",
        storage_options=dict(bucket.remote),
        client=options.client,
        cache_dir=str(cache),
    )
    return [
        ("image folder", folder, "torch DataLoader, 2 worker processes, files in the page cache"),
        (
            "raw objects",
            objects,
            (
                f"{of_all if num_objects < photos.count else ''}torch DataLoader, 2 worker processes, botocore, one "
                "blocking GET an image"
            ),
        ),
        (_COLD, shards, "ConcurrentDataLoader as it comes, empty cache folder"),
        ("shards, warm cache", shards, "the same cache folder, opened by a new process"),
    ]


def _facts(photos: PhotoFolder, bucket: Bucket, others_share: float) -> dict[str, str]:
    return {
        "Machine": f"{cpu_name()}, {num_cores()} cores",
        "Other programs": f"took {others_share:.0%} of the machine while it was measured",
        "Server": bucket.server,
        "Latency": bucket.latency,
        "Photographs": f"{photos.count:,} JPEGs, {photos.num_bytes / 1e6:,.0f} MB, {len(CLASSES)} classes",
        "Training": f"batches of {_BATCH_SIZE}; the same network, weights, decoder, augmentation and "
        "OMP_WAIT_POLICY=PASSIVE (the best for all) on all sides",
        "Versions": ", ".join(f"{name} {number}" for name, number in versions().items()),
    }


def parse_options(arguments: Sequence[str]) -> Options:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(".demo"), help="folder for all that is made (default .demo)")
    parser.add_argument("--images", type=int, default=3200, help="photographs (default 3200)")
    parser.add_argument("--objects", type=int, default=640, help="raw objects to train on (default 640)")
    parser.add_argument("--latency", type=int, default=30, help="ms to the first byte; 0 for none (default 30)")
    parser.add_argument("--rounds", type=int, default=3, help="epochs from each side; the median is shown (default 3)")
    parser.add_argument("--seed", type=int, default=0, help="of photographs, order and weights (default 0)")
    parser.add_argument("--client", default="auto", help="for the shards: auto, native, aiobotocore, fsspec")
    parsed = parser.parse_args(arguments)
    if parsed.images < 1 or parsed.objects < 1 or parsed.rounds < 1 or parsed.latency < 0:
        parser.error("--images, --objects and --rounds are at least 1, --latency is at least 0")
    return Options(
        data=parsed.data,
        num_images=parsed.images,
        num_objects=parsed.objects,
        latency_ms=parsed.latency,
        num_rounds=parsed.rounds,
        seed=parsed.seed,
        client=parsed.client,
        command=shlex.join(["python", "-m", "benchmarks.demo", *arguments]),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; returns the exit status."""
    options = parse_options(sys.argv[1:] if arguments is None else arguments)
    return ends_with_one_line(lambda: run_demo(options, Console()))


if __name__ == "__main__":
    sys.exit(main())
