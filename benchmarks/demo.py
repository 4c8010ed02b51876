"""The main job, end to end, on real photographs: ``python -m benchmarks.demo``, or ``make demo``.

A local S3 server, photographs as an image folder, as raw objects and as shards, and one epoch of training from each of
them, the shards with a cold and with a warm cache; then a table, and a page with it. Photographs that are there already
are used again.
"""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from msgspec import structs
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.bucket import open_bucket, photos_in, write_shards
from benchmarks.command import bar, ends_with_one_line
from benchmarks.machine import Bystanders, cpu_name, num_cores, versions
from benchmarks.peers.bucket import led_to, put_objects
from benchmarks.peers.figures import image_digest
from benchmarks.peers.job import Job, Outcome, paths
from benchmarks.peers.turns import Rounds, Side, checked_outcome, ratios_of, take_turns
from benchmarks.photos import CLASSES
from benchmarks.remote_vs_local import TRAIN, pace, sides_of, waiting_share

_NOISE = 0.05  # share of the machine that others may take before figures are called noisy
_COLUMNS = ("", "img/s", "1st batch", "waits", "GETs", "MB", "loss", "acc.")  # fit a terminal of 80 columns
_NOTES = {
    "image folder": "torch DataLoader, 2 worker processes, files in the page cache",
    "raw objects": "torch DataLoader, 2 worker processes, boto3, one blocking GET an image; the first {} of them",
    "shards, cold cache": "ConcurrentDataLoader as it comes, empty cache folder",
    "shards, warm cache": "the same cache folder, opened by a new process",
}


def run_demo(options: Namespace, console: Console) -> None:
    """Runs the whole demo."""
    console.print("[bold]concurrent-loader[/]: training from a bucket as fast as from a local drive\n")
    options.data.mkdir(parents=True, exist_ok=True)
    photos = photos_in(options.data, options.images, console)
    mean_kb = photos.mean_bytes / 1e3
    console.print(f"[bold]Photographs[/]  {photos.count:,} JPEGs of {mean_kb:.0f} KB, {len(CLASSES)} classes")
    with open_bucket(options.data / "s3", latency_ms=options.latency) as bucket:
        prefix, found = photos.root.parent.name, paths(str(photos.root))
        console.print(f"[bold]Bucket[/]       {bucket.server}, at {bucket.direct['endpoint_url']}")
        put_objects(f"s3://{bucket.name}/{prefix}/objects", bucket.direct, found)
        shards = f"s3://{bucket.name}/{prefix}/shards"
        write_shards(photos, shards, bucket.direct)
        command = ["concurrent-loader", "ingest", "image-folder", str(photos.root), shards]
        ingest = shlex.join([*command, "--endpoint-url", bucket.direct["endpoint_url"]])
        console.print(f"[bold]Shards[/]       as this makes them: {ingest}", soft_wrap=True)
        console.print(f"[bold]Latency[/]      {bucket.latency}\n", soft_wrap=True)
        folder, ours = sides_of(TRAIN, photos, f"{prefix}/shards", bucket)
        by_object = structs.replace(
            folder.job, prefix=f"{prefix}/objects", options={"client": "boto3"}, resident_bytes=0,
            num_batches=-(-min(options.objects, photos.count) // TRAIN.batch_size),
        )  # fmt: skip
        objects = Side("objects", sys.executable, led_to(by_object, bucket.remote, bucket=bucket.name), False)
        others, sides = Bystanders(), [folder, objects, ours]
        digests = [image_digest(path.read_bytes(), number) for number, path in enumerate(found)]
        with bar(console, "Epochs", 4 * options.rounds) as progress:

            def run(side: Side, job: Job, epoch: str, number: int) -> Outcome:
                outcome = checked_outcome(side, job, digests)
                progress.advance()
                return outcome

            take_turns(sides, options.rounds, options.data / "cache", run)
    epochs, share = [side.outcomes[epoch] for side in sides for epoch in side.epochs], others.share()
    rows: list[dict[str, Any]] = [
        {"cells": _cells(name, rounds), "note": note.format(len(rounds[0].numbers)), "pace": _pace(rounds)}
        for (name, note), rounds in zip(_NOTES.items(), epochs, strict=True)
    ]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for title in _COLUMNS:
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row["cells"])
    console.print(table)
    for row in rows:
        console.print(f"[dim]{row['cells'][0]}: {row['note']}[/]")
    if share > _NOISE:
        console.print(f"[yellow]Other programs took {share:.0%} of the machine: figures are noisy.[/]")
    local, _, cold, warm = epochs
    console.print(f"\n[bold]{headline(local, cold, warm)}[/]")
    facts = {
        "Machine": f"{cpu_name()}, {num_cores()} cores",
        "Other programs": f"took {share:.0%} of the machine while it was measured",
        "Server": bucket.server,
        "Latency": bucket.latency,
        "Photographs": f"{photos.count:,} JPEGs, {photos.num_bytes / 1e6:,.0f} MB, {len(CLASSES)} classes",
        "Training": f"batches of {TRAIN.batch_size}; the same network, weights, decoder and augmentation on all sides",
        "Versions": ", ".join(f"{name} {number}" for name, number in versions().items()),
    }
    report = options.data / "report.html"
    write_page(report, rows, headline=headline(local, cold, warm), facts=facts, commands=[options.command, ingest])
    console.print(f"Report: {report.resolve()}", soft_wrap=True)


