"""`concurrent-loader cache …`: look at, shrink, empty and check a cache folder, also while it is in use."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from concurrent_loader.commands.options import Json
from concurrent_loader.commands.progress import progress_bar

if TYPE_CHECKING:
    from storage.cache.files import CacheFolder
    from storage.cache.upkeep import Collected

__all__ = ["app"]

_CORRUPT = 1

app = typer.Typer(name="cache", help="A cache folder on the local drive.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The cache_dir of a data set.")]


@app.command()
def info(folder: Folder, *, as_json: Json = False) -> None:
    """Say what is in it, and how much of the drive it takes."""
    from storage.cache.upkeep import inspect_cache
    from storage.sizes import format_size

    with _opened(folder) as opened:
        content = inspect_cache(opened)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(content)))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=content.root, title_justify="left", show_header=False, box=None)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    for name, count, num_bytes in (
        ("whole shards", content.num_shards, content.shard_bytes),
        ("parts of shards", content.num_sparse, content.sparse_bytes),
        ("on their way", content.num_incoming, content.incoming_bytes),
    ):
        table.add_row(name, f"{count:,}", format_size(num_bytes))
    table.add_row("together", "", format_size(content.num_bytes))
    table.add_row("free on the drive", "", format_size(content.free_bytes))
    Console().print(table)


@app.command()
def gc(
    folder: Folder,
    *,
    num_bytes: Annotated[
        str | None, typer.Option("--bytes", metavar="SIZE", help="Shrink it to this, such as 100GiB.")
    ] = None,
) -> None:
    """Delete what dead processes left, and what exceeds a budget: least recently used first, nothing that is in use."""
    from storage.cache.upkeep import collect_garbage
    from storage.sizes import parse_size

    budget_bytes = None if num_bytes is None else parse_size(num_bytes, name="--bytes")
    with _opened(folder) as opened:
        _tell(collect_garbage(opened, budget_bytes=budget_bytes))


@app.command()
def clear(folder: Folder, *, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False) -> None:
    """Delete everything that the cache made and that is not in use; other files, and the folder, stay."""
    from storage.cache.upkeep import clear_cache, inspect_cache
    from storage.sizes import format_size

    with _opened(folder) as opened:
        if not yes:
            typer.confirm(f"Delete {format_size(inspect_cache(opened).num_bytes)} in {opened.root}?", abort=True)
        _tell(clear_cache(opened))


@app.command()
def verify(
    folder: Folder,
    *,
    fix: Annotated[bool, typer.Option("--fix", help="Delete what is damaged; it is then fetched again.")] = False,
    as_json: Json = False,
) -> None:
    """Read every cached byte and check its digest.

    Exit status: 0 everything is as it was fetched, 1 something is damaged (each file is listed), 2 it could not be
    checked.
    """
    from storage.cache.upkeep import verify_cache
    from storage.sizes import format_count, format_size

    with _opened(folder) as opened, progress_bar(in_bytes=True) as progress:
        task = progress.add_task("verifying", total=None)
        report = verify_cache(
            opened, fix=fix, on_progress=lambda done, total: progress.update(task, completed=done, total=total)
        )
    if as_json:
        typer.echo(json.dumps({"root": str(folder), "ok": not report.problems, **dataclasses.asdict(report)}))
    else:
        for problem in report.problems:
            typer.echo(problem)
        verdict = format_count(len(report.problems), "damaged file") if report.problems else "all digests agree"
        typer.echo(
            f"{folder}: {verdict}; {format_count(report.num_shards, 'shard')}, "
            f"{format_count(report.num_ranges, 'range of others', 'ranges of others')}, "
            f"{format_size(report.num_bytes)}" + (f"; {report.num_removed} deleted" if fix else "")
        )
    if report.problems:
        raise typer.Exit(_CORRUPT)


@contextmanager
def _opened(folder: Path) -> Iterator[CacheFolder]:
    from storage.cache.files import CacheFolder

    if not folder.is_dir():
        raise FileNotFoundError(f"no such folder: {folder}")
    opened = CacheFolder(folder)
    try:
        yield opened
    finally:
        opened.close()


def _tell(collected: Collected) -> None:
    from storage.sizes import format_count, format_size

    typer.echo(
        f"deleted {format_count(collected.num_evicted, 'file')} and {format_count(collected.num_swept, 'leftover')}, "
        f"{format_size(collected.freed_bytes)}; {format_size(collected.num_bytes)} are left"
        + (f", {format_count(collected.num_in_use, 'file')} in use" if collected.num_in_use else "")
    )
