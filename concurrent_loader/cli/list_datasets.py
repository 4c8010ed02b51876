"""Implements `concurrent-loader list URL`: lists the datasets below a bucket, prefix or folder."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from concurrent_loader.cli.options import (
    Json,
    StoreFlags,
    open_for_command,
    takes_store,
)
from concurrent_loader.cli.snapshots import format_time

if TYPE_CHECKING:
    from concurrent_loader.storage.lifecycle.catalog import DatasetInfo
    from concurrent_loader.storage.stores.store import Store

__all__ = ["list_command"]


@takes_store
def list_command(
    url: Annotated[str, typer.Argument(metavar="URL", help="URL of a bucket, prefix or folder.")],
    *,
    store_flags: StoreFlags,
    as_json: Json = False,
) -> None:
    """List the datasets below a URL with their samples, sizes, snapshots and columns."""
    options = store_flags.options
    store = open_for_command(url, client=store_flags.client, options=options)
    found = asyncio.run(_list(store))
    if as_json:
        typer.echo(json.dumps({"url": store.url, "datasets": [_facts(info) for info in found]}))
    elif not found:
        typer.echo(f"no dataset below {store.url}")
    else:
        typer.echo("\n".join(line for info in found for line in _lines(store.url, info)))


async def _list(store: Store) -> list[DatasetInfo]:
    from concurrent_loader.storage.lifecycle.catalog import list_datasets

    async with store:
        return await list_datasets(store)


def _facts(info: DatasetInfo) -> dict[str, object]:
    return {**dataclasses.asdict(info), "modified": info.modified and info.modified.isoformat()}


def _lines(url: str, info: DatasetInfo) -> list[str]:
    from concurrent_loader.storage.printable import printable
    from concurrent_loader.storage.sizes import format_count, format_size

    stored = f"{format_count(len(info.snapshots), 'snapshot')}, {format_size(info.stored_bytes)} stored"
    if info.num_samples is None or info.num_bytes is None:
        about = f"cannot be read: {info.problem}"
    else:
        columns = ", ".join(f"{name}: {kind}" for name, kind in info.columns.items())
        about = f"{format_count(info.num_samples, 'sample')}, {format_size(info.num_bytes)}; {columns}"
    lines = [f"{url}/{info.path}".rstrip("/"), f"  {about}", f"  {stored}, newest {format_time(info.modified)}"]
    return [printable(line) for line in lines]