def headline(local: Rounds, cold: Rounds, warm: Rounds) -> str:
    """Returns the result in one sentence, with the spread of the ratios within a round."""
    return (
        f"From the bucket the network trains at {_spread(cold, local)} of the local drive's speed with a cold cache "
        f"and at {_spread(warm, local)} with a warm one (rounds: {len(local)})."
    )


def _spread(remote: Rounds, local: Rounds) -> str:
    ratios = [round(100 * ratio) for ratio in ratios_of(remote, local, pace)]
    low, high = min(ratios), max(ratios)
    return f"{low} %" if low == high else f"{low}–{high} %"


def _pace(rounds: Rounds) -> float:
    return median(map(pace, rounds.values()))


def _cells(name: str, rounds: Rounds) -> list[str]:
    """Returns a side's cells of the table: medians over the rounds; requests and lesson of the last one."""
    outcomes, last = list(rounds.values()), rounds[max(rounds)]
    counted = (f"{last.fetched.gets:,}", f"{last.fetched.num_bytes / 1e6:,.1f}") if last.fetched else ("–", "–")
    assert last.lesson is not None
    return [
        name, f"{_pace(rounds):,.0f}", f"{median(each.first_batch_s - each.build_s for each in outcomes):.2f} s",
        f"{median(map(waiting_share, outcomes)):.1%}", *counted,
        f"{last.lesson.first_loss:.2f} → {last.lesson.last_loss:.2f}", f"{last.lesson.accuracy:.1%}",
    ]  # fmt: skip


def write_page(
    file: Path, rows: Sequence[Mapping[str, Any]], *, headline: str, facts: Mapping[str, str], commands: Sequence[str]
) -> None:
    """Writes the HTML page, which refers to nothing outside itself."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, autoescape=True
    )
    page = environment.get_template("demo.html.jinja").render(
        rows=rows, headline=headline, facts=facts, commands=commands, columns=_COLUMNS,
        top=max(row["pace"] for row in rows),
    )  # fmt: skip
    file.write_text(page, encoding="utf-8")


def parse_options(arguments: Sequence[str] | None) -> Namespace:
    """Reads the command line."""
    parser = ArgumentParser(prog="python -m benchmarks.demo", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, default=Path(".demo"), help="folder for all that is made (default .demo)")
    add("--images", type=int, default=1600, help="photographs (default 1600)")
    add("--objects", type=int, default=320, help="raw objects to train on (default 320)")
    add("--latency", type=int, default=30, help="ms to the first byte; 0 for none (default 30)")
    add("--rounds", type=int, default=3, help="epochs from each side; the median is shown (default 3)")
    options = parser.parse_args(arguments)
    if min(options.images, options.objects, options.rounds) < 1 or options.latency < 0:
        parser.error("--images, --objects and --rounds are at least 1, --latency is at least 0")
    options.command = shlex.join(
        ["python", "-m", "benchmarks.demo", *(sys.argv[1:] if arguments is None else arguments)]
    )
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; returns the exit status."""
    options = parse_options(arguments)
    return ends_with_one_line(lambda: run_demo(options, Console()))


if __name__ == "__main__":
    raise SystemExit(main())
