"""Implements `concurrent-loader snapshots URL`: lists the snapshots of a dataset."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING

import typer

from concurrent_loader.cli.info import Url
from concurrent_loader.cli.options import (
    Json,
    StoreFlags,
    open_for_command,
    takes_store,
)

if TYPE_CHECKING:
    from datetime import datetime

    from concurrent_loader.storage.lifecycle.snapshots import SnapshotInfo
    from concurrent_loader.storage.stores.store import Store

__all__ = ["format_time", "snapshots"]


@takes_store
def snapshots(
    url: Url,
    *,
    store_flags: StoreFlags,
    as_json: Json = False,
) -> None:
    """List the snapshots of a dataset with times, sizes and tags."""
    options = store_flags.options
    store = open_for_command(url, client=store_flags.client, options=options)
    found = asyncio.run(_describe(store))
    if as_json:
        typer.echo(json.dumps({"url": store.url, "snapshots": [_facts(info) for info in found]}))
        return
    from concurrent_loader.storage.sizes import format_size

    typer.echo(f"{'snapshot':>8}  {'committed':<16}  {'samples':>12}  {'size':>10}  tags")
    for info in found:
        line = (
            f"{info.snapshot:>8}  {format_time(info.committed):<16}  {info.num_samples:>12,}  "
            f"{format_size(info.num_bytes):>10}  {', '.join(info.tags)}"
        )
        typer.echo(line.rstrip())


def format_time(time: datetime | None) -> str:
    """Returns a time in UTC, to the minute."""
    from datetime import UTC

    return "-" if time is None else time.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def _facts(info: SnapshotInfo) -> dict[str, object]:
    committed = info.committed and info.committed.isoformat()
    return {**dataclasses.asdict(info), "committed": committed}


async def _describe(store: Store) -> list[SnapshotInfo]:
    from concurrent_loader.storage.lifecycle.snapshots import describe_snapshots

    async with store:
        return await describe_snapshots(store)
