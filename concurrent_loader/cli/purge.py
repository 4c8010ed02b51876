"""Implements `concurrent-loader purge URL`: removes the bytes of deleted samples, and proves it."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from concurrent_loader.cli.options import (
    Json,
    StoreFlags,
    client_for,
    options_for,
    takes_store,
)
from concurrent_loader.cli.progress import progress_bar

if TYPE_CHECKING:
    from concurrent_loader.storage.shards.editing.purge import PurgeReport
    from concurrent_loader.storage.shards.editing.rewrite import RewriteProgress

__all__ = ["purge"]

_NOT_PROVED = 1


@takes_store
def purge(
    url: Annotated[str, typer.Argument(metavar="URL", help="URL of the dataset.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do it. Without this, only say what would be removed.")] = False,
    store_flags: StoreFlags,
    as_json: Json = False,
) -> None:
    """Remove the bytes of deleted samples from all snapshots, and prove it. This cannot be undone.

    Snapshots that stored such samples are removed. The exit status is 1 if bytes of a purged sample are left.
    """
    from concurrent_loader.storage.shards.editing.purge import purge as run_purge

    options = store_flags.options
    with progress_bar(in_bytes=True) as progress:
        task = progress.add_task("purging", total=None)

        def show(now: RewriteProgress) -> None:
            progress.update(task, completed=now.num_bytes, total=now.num_bytes_total)

        report = run_purge(
            url, dry_run=not yes, client=client_for(url, store_flags.client), storage_options=options_for(url, options),
            on_progress=show,
        )  # fmt: skip
    typer.echo(
        json.dumps({**dataclasses.asdict(report), "is_proved": report.is_proved})
        if as_json
        else "\n".join(_lines(report))
    )
    if not report.dry_run and not report.is_proved:
        raise typer.Exit(_NOT_PROVED)


def _lines(report: PurgeReport) -> list[str]:
    from concurrent_loader.storage.printable import printable
    from concurrent_loader.storage.sizes import format_count

    if not report.num_rows:
        return [f"{report.url} snapshot {report.snapshot}: no snapshot stores a deleted sample"]
    rows, shards = format_count(report.num_rows, "sample"), format_count(report.num_rewritten, "shard")
    snapshots = ", ".join(map(str, report.removed_snapshots)) or "none"
    if report.dry_run:
        return [
            f"{report.url}: would remove the bytes of {rows}",
            f"writes again  {shards} of snapshot {report.snapshot}",
            f"removes       {format_count(report.num_removed, 'object')}; snapshots {snapshots}",
            "pass --yes to do it",
        ]
    values = format_count(report.num_values_scanned, "value")
    lines = [
        f"{report.url} snapshot {report.snapshot}: the bytes of {rows} were removed",
        f"wrote again  {shards}",
        f"removed      {format_count(report.num_removed, 'object')}; snapshots {snapshots}",
        f"scanned      {values} in {format_count(report.num_shards_scanned, 'shard')}",
    ]
    for copy in report.copies:
        sample = "a deleted sample" if copy.sample is None else f"sample {copy.sample}"
        lines.append(f"copy         snapshot {copy.snapshot}, {sample}, column {copy.column}, {copy.shard}")
    lines += [f"not removed  {key}" for key in report.left]
    lines += [f"not scanned  {key}" for key in report.unreadable]
    if report.num_unreferenced:
        count = format_count(report.num_unreferenced, "bundle or tail", "bundles and tails")
        lines.append(f"unknown      {count} of no snapshot were not scanned; delete them with garbage collection")
    lines.append(
        "proved: no value of a removed sample is left"
        if report.is_proved
        else "NOT proved: see the lines above; delete samples that are copies, and purge again"
    )
    return [printable(line) for line in lines]
