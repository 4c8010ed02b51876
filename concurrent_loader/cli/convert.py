"""Implements `concurrent-loader convert INDEX DST`: copies an adopted dataset into the project's own format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from concurrent_loader.cli.options import (
    Json,
    Snapshot,
    StoreFlags,
    client_for,
    parse_snapshot,
    takes_store,
)
from concurrent_loader.cli.progress import progress_bar

if TYPE_CHECKING:
    from concurrent_loader.storage.adopt import ConvertProgress

__all__ = ["convert"]


@takes_store
def convert(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="URL of the adopted dataset.")],
    dst: Annotated[str, typer.Argument(metavar="DST", help="URL of the dataset to make.")],
    *,
    snapshot: Snapshot = None,
    store_flags: StoreFlags,
    as_json: Json = False,
) -> None:
    """Copy an adopted dataset into shards of the project's own format.

    Sample numbers and order stay, so a training run may continue with DST. An interrupted run continues.
    """
    from concurrent_loader.storage.adopt import convert as run_convert
    from concurrent_loader.storage.sizes import format_count, format_size

    client_for(dst, store_flags.client)
    options = store_flags.options
    with progress_bar(in_bytes=True) as progress:
        task = progress.add_task("converting", total=None)

        def show(now: ConvertProgress) -> None:
            progress.update(task, completed=now.num_bytes, total=now.num_bytes_total)

        manifest = run_convert(
            index,
            dst,
            snapshot=parse_snapshot(snapshot),
            client=store_flags.client,
            storage_options=options,
            on_progress=show,
        )
    if as_json:
        facts = {"num_samples": manifest.num_samples, "num_bytes": manifest.num_bytes, "digest": manifest.digest}
        typer.echo(json.dumps({"snapshot": manifest.snapshot, "num_shards": len(manifest.shards), **facts}))
        return
    typer.echo(
        f"{dst} snapshot {manifest.snapshot}: {format_count(manifest.num_samples, 'sample')} in "
        f"{format_count(len(manifest.shards), 'shard')}, {format_size(manifest.num_bytes)}"
    )
