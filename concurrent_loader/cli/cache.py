"""Implements `concurrent-loader cache …`: inspects, shrinks, empties and verifies a cache folder.

All commands work while the cache is in use.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from concurrent_loader.cli.options import Json
from concurrent_loader.cli.progress import progress_bar

if TYPE_CHECKING:
    from concurrent_loader.storage.cache.folder import CacheFolder
    from concurrent_loader.storage.cache.maintenance import Collected

__all__ = ["app"]

_CORRUPT = 1

app = typer.Typer(name="cache", help="Manage a cache folder on the local drive.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder that was passed as cache_dir.")]


@app.command()
def info(folder: Folder, *, as_json: Json = False) -> None:
    """Show what the cache contains, and how much space it takes."""
    from concurrent_loader.storage.cache.maintenance import inspect_cache
    from concurrent_loader.storage.sizes import format_size

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
        ("complete shards", content.num_shards, content.shard_bytes),
        ("parts of shards", content.num_sparse, content.sparse_bytes),
        ("being fetched", content.num_incoming, content.incoming_bytes),
    ):
        table.add_row(name, f"{count:,}", format_size(num_bytes))
    table.add_row("total", "", format_size(content.num_bytes))
    table.add_row("free on the drive", "", format_size(content.free_bytes))
    Console().print(table)


@app.command()
def gc(
    folder: Folder,
    *,
    num_bytes: Annotated[
        str | None, typer.Option("--bytes", metavar="SIZE", help="Size to shrink the cache to, such as 100GiB.")
    ] = None,
) -> None:
    """Delete leftovers of dead processes, and shrink the cache to a budget, least recently used files first.

    Files that are in use stay.
    """
    from concurrent_loader.storage.cache.maintenance import collect_garbage
    from concurrent_loader.storage.sizes import parse_size

    budget_bytes = None if num_bytes is None else parse_size(num_bytes, name="--bytes")
    with _opened(folder) as opened:
        _report(collect_garbage(opened, budget_bytes=budget_bytes))


@app.command()
def clear(
    folder: Folder, *, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False
) -> None:
    """Delete all cached files that are not in use. Other files and the folder itself stay."""
    from concurrent_loader.storage.cache.maintenance import clear_cache, inspect_cache
    from concurrent_loader.storage.sizes import format_size

    with _opened(folder) as opened:
        if not yes:
            typer.confirm(f"Delete {format_size(inspect_cache(opened).num_bytes)} in {opened.root}?", abort=True)
        _report(clear_cache(opened))


@app.command()
def verify(
    folder: Folder,
    *,
    fix: Annotated[bool, typer.Option("--fix", help="Delete damaged files, so that they are fetched again.")] = False,
    as_json: Json = False,
) -> None:
    """Read every cached byte and verify its digest.

    Exit status: 0 all files are intact, 1 a file is damaged (each damaged file is listed), 2 the check failed.
    """
    from concurrent_loader.storage.cache.maintenance import verify_cache
    from concurrent_loader.storage.sizes import format_count, format_size

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
            f"{format_count(report.num_ranges, 'other range', 'other ranges')}, "
            f"{format_size(report.num_bytes)}" + (f"; {report.num_removed} deleted" if fix else "")
        )
    if report.problems:
        raise typer.Exit(_CORRUPT)


@contextmanager
def _opened(folder: Path) -> Iterator[CacheFolder]:
    from concurrent_loader.storage.cache.folder import CacheFolder

    if not folder.is_dir():
        raise FileNotFoundError(f"the folder does not exist: {folder}")
    opened = CacheFolder(folder)
    try:
        yield opened
    finally:
        opened.close()


def _report(collected: Collected) -> None:
    from concurrent_loader.storage.sizes import format_count, format_size

    typer.echo(
        f"deleted {format_count(collected.num_evicted, 'file')} and {format_count(collected.num_swept, 'leftover')}, "
        f"{format_size(collected.freed_bytes)}; {format_size(collected.num_bytes)} left"
        + (f", {format_count(collected.num_in_use, 'file')} in use" if collected.num_in_use else "")
    )
