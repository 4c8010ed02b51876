"""Implements `concurrent-loader commit DST`: makes a snapshot of the parts that other commands have written."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from concurrent_loader.cli.ingest_run import print_import
from concurrent_loader.cli.options import (
    Json,
    StoreFlags,
    client_for,
    options_for,
    takes_store,
)

__all__ = ["commit"]


@takes_store
def commit(
    dst: Annotated[str, typer.Argument(metavar="DST", help="URL of the dataset.")],
    *,
    plan: Annotated[
        str | None, typer.Option(help="Name of the import, if the dataset has several unfinished ones.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the unfinished imports, and commit nothing.")] = False,
    store_flags: StoreFlags,
    as_json: Json = False,
) -> None:
    """Commit an import whose parts `concurrent-loader ingest … --part K/N` has written.

    Names parts that are missing, and then commits nothing.
    """
    from concurrent_loader.storage.importers.parts_commit import commit_parts, unfinished_imports

    options = options_for(dst, store_flags.options)
    where = client_for(dst, store_flags.client)
    if not list_:
        report = commit_parts(dst, plan, client=where, storage_options=options)
        print_import(report, dst, noun="sample", as_json=as_json)
        return
    found = unfinished_imports(dst, client=where, storage_options=options)
    if as_json:
        typer.echo(json.dumps({name: {"num_written": n, "num_parts": of} for name, (n, of) in found.items()}))
        return
    for name, (num_written, num_parts) in sorted(found.items()):
        typer.echo(f"{name}: {num_written} of {num_parts} parts are written")
    if not found:
        typer.echo("there is no unfinished import")
