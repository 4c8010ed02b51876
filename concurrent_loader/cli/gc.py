"""Implements `concurrent-loader gc URL`: deletes old snapshots, and objects that no snapshot needs."""

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
    parse_duration,
    takes_store,
)

if TYPE_CHECKING:
    from datetime import timedelta

    from concurrent_loader.storage.lifecycle.garbage import GarbageReport
    from concurrent_loader.storage.stores.store import Store

__all__ = ["gc"]


@takes_store
def gc(
    url: Url,
    *,
    keep: Annotated[int | None, typer.Option(min=1, help="Delete all snapshots but the newest N.")] = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Delete snapshots that were replaced longer ago than this, such as 30d."),
    ] = None,
    grace: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="How long objects stay after the last snapshot that needs them, or after they were written.",
        ),
    ] = "7d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted; delete nothing.")] = False,
    store_flags: StoreFlags,
    as_json: Json = False,
) -> None:
    """Delete old snapshots, and objects of failed jobs and deleted snapshots.

    Snapshots stay unless --keep or --older-than is given; with both, both must hold. The newest one and those with a
    tag always stay. Run it again after the grace period to delete the objects of deleted snapshots.
    """
    older = None if older_than is None else parse_duration(older_than, name="--older-than")
    wait = parse_duration(grace, name="--grace")
    options = store_flags.options
    store = open_for_command(url, client=store_flags.client, options=options)
    report = asyncio.run(_collect(store, keep, older, wait, dry_run=dry_run))
    if as_json:
        typer.echo(json.dumps({"url": store.url, **dataclasses.asdict(report)}))
    else:
        _print(report, grace)


async def _collect(
    store: Store, keep: int | None, older_than: timedelta | None, grace: timedelta, *, dry_run: bool
) -> GarbageReport:
    from concurrent_loader.storage.lifecycle.garbage import collect_garbage

    async with store:
        return await collect_garbage(store, keep=keep, older_than=older_than, grace=grace, dry_run=dry_run)


def _print(report: GarbageReport, grace: str) -> None:
    from concurrent_loader.storage.sizes import format_count, format_size

    did = "would delete" if report.dry_run else "deleted"
    gone = ", ".join(map(str, report.deleted_snapshots))
    typer.echo(
        f"{did} {format_count(len(report.deleted_snapshots), 'snapshot')}{f' ({gone})' if gone else ''}; "
        f"{format_count(len(report.kept_snapshots), 'snapshot')} kept"
    )
    typer.echo(f"{did} {format_count(report.num_objects, 'object')}, {format_size(report.num_bytes)}")
    if report.num_abandoned:
        typer.echo(f"{did} the records of {format_count(report.num_abandoned, 'abandoned job')}")
    if report.num_waiting:
        typer.echo(
            f"{format_count(report.num_waiting, 'object')}, {format_size(report.waiting_bytes)}, "
            f"that no snapshot needs: due after the grace period of {grace}"
        )
