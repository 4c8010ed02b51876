"""Assembles the command line `concurrent-loader`. Starts without importing torch or any client of an object store."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from concurrent_loader.cli import cache, columns, ingest, s3
from concurrent_loader.cli.adopt import adopt
from concurrent_loader.cli.browse import browse
from concurrent_loader.cli.commit import commit
from concurrent_loader.cli.compact import compact
from concurrent_loader.cli.convert import convert
from concurrent_loader.cli.copy_dataset import copy_command
from concurrent_loader.cli.delete import delete
from concurrent_loader.cli.diff import diff
from concurrent_loader.cli.doctor import doctor
from concurrent_loader.cli.export import export
from concurrent_loader.cli.gc import gc
from concurrent_loader.cli.head import head, show
from concurrent_loader.cli.info import info
from concurrent_loader.cli.list_datasets import list_command
from concurrent_loader.cli.prove import prove
from concurrent_loader.cli.purge import purge
from concurrent_loader.cli.snapshots import snapshots
from concurrent_loader.cli.tag import tag
from concurrent_loader.cli.top import top
from concurrent_loader.cli.verify import verify
from concurrent_loader.cli.whatif import whatif
from concurrent_loader.errors import LoaderError
from concurrent_loader.storage.errors import CorruptData, StorageError

__all__ = ["app"]

_CORRUPT, _FAILED, _INTERRUPTED, _BROKEN_PIPE = 1, 2, 130, 141


class _Commands(TyperGroup):
    """Prints the error of a command as one line, and sets the exit status."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Whoever reads the output, such as `head`, has enough. Python would complain when it flushes at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(_BROKEN_PIPE) from None
        except (StorageError, LoaderError, OSError) as error:
            if ctx.params.get("debug"):
                traceback.print_exception(error)
            else:
                typer.echo(f"error: {' '.join(str(error).split()) or type(error).__name__}", err=True)
            raise typer.Exit(_CORRUPT if isinstance(error, CorruptData) else _FAILED) from error
        except KeyboardInterrupt as error:
            typer.echo("interrupted", err=True)
            raise typer.Exit(_INTERRUPTED) from error


app = typer.Typer(
    name="concurrent-loader",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train from a bucket as fast as from a local drive.",
)
app.add_typer(ingest.app, name="ingest")
app.command("commit")(commit)
app.command("adopt")(adopt)
app.command("compact")(compact)
app.command("convert")(convert)
app.command("delete")(delete)
app.command("export")(export)
app.command("list")(list_command)
app.command("info")(info)
app.command("snapshots")(snapshots)
app.command("diff")(diff)
app.command("tag")(tag)
app.command("gc")(gc)
app.command("copy")(copy_command)
app.command("head")(head)
app.command("show")(show)
app.command("browse")(browse)
app.command("prove")(prove)
app.command("purge")(purge)
app.command("verify")(verify)
app.command("whatif")(whatif)
app.command("doctor")(doctor)
app.command("top")(top)
app.add_typer(columns.app, name="columns")
app.add_typer(cache.app, name="cache")
app.add_typer(s3.app, name="s3")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"concurrent-loader {version('concurrent-loader')}")
        except PackageNotFoundError:
            typer.echo("concurrent-loader (not installed)")
        raise typer.Exit


@app.callback()
def main(
    *,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train from a bucket as fast as from a local drive."""


if __name__ == "__main__":
    app()
