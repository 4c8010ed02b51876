"""Implements `concurrent-loader delete URL`: a new snapshot without some samples."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from concurrent_loader.cli.options import (
    Json,
    StoreFlags,
    client_for,
    options_for,
    takes_store,
)

__all__ = ["delete", "parse_ids"]

_MAX_IDS = 100_000_000


@takes_store
def delete(
    url: Annotated[str, typer.Argument(metavar="URL", help="URL of the dataset.")],
    *,
    where: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help='Condition on columns, such as "label == 7 and width < 64".'),
    ] = None,
    ids: Annotated[
        str | None,
        typer.Option(metavar="N,N-N,…", help="Sample numbers and ranges; @FILE reads them from a file, one a line."),
    ] = None,
    snapshot: Annotated[
        int | None, typer.Option(min=1, help="Snapshot that --ids are numbers of. Default: the newest.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(help="Name of the commit; a repeated call with the same name does nothing.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the samples.")] = False,
    store_flags: StoreFlags,
    as_json: Json = False,
) -> None:
    """Commit a snapshot without some samples.

    Earlier snapshots and the bytes stay. `compact` writes shards that are mostly deleted again; `purge` removes the
    bytes of all deleted samples.
    """
    from concurrent_loader.storage.shards.editing.delete import delete as run_delete
    from concurrent_loader.storage.sizes import format_count

    options = store_flags.options
    report = run_delete(
        url, where=where, ids=None if ids is None else parse_ids(ids), snapshot=snapshot, token=token, dry_run=dry_run,
        client=client_for(url, store_flags.client), storage_options=options_for(url, options),
    )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(report)))
        return
    verb = "would be deleted from" if dry_run else "deleted, now"
    left = format_count(report.num_samples, "sample")
    typer.echo(
        f"{format_count(report.num_deleted, 'sample')} {verb} {report.url} snapshot {report.snapshot}; {left} left"
    )


def parse_ids(text: str) -> list[int]:
    """Parses sample numbers such as ``3,10-12``; ``@FILE`` names a file with one number or range a line.

    Raises:
        typer.BadParameter: The text is not of this form.
    """
    if text.startswith("@"):
        text = ",".join(Path(text[1:]).read_text(encoding="utf-8").split())
    ranges: list[range] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not (low.isascii() and low.isdigit() and (not dash or (high.isascii() and high.isdigit()))):
            raise typer.BadParameter(f"{part.strip()[:40]!r} is neither a number nor a range", param_hint="--ids")
        ranges.append(range(int(low), int(high if dash else low) + 1))
    if sum(map(len, ranges)) > _MAX_IDS:
        raise typer.BadParameter(f"more than {_MAX_IDS:,} samples; use --where", param_hint="--ids")
    return [number for each in ranges for number in each]
