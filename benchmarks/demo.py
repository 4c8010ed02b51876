"""The main job, end to end, on real photographs: ``python -m benchmarks.demo``, or ``make demo``.

A local S3 server, photographs as an image folder, as raw objects and as unified shards, and one epoch of training from
each of them, the shards with a cold and with a warm cache; then a table and a report. What is there already is used
again.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.bucket import Bucket, open_bucket
from benchmarks.command import bar, ends_with_one_line
from benchmarks.filling import has_shards, ingest, ingest_command, photos_in, put_objects
from benchmarks.harness import Epoch, Request, run_epoch
from benchmarks.machine import Bystanders, cpu_name, num_cores, versions
from benchmarks.photos import CLASSES, PhotoFolder
from benchmarks.report import Row, headline, table, write_report

_BATCH_SIZE = 64
_COLD = "shards, cold cache"
_NOISE = 0.05  # share of the machine that others may take before figures are called noisy


def run_demo(options: Namespace, console: Console) -> Path:
    """Runs the whole demo."""
    console.print("[bold]concurrent-loader[/]: training from a bucket as fast as from a local drive\n")
    options.data.mkdir(parents=True, exist_ok=True)
    photos = _make_photos(options, console)
    with open_bucket(options.data / "s3", latency_ms=options.latency) as bucket:
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
        command = shlex.join(ingest_command(photos, f"{prefix}/shards", bucket.direct["endpoint_url"]))
        report: Path = options.data / "report.html"
        write_report(report, rows, facts=facts, commands=[options.command, command])
    console.print(f"Report: {report.resolve()}", soft_wrap=True)
    return report


def _make_photos(options: Namespace, console: Console) -> PhotoFolder:
    photos = photos_in(options.data, options.images, console, seed=options.seed)
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
    console.print(f"  $ {shlex.join(ingest_command(photos, shards, bucket.direct['endpoint_url']))}", soft_wrap=True)
    ingest(photos, shards, bucket.direct)


def _train(options: Namespace, photos: PhotoFolder, prefix: str, bucket: Bucket, console: Console) -> list[Row]:
    """Trains an epoch from each side and round, in processes of their own."""
    cache = options.data / "cache"
    sides = _sides(options, photos, prefix, bucket, cache)
    epochs: dict[str, list[Epoch]] = {name: [] for name, _, _ in sides}
    for number in range(options.rounds):
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
    """Returns the epoch of median speed (the slower one of two)."""
    return sorted(epochs, key=lambda epoch: epoch.samples_per_s)[(len(epochs) - 1) // 2]


def _sides(
    options: Namespace, photos: PhotoFolder, prefix: str, bucket: Bucket, cache: Path
) -> list[tuple[str, Request, str]]:
    """Returns name, request and note of each side, in order of appearance."""
    folder = Request(
        side="folder",
        step="train",
        location=str(photos.root),
        num_classes=len(CLASSES),
        batch_size=_BATCH_SIZE,
        seed=options.seed,
        resident_bytes=photos.num_bytes * 11 // 10,
    )
    num_objects = min(options.objects, photos.count)
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


def parse_options(arguments: Sequence[str]) -> Namespace:
    """Reads the command line."""
    parser = ArgumentParser(prog="python -m benchmarks.demo", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, default=Path(".demo"), help="folder for all that is made (default .demo)")
    add("--images", type=int, default=1600, help="photographs (default 1600)")
    add("--objects", type=int, default=320, help="raw objects to train on (default 320)")
    add("--latency", type=int, default=30, help="ms to the first byte; 0 for none (default 30)")
    add("--rounds", type=int, default=3, help="epochs from each side; the median is shown (default 3)")
    add("--seed", type=int, default=0, help="of photographs, order and weights (default 0)")
    add("--client", default="auto", help="for the shards: auto, native, aiobotocore, fsspec")
    options = parser.parse_args(arguments)
    if options.images < 1 or options.objects < 1 or options.rounds < 1 or options.latency < 0:
        parser.error("--images, --objects and --rounds are at least 1, --latency is at least 0")
    options.command = shlex.join(["python", "-m", "benchmarks.demo", *arguments])
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; returns the exit status."""
    options = parse_options(sys.argv[1:] if arguments is None else arguments)
    return ends_with_one_line(lambda: run_demo(options, Console()))


if __name__ == "__main__":
    sys.exit(main())
