"""Implements `concurrent-loader tag URL NAME`: names a snapshot, or deletes a name."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from concurrent_loader.cli.info import Url
from concurrent_loader.cli.options import (
    Snapshot,
    StoreFlags,
    open_for_command,
    parse_snapshot,
    takes_store,
)

if TYPE_CHECKING:
    from concurrent_loader.storage.shards.manifest.snapshots import SnapshotName
    from concurrent_loader.storage.stores.store import Store

__all__ = ["tag"]


@takes_store
def tag(
    url: Url,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, '.', '_' and '-'; not a number.")],
    *,
    snapshot: Snapshot = None,
    move: Annotated[bool, typer.Option("--move", help="Move a tag that names another snapshot.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the tag; its snapshot stays.")] = False,
    store_flags: StoreFlags,
) -> None:
    """Name a snapshot. Garbage collection keeps snapshots that have a tag."""
    if delete and (snapshot is not None or move):
        raise typer.BadParameter("--delete goes with neither --snapshot nor --move", param_hint="--delete")
    options = store_flags.options
    store = open_for_command(url, client=store_flags.client, options=options)
    number = asyncio.run(_tag(store, name, parse_snapshot(snapshot), move=move, delete=delete))
    typer.echo(f"tag {name} deleted" if number is None else f"tag {name}: snapshot {number}")


async def _tag(store: Store, name: str, snapshot: SnapshotName | None, *, move: bool, delete: bool) -> int | None:
    from concurrent_loader.storage.lifecycle.snapshots import delete_tag, tag_snapshot

    async with store:
        if delete:
            await delete_tag(store, name)
            return None
        return await tag_snapshot(store, name, snapshot, move=move)
