"""Implements `concurrent-loader s3 …`: runs a local S3 server in the background, to try things without a cloud."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # imported late: the command line starts without the clients of object stores
    from concurrent_loader.storage.testing import DetachedS3

__all__ = ["app"]

_EXIT_NOT_RUNNING = 3  # the exit status of `systemctl status`

app = typer.Typer(name="s3", help="Run a local S3 server in the background.", no_args_is_help=True)


@app.command()
def start(
    *,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port on the loopback address. Default: any free port.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder for the objects, which stays when the server stops.", file_okay=False)
    ] = None,
    bucket: Annotated[list[str] | None, typer.Option(help="Bucket to create. May be repeated.")] = None,
    moto: Annotated[bool, typer.Option("--moto", help="Start moto instead of MinIO: smaller, but slower.")] = False,
) -> None:
    """Start a server unless one runs, and print its settings for a shell.

    Use it as: eval "$(concurrent-loader s3 start)"
    """
    from concurrent_loader.storage.testing import start_s3

    running, started = start_s3(port=port, data_dir=data, kinds=("moto",) if moto else ("minio", "moto"))
    if not started and running.started_in != str(Path.cwd()):
        typer.echo(
            f"using the server that was started in {running.started_in or 'another folder'}, with the same buckets. "
            "To start a separate server, run `concurrent-loader s3 stop` first, or set XDG_STATE_HOME",
            err=True,
        )
    for name in bucket or []:
        running.server.make_bucket(name)
    typer.echo(f"# {'started' if started else 'already running'}: {_describe(running)}")
    for variable, value in running.server.environment().items():
        typer.echo(f"export {variable}={shlex.quote(value)}")


@app.command()
def stop() -> None:
    """Stop the server. Its objects stay."""
    from concurrent_loader.storage.testing import stop_s3

    stopped = stop_s3()
    typer.echo("not running" if stopped is None else f"stopped; the objects stay in {stopped.data_dir}")


@app.command()
def status(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object to standard output, including the credentials.")
    ] = False,
) -> None:
    """Show whether the server runs, and where.

    Exit status: 0 the server runs, 3 it does not run.
    """
    from concurrent_loader.storage.testing import running_s3

    running = running_s3()
    if as_json:
        typer.echo(json.dumps(_facts(running)))
    else:
        typer.echo("not running" if running is None else f"running: {_describe(running)}")
    if running is None:
        raise typer.Exit(_EXIT_NOT_RUNNING)


def _facts(running: DetachedS3 | None) -> dict[str, object]:
    if running is None:
        return {"running": False}
    return {
        "running": True,
        "kind": running.server.kind,
        "origin": running.server.origin,
        "pid": running.pid,
        "data_dir": str(running.data_dir),
        "log": str(running.log),
        **running.server.storage_options(),
    }


def _describe(running: DetachedS3) -> str:
    server = running.server
    return f"{server.kind} at {server.endpoint_url}, pid {running.pid}, objects in {running.data_dir}"
