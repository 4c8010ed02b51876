"""Implements `concurrent-loader adopt FORMAT SOURCE INDEX`: makes existing data a dataset without copying it."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concurrent_loader.cli.options import (
    Json,
    StoreFlags,
    options_for,
    takes_store,
)
from concurrent_loader.cli.progress import progress_bar

if TYPE_CHECKING:
    from concurrent_loader.storage.adopt import AdoptPlan, AdoptProgress, AdoptReport

__all__ = ["adopt"]

_HEADERS_PER_S = 32 / 0.03  # as many objects at the same time, at 30 ms to the first byte
_MB_PER_S = 300.0  # measured on one core by benchmarks.adopt; a slower network or drive takes longer


@takes_store
def adopt(
    format: Annotated[str, typer.Argument(metavar="FORMAT", help="webdataset, mds, litdata, tfrecord or parquet.")],  # noqa: A002
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Folder or URL of the data, which stays unchanged.")],
    index: Annotated[str, typer.Argument(metavar="INDEX", help="URL of the dataset to make.")],
    *,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TYPE", help="Type of a column, if not the derived one. May be repeated."),
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="NAME,…", help="Columns to adopt. Default: all.")] = None,
    match: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Pattern of the objects' keys, such as 'data/train-*'.")
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Adopt only the objects that the index lacks.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Commit a snapshot that contains only this source.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print columns, requests, bytes and price of the scan, and stop.")
    ] = False,
    headers_only: Annotated[
        bool,
        typer.Option(
            "--headers-only",
            help="Read headers and labels only: for large values. Their bytes are then not verified by digest.",
        ),
    ] = False,
    block_size: Annotated[
        int | None, typer.Option(min=1, help="Tokens per sample, for LitData chunks of TokensLoader.")
    ] = None,
    shard_size: Annotated[str, typer.Option(help="Target size of a virtual shard, which is one request.")] = "8MiB",
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Objects to scan at the same time. Default: one per processor, at most 8; with --headers-only, 32.",
        ),
    ] = None,
    store_flags: StoreFlags,
    as_json: Json = False,
) -> None:
    """Make data of another format a dataset, without copying it.

    Reads every byte of SOURCE once, for digests and positions, and writes an index. With --headers-only it reads only
    positions. Nothing at SOURCE is changed. An interrupted run continues where it stopped.
    """
    from concurrent_loader.storage.adopt import adopt as run_adopt

    options = store_flags.options
    with progress_bar(in_bytes=True) as progress:
        task = progress.add_task("listing", total=None)

        def show(now: AdoptProgress) -> None:
            progress.update(
                task,
                description=f"scanning, {now.num_objects} of {now.num_objects_total} objects",
                completed=now.num_bytes,
                total=now.num_bytes_total,
            )

        report = run_adopt(
            format,
            source,
            index,
            columns=dict(_named(each) for each in column or []),
            only=None if only is None else [name for name in only.split(",") if name],
            match=match,
            append=append,
            overwrite=overwrite,
            dry_run=dry_run,
            headers_only=headers_only,
            block_size=block_size,
            shard_size=shard_size,
            num_threads=threads,
            client=store_flags.client,
            storage_options=options_for(index, options),
            source_options=options_for(source, options),
            on_progress=show,
        )
    if as_json:
        typer.echo(json.dumps(_facts(report)))
    else:
        _print(report, index, headers_only=headers_only)


def _named(text: str) -> tuple[str, str]:
    name, separator, type_ = text.partition("=")
    if not separator or not name or not type_:
        raise typer.BadParameter(f"{text!r} does not have the form NAME=TYPE", param_hint="--column")
    return name, type_


def _facts(report: AdoptReport) -> dict[str, Any]:
    manifest = report.manifest
    return {
        **dataclasses.asdict(report.plan),
        "dollars": report.plan.dollars,
        "headers_dollars": report.plan.headers_dollars,
        "snapshot": manifest.snapshot if manifest is not None else None,
        "num_samples": report.num_samples,
        "num_resumed": report.num_resumed,
        "index_bytes": report.index_bytes,
        "duration_s": report.duration_s,
    }


def _print(report: AdoptReport, index: str, *, headers_only: bool) -> None:
    from concurrent_loader.storage.sizes import format_count, format_size

    _print_plan(report.plan)
    manifest = report.manifest
    if manifest is None:
        return
    if not report.num_samples:
        typer.echo(f"{index} snapshot {manifest.snapshot} has all of them already; nothing was added")
        return
    pace = f" ({report.plan.num_bytes / max(report.duration_s, 1e-9) / 1e6:.0f} MB/s)" if not headers_only else ""
    typer.echo(
        f"{format_count(report.num_samples, 'sample')} adopted in {report.duration_s:.1f} s{pace}; "
        f"index {format_size(report.index_bytes)}\n"
        f"{index} snapshot {manifest.snapshot}: {format_count(manifest.num_samples, 'sample')} in "
        f"{format_count(len(manifest.shards), 'virtual shard')}"
    )
    if report.num_resumed:
        typer.echo(f"{format_count(report.num_resumed, 'object')} of an earlier, interrupted run were not read again")
    if headers_only:
        typer.echo(
            "the samples have no digests: their length and the ETags of the objects are checked, not their bytes"
        )


def _print_plan(plan: AdoptPlan) -> None:
    from concurrent_loader.storage.sizes import format_count, format_size

    columns = ", ".join(f"{name}: {type_}" for name, type_ in plan.columns.items())
    minutes = plan.num_bytes / 1e6 / _MB_PER_S / 60
    lines = [
        (
            f"{format_count(plan.num_objects, 'object')}, {format_size(plan.num_bytes)}, "
            f"{format_count(plan.num_requests, 'GET request')} (${plan.dollars:.4f}), "
            f"about {minutes:.1f} min on one core"
        )
    ]
    if plan.headers_requests is not None and plan.headers_bytes is not None:
        minutes = plan.headers_requests / _HEADERS_PER_S / 60
        lines.append(
            f"with --headers-only: about {format_size(plan.headers_bytes)}, "
            f"{format_count(plan.headers_requests, 'GET request')} (${plan.headers_dollars:.4f}), {minutes:.1f} min; "
            "samples then have no digests"
        )
    typer.echo("\n".join([*lines, f"columns: {columns or 'none'}"]))
    if plan.num_ignored:
        typer.echo(f"{format_count(plan.num_ignored, 'other object')} ignored")
