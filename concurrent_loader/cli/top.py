"""Implements `concurrent-loader top [PID|DIR]`: shows what running loaders do, on the terminal or as JSON."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from concurrent_loader.cli.options import Json

__all__ = ["top"]

_EVERY_S = 1.0


def top(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[PID|DIR]", help="A process, or a folder with sockets. Default: all of this user."),
    ] = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Show it once; exit with status 1 if no loader runs.")] = False,
    as_json: Json = False,
) -> None:
    """Show what running loaders do: stages, rates, waits and slow requests, ranks side by side."""
    from concurrent_loader.metrics.live_socket import ask_all

    if once:
        answers = ask_all(target)
        _print(answers, as_json=as_json)
        if not answers:
            raise typer.Exit(1)
    elif as_json:
        while True:
            _print(ask_all(target), as_json=True)
            time.sleep(_EVERY_S)
    else:
        _watch(target)


def _print(answers: list[dict[str, Any]], *, as_json: bool) -> None:
    from rich.console import Console

    if as_json:
        typer.echo(json.dumps({"processes": answers}))
        return
    console = Console()
    console.print(_shown(answers, console.width))


def _watch(target: str | None) -> None:
    from rich.console import Console
    from rich.live import Live

    from concurrent_loader.metrics.live_socket import ask_all

    console = Console()
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            live.update(_shown(ask_all(target), console.width), refresh=True)
            time.sleep(_EVERY_S)


def _shown(answers: list[dict[str, Any]], width: int) -> Any:
    from concurrent_loader.metrics.live_view import live_table

    if not answers:
        return "no loader of this user is running"
    return live_table(answers, width)
