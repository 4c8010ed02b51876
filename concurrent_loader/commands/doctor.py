"""`concurrent-loader doctor URL`: will training from this bucket on this machine work, and how fast."""

from __future__ import annotations

import asyncio
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concurrent_loader.commands.options import (
    Client,
    EndpointUrl,
    Json,
    Profile,
    Region,
    StorageOption,
    client_for,
    options_for,
    store_options,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from concurrent_loader.doctor import Examination, Finding, Forecast, Target

__all__ = ["doctor"]

_UNHEALTHY = 1
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
_NAME_WIDTH = 12


class As(StrEnum):
    """Whose keys of Terraform's outputs."""

    READER = "reader"
    WRITER = "writer"


def doctor(
    url: Annotated[str | None, typer.Argument(metavar="URL", help="The data set, or where one is to be.")] = None,
    *,
    terraform: Annotated[
        Path | None,
        typer.Option(
            "--terraform",
            metavar="FILE",
            allow_dash=True,
            help="Take URL, options and keys from `terraform output -json`; - is standard input.",
        ),
    ] = None,
    identity: Annotated[As, typer.Option("--as", help="Whose keys of Terraform's outputs.")] = As.READER,
    put: Annotated[
        bool, typer.Option("--put", help="Try writing, too: puts and deletes the small object doctor-probe.")
    ] = False,
    cache_dir: Annotated[Path | None, typer.Option(help="The cache's folder; it need not exist yet.")] = None,
    cache_bytes: Annotated[str | None, typer.Option(help="The cache's budget, such as 200GiB.")] = None,
    sample_size: Annotated[str, typer.Option(help="Encoded size of a sample, for the forecast.")] = "110KB",
    probe_size: Annotated[str, typer.Option(help="How much to fetch and to write at most; 0 for neither.")] = "64MiB",
    deadline: Annotated[float, typer.Option(min=0.1, help="Seconds for each request and each measurement.")] = 10.0,
    endpoint_url: EndpointUrl = None,
    region: Region = None,
    profile: Profile = None,
    storage_option: StorageOption = None,
    client: Client = "auto",
    as_json: Json = False,
) -> None:
    """Check endpoint, keys, permissions, pace, cache disk and decoder; say what to do, and what pace to expect.

    Exit status: 0 nothing failed (there may be warnings), 1 something failed, 2 it could not be checked.
    """
    from concurrent_loader.doctor import Wishes, examine, is_healthy
    from storage.sizes import parse_size

    target = _target(url, terraform, identity)
    given = store_options(endpoint_url=endpoint_url, region=region, profile=profile, storage_option=storage_option)
    folder = cache_dir or (Path(target.cache_dir) if target.cache_dir is not None else None)
    wishes = Wishes(
        put=put,
        cache_dir=folder,
        cache_bytes=None if cache_bytes is None else parse_size(cache_bytes, name="--cache-bytes"),
        sample_bytes=max(1, parse_size(sample_size, name="--sample-size")),
        probe_bytes=parse_size(probe_size, name="--probe-size"),
        deadline_s=deadline,
    )
    show = _silent if as_json else _printer()
    examination = asyncio.run(
        examine(
            target.url,
            options_for(target.url, {**target.storage_options, **given}),
            wishes,
            client=client_for(target.url, client),
            on_finding=show,
        )
    )
    healthy = is_healthy(examination.findings)
    if as_json:
        typer.echo(json.dumps(_as_json(target.url, examination, healthy=healthy)))
    else:
        _print_forecast(examination.forecast)
    if not healthy:
        raise typer.Exit(_UNHEALTHY)


def _target(url: str | None, terraform: Path | None, identity: As) -> Target:
    from concurrent_loader.doctor import Target, read_outputs

    if terraform is None:
        if url is None:
            raise typer.BadParameter("give a URL, or --terraform FILE", param_hint="URL")
        return Target(url, {}, None)
    text = sys.stdin.read() if str(terraform) == "-" else terraform.read_text()
    found = read_outputs(text, identity=identity.value)
    return found if url is None else Target(url, found.storage_options, found.cache_dir)


def _as_json(url: str, examination: Examination, *, healthy: bool) -> dict[str, Any]:
    return {
        "url": url,
        "ok": healthy,
        "findings": [finding.as_json() for finding in examination.findings],
        "forecast": examination.forecast.as_json(),
    }


def _silent(finding: Finding) -> None:
    """Nothing is printed before the one JSON object."""


def _printer() -> Callable[[Finding], None]:
    """Prints findings one by one, as they come."""
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)

    def show(finding: Finding) -> None:
        line = Text(f"{finding.level.value:<5}", style=_COLOURS[finding.level.value])
        line.append(f"{finding.name:<{_NAME_WIDTH}} ", style="bold")
        line.append(finding.said, style="default")
        console.print(line)
        if finding.advice:
            console.print(Text(f"{'':{5 + _NAME_WIDTH}} → {finding.advice}", style="dim"))

    return show


def _print_forecast(forecast: Forecast) -> None:
    from storage.sizes import format_size

    for name, limit in (("first epoch", forecast.cold), ("later epochs, from the cache", forecast.warm)):
        if limit is not None:
            typer.echo(
                f"{name}: up to {limit.images_s:,.0f} images/s of {format_size(forecast.sample_bytes)}, "
                f"limited by the {limit.by}"
            )
