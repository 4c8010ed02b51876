"""Implements `concurrent-loader compact URL`: writes shards again that are mostly deleted."""

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
    from concurrent_loader.storage.shards.editing.rewrite import RewriteProgress

__all__ = ["compact"]


@takes_store
def compact(
    url: Annotated[str, typer.Argument(metavar="URL", help="URL of the dataset.")],
    *,
    below: Annotated[
        float, typer.Option(min=0, max=1, help="Share of live samples below which a shard is written again.")
    ] = 0.5,
    shard_size: Annotated[str, typer.Option(help="Upper bound of a new shard.")] = "8MiB",
    store_flags: StoreFlags,
    as_json: Json = False,
) -> None:
    """Write shards that are mostly deleted again, in a new snapshot.

    Samples and their numbers stay; the shuffled order of an epoch changes. Earlier snapshots and their shards stay.
    """
    from concurrent_loader.storage.shards.editing.compact import compact as run_compact
    from concurrent_loader.storage.sizes import format_count, format_size

    options = store_flags.options
    with progress_bar(in_bytes=True) as progress:
        task = progress.add_task("compacting", total=None)

        def show(now: RewriteProgress) -> None:
            progress.update(task, completed=now.num_bytes, total=now.num_bytes_total)

        report = run_compact(
            url, below=below, shard_size=shard_size, client=client_for(url, store_flags.client),
            storage_options=options_for(url, options), on_progress=show,
        )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(report)))
        return
    if not report.num_rewritten:
        typer.echo(f"{report.url} snapshot {report.snapshot}: no shard has a live share below {below:g}")
        return
    typer.echo(
        f"{report.url} snapshot {report.snapshot}: {format_count(report.num_rewritten, 'shard')} written again without "
        f"{format_count(report.num_removed, 'deleted sample')}, {format_size(report.num_bytes_saved)} smaller; "
        f"{format_count(report.num_samples, 'sample')}"
    )
