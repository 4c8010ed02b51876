"""Implements `concurrent-loader columns …`: adds, renames and drops columns of a dataset."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from concurrent_loader.cli.info import Url
from concurrent_loader.cli.options import (
    Json,
    StoreFlags,
    client_for,
    open_for_command,
    takes_store,
)
from concurrent_loader.cli.progress import progress_bar

if TYPE_CHECKING:
    from concurrent_loader.storage.columns import AddProgress
    from concurrent_loader.storage.shards.manifest.manifest import Manifest
    from concurrent_loader.storage.stores.store import Store

__all__ = ["app"]

app = typer.Typer(
    name="columns", help="Add, rename and drop columns, without writing shards again.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the column.")]
Token = Annotated[
    str | None, typer.Option(help="Name of this change. A second run with the same token changes nothing.")
]


@app.command()
@takes_store
def add(
    url: Url,
    name: Name,
    type_: Annotated[str, typer.Argument(metavar="TYPE", help='Type of the column, such as int64, str, "float32[8]".')],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File with one value per sample: .npy, .csv, .jsonl or .parquet.")
    ],
    *,
    field: Annotated[str | None, typer.Option(help="Name of the values in the file. Default: NAME.")] = None,
    by: Annotated[
        str | None,
        typer.Option(help="Column of the dataset that names the samples. Default: the file has the samples' order."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Name of the keys in the file. Default: the same as --by.")] = None,
    default: Annotated[
        str | None, typer.Option(help="Value of samples whose key is not in the file. Without it: an error.")
    ] = None,
    token: Token = None,
    store_flags: StoreFlags,
    as_json: Json = False,
) -> None:
    """Add a column with values from a file."""
    from concurrent_loader.cli.value_files import parse_text, read_values
    from concurrent_loader.storage.columns import NO_DEFAULT, add_column
    from concurrent_loader.storage.shards.format.schema import Column, Schema

    options = store_flags.options
    column = Column(name, type_)
    key_column = None
    if by is not None:
        manifest = asyncio.run(_load(open_for_command(url, client=store_flags.client, options=options)))
        key_column = Schema.parse(manifest.schema)[by]
    elif key is not None or default is not None:
        raise typer.BadParameter("--key and --default need --by", param_hint="--by")
    values = read_values(file, column, field=field, key=None if by is None else key or by, key_column=key_column)
    with progress_bar(in_bytes=False) as progress:
        task = progress.add_task("adding", total=None, rate="")

        def show(now: AddProgress) -> None:
            progress.update(task, completed=now.num_samples, total=now.num_samples_total)

        made = add_column(
            url, name, type_, values, by=by, default=NO_DEFAULT if default is None else parse_text(default, column),
            token=token, client=client_for(url, store_flags.client), storage_options=options, on_progress=show,
        )  # fmt: skip
    _print(made, as_json=as_json)


@app.command()
@takes_store
def rename(
    url: Url,
    name: Name,
    new_name: Annotated[str, typer.Argument(metavar="NEWNAME", help="New name of the column.")],
    *,
    token: Token = None,
    store_flags: StoreFlags,
    as_json: Json = False,
) -> None:
    """Rename a column."""
    from concurrent_loader.storage.columns import rename_column

    options = store_flags.options
    made = rename_column(
        url, name, new_name, token=token, client=client_for(url, store_flags.client), storage_options=options
    )
    _print(made, as_json=as_json)


@app.command()
@takes_store
def drop(
    url: Url,
    name: Name,
    *,
    token: Token = None,
    store_flags: StoreFlags,
    as_json: Json = False,
) -> None:
    """Drop a column. Older snapshots keep it."""
    from concurrent_loader.storage.columns import drop_column

    options = store_flags.options
    made = drop_column(url, name, token=token, client=client_for(url, store_flags.client), storage_options=options)
    _print(made, as_json=as_json)


async def _load(store: Store) -> Manifest:
    from concurrent_loader.storage.shards.manifest.snapshots import load_manifest

    async with store:
        return await load_manifest(store)


def _print(manifest: Manifest, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"snapshot": manifest.snapshot, "columns": manifest.schema}))
        return
    columns = ", ".join(f"{name}: {kind}" for name, kind in manifest.schema.items())
    typer.echo(f"snapshot {manifest.snapshot}: {columns}")
