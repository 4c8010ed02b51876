"""``concurrent-loader s3``: a local S3 server in the background, for trying things without a cloud."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # imported where it is used: the command line starts without the clients of object stores
    from storage.testing import DetachedS3

__all__ = ["app"]

_EXIT_NOT_RUNNING = 3  # as `systemctl status` has it

app = typer.Typer(name="s3", help="A local S3 server in the background.", no_args_is_help=True)


@app.command()
def start(
    *,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Of the loopback; any free one if not given.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder for the objects; kept when the server stops.", file_okay=False)
    ] = None,
    bucket: Annotated[list[str] | None, typer.Option(help="Create this bucket; may be repeated.")] = None,
    moto: Annotated[bool, typer.Option("--moto", help="Start moto instead of MinIO: small, slow.")] = False,
) -> None:
    """Starts a server unless one runs, and prints what a shell needs: eval "$(concurrent-loader s3 start)"."""
    from storage.testing import start_s3

    running, started = start_s3(port=port, data_dir=data, kinds=("moto",) if moto else ("minio", "moto"))
    if not started and running.started_in != str(Path.cwd()):
        typer.echo(
            f"using the server that was started in {running.started_in or 'another folder'}; it shares its buckets "
            "with this project. For one of its own, run `concurrent-loader s3 stop` first, or set XDG_STATE_HOME",
            err=True,
        )
    for name in bucket or []:
        running.server.make_bucket(name)
    typer.echo(f"# {'started' if started else 'running already, and used again'}: {_describe(running)}")
    for variable, value in running.server.environment().items():
        typer.echo(f"export {variable}={shlex.quote(value)}")


@app.command()
def stop() -> None:
    """Stops the server; its objects stay."""
    from storage.testing import stop_s3

    stopped = stop_s3()
    typer.echo("not running" if stopped is None else f"stopped; its objects stay in {stopped.data_dir}")


@app.command()
def status(
    *, as_json: Annotated[bool, typer.Option("--json", help="For programs; with the credentials.")] = False
) -> None:
    """Says whether the server runs, and where: exit status 0 if it does, 3 if not."""
    from storage.testing import running_s3

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
