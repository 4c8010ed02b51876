"""Implements `concurrent-loader copy SRC DST`: copies a dataset with all snapshots and tags."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from concurrent_loader.cli.options import (
    InFlight,
    Json,
    StoreFlags,
    client_for,
    open_for_command,
    options_for,
    store_options,
    takes_store,
)
from concurrent_loader.cli.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable

    from concurrent_loader.storage.lifecycle.copying import CopyProgress, CopyReport
    from concurrent_loader.storage.stores.store import Store

__all__ = ["copy_command"]

_DESTINATION = "Destination, if it differs from the source"


@takes_store
def copy_command(
    src: Annotated[str, typer.Argument(metavar="SRC", help="URL of the dataset.")],
    dst: Annotated[str, typer.Argument(metavar="DST", help="URL of the copy: empty, or an earlier copy.")],
    *,
    in_flight: InFlight = 16,
    store_flags: StoreFlags,
    dst_endpoint_url: Annotated[
        str | None, typer.Option(help="URL of the S3 server of the destination.", rich_help_panel=_DESTINATION)
    ] = None,
    dst_region: Annotated[
        str | None, typer.Option(help="Region of the destination bucket.", rich_help_panel=_DESTINATION)
    ] = None,
    dst_profile: Annotated[
        str | None, typer.Option(help="AWS profile for the destination.", rich_help_panel=_DESTINATION)
    ] = None,
    dst_storage_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Another option of the destination's store. May be repeated.",
            rich_help_panel=_DESTINATION,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Copy a dataset with all snapshots and tags. Every object is verified.

    Repeat an interrupted command to continue, or to copy what is new in the source.
    """
    from concurrent_loader.storage.stores.backends.open_store import open_store

    options = store_flags.options
    own = store_options(
        endpoint_url=dst_endpoint_url, region=dst_region, profile=dst_profile, storage_option=dst_storage_option
    )
    source = open_for_command(src, client=store_flags.client, options=options)
    target = open_store(dst, client=client_for(dst, store_flags.client), **options_for(dst, {**options, **own}))
    with progress_bar(in_bytes=True) as progress:
        task = progress.add_task("copying", total=None)

        def show(now: CopyProgress) -> None:
            progress.update(task, completed=now.num_bytes, total=now.num_bytes_total)

        report = asyncio.run(_copy(source, target, in_flight, show))
    if as_json:
        typer.echo(json.dumps({"url": target.url, **dataclasses.asdict(report)}))
    else:
        _print(target.url, report)


async def _copy(source: Store, target: Store, in_flight: int, show: Callable[[CopyProgress], None]) -> CopyReport:
    from concurrent_loader.storage.lifecycle.copying import copy_dataset

    async with source, target:
        return await copy_dataset(source, target, in_flight=in_flight, on_progress=show)


def _print(url: str, report: CopyReport) -> None:
    from concurrent_loader.storage.printable import printable
    from concurrent_loader.storage.sizes import format_count, format_size

    on_server = f", {report.num_server_side:,} of them on the server" if report.num_server_side else ""
    kept = f"; {format_count(report.num_kept, 'object')} were there" if report.num_kept else ""
    typer.echo(
        f"{url}: {format_count(report.num_new_snapshots, 'new snapshot')}, {len(report.snapshots)} in all; "
        f"{format_count(report.num_objects, 'object')} copied, {format_size(report.num_bytes)}{on_server}{kept}"
    )
    for source in report.sources:
        typer.echo(printable(f"adopted data stays in {source}; `concurrent-loader convert` makes it part of a dataset"))
