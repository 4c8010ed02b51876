"""Implements `concurrent-loader doctor URL`: checks a bucket and this machine, and forecasts the speed."""

from __future__ import annotations

import asyncio
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concurrent_loader.cli.options import (
    Json,
    StoreFlags,
    client_for,
    options_for,
    takes_store,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from concurrent_loader.doctor import Finding, Forecast, Report, Target

__all__ = ["doctor"]

_UNHEALTHY = 1
_COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}
_NAME_WIDTH = 12


class Identity(StrEnum):
    """Selects the keys in Terraform's outputs."""

    READER = "reader"
    WRITER = "writer"


@takes_store
def doctor(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="URL of a dataset, or of the place for a new one.")
    ] = None,
    *,
    terraform: Annotated[
        Path | None,
        typer.Option(
            "--terraform",
            metavar="FILE",
            allow_dash=True,
            help="File with the output of `terraform output -json`, for URL, options and keys; - reads standard input.",
        ),
    ] = None,
    identity: Annotated[
        Identity, typer.Option("--as", help="Identity whose keys to take from Terraform's outputs.")
    ] = Identity.READER,
    put: Annotated[
        bool, typer.Option("--put", help="Also check writing: put and delete the small object doctor-probe.")
    ] = False,
    cache_dir: Annotated[Path | None, typer.Option(help="Folder of the cache, which may not exist yet.")] = None,
    cache_bytes: Annotated[str | None, typer.Option(help="Budget of the cache, such as 200GiB.")] = None,
    sample_size: Annotated[str, typer.Option(help="Encoded size of a sample, for the forecast.")] = "110KB",
    probe_size: Annotated[
        str, typer.Option(help="Maximum size to fetch and to write; 0 skips both measurements.")
    ] = "64MiB",
    deadline: Annotated[
        float, typer.Option(min=0.1, help="Deadline of each request and each measurement, in seconds.")
    ] = 10.0,
    store_flags: StoreFlags,
    as_json: Json = False,
) -> None:
    """Check store, credentials, cache disk and decoder, and print what to fix.

    Also prints how many images per second to expect.

    Exit status: 0 nothing failed (warnings are allowed), 1 a check failed, 2 the checks could not run.
    """
    from concurrent_loader.doctor import CheckOptions, is_healthy, run_checks
    from concurrent_loader.storage.sizes import parse_size

    target = _target(url, terraform, identity)
    given = store_flags.options
    folder = cache_dir or (Path(target.cache_dir) if target.cache_dir is not None else None)
    check_options = CheckOptions(
        put=put,
        cache_dir=folder,
        cache_bytes=None if cache_bytes is None else parse_size(cache_bytes, name="--cache-bytes"),
        sample_bytes=max(1, parse_size(sample_size, name="--sample-size")),
        probe_bytes=parse_size(probe_size, name="--probe-size"),
        deadline_s=deadline,
    )
    show = _silent if as_json else _printer()
    report = asyncio.run(
        run_checks(
            target.url,
            options_for(target.url, {**target.storage_options, **given}),
            check_options,
            client=client_for(target.url, store_flags.client),
            on_finding=show,
        )
    )
    healthy = is_healthy(report.findings)
    if as_json:
        typer.echo(json.dumps(_as_json(target.url, report, healthy=healthy)))
    else:
        _print_forecast(report.forecast)
    if not healthy:
        raise typer.Exit(_UNHEALTHY)


def _target(url: str | None, terraform: Path | None, identity: Identity) -> Target:
    from concurrent_loader.doctor import Target, read_outputs

    if terraform is None:
        if url is None:
            raise typer.BadParameter("pass a URL, or --terraform FILE", param_hint="URL")
        return Target(url, {}, None)
    text = sys.stdin.read() if str(terraform) == "-" else terraform.read_text()
    found = read_outputs(text, identity=identity.value)
    return found if url is None else Target(url, found.storage_options, found.cache_dir)


def _as_json(url: str, report: Report, *, healthy: bool) -> dict[str, Any]:
    return {
        "url": url,
        "ok": healthy,
        "findings": [finding.as_json() for finding in report.findings],
        "forecast": report.forecast.as_json(),
    }


def _silent(finding: Finding) -> None:
    """Prints nothing, because standard output is one JSON object."""


def _printer() -> Callable[[Finding], None]:
    """Returns a function that prints each finding as soon as it is known."""
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)

    def show(finding: Finding) -> None:
        line = Text(f"{finding.level.value:<5}", style=_COLORS[finding.level.value])
        line.append(f"{finding.name:<{_NAME_WIDTH}} ", style="bold")
        line.append(finding.message, style="default")
        console.print(line)
        if finding.advice:
            console.print(Text(f"{'':{5 + _NAME_WIDTH}} → {finding.advice}", style="dim"))

    return show


def _print_forecast(forecast: Forecast) -> None:
    from concurrent_loader.storage.sizes import format_size

    for name, limit in (("first epoch", forecast.cold), ("later epochs, from the cache", forecast.warm)):
        if limit is not None:
            typer.echo(
                f"{name}: up to {limit.images_s:,.0f} images/s of {format_size(forecast.sample_bytes)}, "
                f"limited by the {limit.by}"
            )
