"""Implements `concurrent-loader verify URL`: verifies every byte of a dataset against its digests."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING, Any

import typer

from concurrent_loader.cli.info import Url
from concurrent_loader.cli.options import (
    InFlight,
    Json,
    Snapshot,
    StoreFlags,
    open_for_command,
    parse_snapshot,
    takes_store,
)
from concurrent_loader.cli.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable

    from concurrent_loader.storage.fetch import FetchEngine
    from concurrent_loader.storage.shards.manifest.snapshots import SnapshotName
    from concurrent_loader.storage.shards.shard_fetcher import OpenSource
    from concurrent_loader.storage.shards.verify import VerifyProgress, VerifyReport
    from concurrent_loader.storage.stores.store import Store

__all__ = ["verify"]

_CORRUPT = 1


@takes_store
def verify(
    url: Url,
    *,
    snapshot: Snapshot = None,
    in_flight: InFlight = 16,
    store_flags: StoreFlags,
    as_json: Json = False,
) -> None:
    """Read every shard in full and verify all digests.

    Data that was adopted with --headers-only has no digests of its payload; the output says so.

    Exit status: 0 all data is intact, 1 data is corrupt (each problem is listed), 2 the check failed.
    """
    from concurrent_loader.storage.sizes import format_count

    options = store_flags.options
    store = open_for_command(url, client=store_flags.client, options=options)
    with progress_bar(in_bytes=True) as progress:
        task = progress.add_task("verifying", total=None)

        def show(now: VerifyProgress) -> None:
            found = f"verifying, {format_count(now.num_problems, 'problem')}" if now.num_problems else "verifying"
            progress.update(task, description=found, completed=now.num_bytes, total=now.num_bytes_total)

        report = asyncio.run(
            _verify(
                store,
                parse_snapshot(snapshot),
                in_flight,
                show,
                lambda source: _open_source(store.url, source, store_flags.client, options),
            )
        )
    _print(report, store.url, as_json=as_json)
    if report.problems:
        raise typer.Exit(_CORRUPT)


def _open_source(url: str, source: str, client: str, options: dict[str, Any]) -> FetchEngine:
    from concurrent_loader.storage.fetch import FetchEngine
    from concurrent_loader.storage.shards.shard_fetcher import check_source

    check_source(url, source)
    return FetchEngine(open_for_command(source, client=client, options=options))


async def _verify(
    store: Store,
    snapshot: SnapshotName | None,
    in_flight: int,
    on_progress: Callable[[VerifyProgress], None],
    open_source: OpenSource,
) -> VerifyReport:
    from concurrent_loader.storage.fetch import FetchEngine
    from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
    from concurrent_loader.storage.shards.verify import verify_dataset

    async with store:
        engine = FetchEngine(store, in_flight=in_flight)
        manifest = await load_manifest(engine, snapshot)
        return await verify_dataset(engine, manifest, on_progress=on_progress, open_source=open_source)


def _print(report: VerifyReport, url: str, *, as_json: bool) -> None:
    from concurrent_loader.storage.printable import printable
    from concurrent_loader.storage.sizes import format_count, format_size

    if as_json:
        typer.echo(json.dumps({"url": url, "ok": not report.problems, **dataclasses.asdict(report)}))
        return
    for problem in report.problems:
        typer.echo(printable(str(problem)))
    verdict = format_count(len(report.problems), "problem") if report.problems else "all digests agree"
    typer.echo(
        f"{url} snapshot {report.snapshot}: {verdict}; {format_count(report.num_shards, 'shard')}, "
        f"{format_count(report.num_bundles, 'bundle')}, {format_count(report.num_samples, 'sample')}, "
        f"{format_size(report.num_bytes)}"
    )
    if report.num_undigested:
        typer.echo(
            f"not verified by digest: the payload of {format_count(report.num_undigested, 'virtual shard')}, of which "
            "only headers were adopted; it is there, with its length. `concurrent-loader convert` computes digests"
        )
