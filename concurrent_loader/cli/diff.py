"""Implements `concurrent-loader diff URL FIRST SECOND`: compares two snapshots of a dataset."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from concurrent_loader.cli.info import Url
from concurrent_loader.cli.options import (
    Json,
    StoreFlags,
    open_for_command,
    parse_snapshot,
    takes_store,
)

if TYPE_CHECKING:
    from concurrent_loader.storage.lifecycle.diff import SnapshotDiff
    from concurrent_loader.storage.shards.manifest.snapshots import SnapshotName
    from concurrent_loader.storage.stores.store import Store

__all__ = ["diff"]


@takes_store
def diff(
    url: Url,
    first: Annotated[str, typer.Argument(metavar="FIRST", help="Number, tag or time of the snapshot to compare with.")],
    second: Annotated[
        str | None, typer.Argument(metavar="SECOND", help="Number, tag or time. Default: the newest snapshot.")
    ] = None,
    *,
    store_flags: StoreFlags,
    as_json: Json = False,
) -> None:
    """Show what changed between two snapshots: samples, shards, columns and metadata."""
    options = store_flags.options
    store = open_for_command(url, client=store_flags.client, options=options)
    found = asyncio.run(_diff(store, parse_snapshot(first), parse_snapshot(second)))
    if as_json:
        typer.echo(json.dumps({"url": store.url, **dataclasses.asdict(found)}))
    else:
        typer.echo("\n".join(_lines(found)))


async def _diff(store: Store, first: SnapshotName | None, second: SnapshotName | None) -> SnapshotDiff:
    from concurrent_loader.storage.fetch import FetchEngine
    from concurrent_loader.storage.lifecycle.diff import diff_snapshots
    from concurrent_loader.storage.shards.manifest.snapshots import load_manifest

    async with store:
        engine = FetchEngine(store)
        return diff_snapshots(await load_manifest(engine, first), await load_manifest(engine, second))


def _lines(found: SnapshotDiff) -> list[str]:
    from concurrent_loader.storage.printable import printable
    from concurrent_loader.storage.sizes import format_count, format_size

    (first, second), (before, after) = found.snapshots, found.num_samples
    added, removed = format_count(found.added_shards, "shard"), format_count(found.removed_shards, "shard")
    lines = [
        f"snapshot {first} to {second}: {before:,} to {after:,} samples{', by appending' if found.is_append else ''}",
        f"+ {format_count(found.added_samples, 'sample')} in {added}, {format_size(found.added_bytes)}",
        f"- {format_count(found.removed_samples, 'sample')} in {removed}, {format_size(found.removed_bytes)}",
        f"= {format_count(found.common_shards, 'shard')} in both"
        + (f", {format_count(found.deleted_samples, 'sample')} of them deleted" if found.deleted_samples > 0 else ""),
    ]
    lines += [f"+ column {name}: {kind}" for name, kind in found.added_columns.items()]
    lines += [f"- column {name}: {kind}" for name, kind in found.removed_columns.items()]
    lines += [f"~ column {name}: {old}, now {new}" for name, (old, new) in found.changed_columns.items()]
    lines += [f"~ metadata {name}" for name in found.changed_metadata]
    return [printable(line) for line in lines]
