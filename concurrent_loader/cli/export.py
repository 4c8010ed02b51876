"""Implements `concurrent-loader export DATASET FORMAT DST`: writes a dataset in another format."""

from __future__ import annotations

import dataclasses
import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from concurrent_loader.cli.options import (
    InFlight,
    Json,
    Snapshot,
    StoreFlags,
    client_for,
    options_for,
    parse_snapshot,
    store_options,
    takes_store,
)
from concurrent_loader.cli.progress import progress_bar

if TYPE_CHECKING:
    from concurrent_loader.storage.exporters.export import ExportReport
    from concurrent_loader.storage.exporters.write_files import ExportProgress

__all__ = ["export"]

_DESTINATION = "Destination, if it differs from the dataset"


class Format(StrEnum):
    """Selects the format to write."""

    WEBDATASET = "webdataset"
    PARQUET = "parquet"
    IMAGE_FOLDER = "image-folder"
    MDS = "mds"


@takes_store
def export(
    url: Annotated[str, typer.Argument(metavar="DATASET", help="URL of the dataset.")],
    format_: Annotated[
        Format, typer.Argument(metavar="FORMAT", help="webdataset, parquet, image-folder or mds (MosaicML Streaming).")
    ],
    dst: Annotated[str, typer.Argument(metavar="DST", help="Folder or URL to write to; must be empty.")],
    *,
    snapshot: Snapshot = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=NEWNAME],…", help="Columns to export, and their new names. May be repeated. Default: all."
        ),
    ] = None,
    key_column: Annotated[
        str | None,
        typer.Option(help="Column of type str that names the samples (webdataset, image-folder). Default: numbers."),
    ] = None,
    shard_size: Annotated[str, typer.Option(help="Target size of a file.")] = "256MiB",
    workers: Annotated[int, typer.Option(min=1, help="Number of files written at once.")] = 4,
    in_flight: InFlight = 16,
    scratch_dir: Annotated[
        str | None,
        typer.Option(help="Local folder for files until they are uploaded. Default: the system's temporary folder."),
    ] = None,
    store_flags: StoreFlags,
    dst_endpoint_url: Annotated[
        str | None, typer.Option(help="URL of the S3 server of the destination.", rich_help_panel=_DESTINATION)
    ] = None,
    dst_region: Annotated[
        str | None, typer.Option(help="Region of the destination bucket.", rich_help_panel=_DESTINATION)
    ] = None,
    dst_profile: Annotated[
        str | None, typer.Option(help="AWS profile for the destination.", rich_help_panel=_DESTINATION)
    ] = None,
    dst_storage_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Another option of the destination's store. May be repeated.",
            rich_help_panel=_DESTINATION,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a dataset in another format. Encoded images and bytes keep every byte.

    Verifies every value before it writes it. Repeat an interrupted command to continue: finished files stay.
    """
    from concurrent_loader.storage.exporters.export import export as run_export

    options = store_flags.options
    own = store_options(
        endpoint_url=dst_endpoint_url, region=dst_region, profile=dst_profile, storage_option=dst_storage_option
    )
    with progress_bar(in_bytes=True) as progress:
        task = progress.add_task("exporting", total=None)

        def show(now: ExportProgress) -> None:
            progress.update(task, completed=now.num_bytes, total=now.num_bytes_total)

        report = run_export(
            url,
            dst,
            format_.value,
            snapshot=parse_snapshot(snapshot),
            columns=_renamed(columns),
            key_column=key_column,
            shard_size=shard_size,
            workers=workers,
            in_flight=in_flight,
            scratch_dir=scratch_dir,
            client=client_for(url, store_flags.client),
            storage_options=options_for(url, options),
            dst_client=client_for(dst, store_flags.client),
            dst_storage_options=options_for(dst, {**options, **own}),
            on_progress=show,
        )
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(report)))
    else:
        _print(report)


def _renamed(columns: list[str] | None) -> dict[str, str] | None:
    if columns is None:
        return None
    renamed: dict[str, str] = {}
    for text in (text.strip() for each in columns for text in each.split(",")):
        name, separator, new = text.partition("=")
        if not name or (separator and not new) or name in renamed:
            raise typer.BadParameter(
                "columns must have the form NAME or NAME=NEWNAME, each name once", param_hint="--columns"
            )
        renamed[name] = new or name
    return renamed


def _print(report: ExportReport) -> None:
    from concurrent_loader.storage.sizes import format_count, format_size

    if report.repeats:
        typer.echo(f"nothing was written: {report.url} already holds this export, complete")
        return
    rate = report.num_bytes / max(report.duration_s, 1e-9) / 1e6
    kept = "" if not report.num_kept else f"; {format_count(report.num_kept, 'finished file')} kept"
    typer.echo(
        f"{format_count(report.num_samples, 'sample')} of snapshot {report.snapshot} in "
        f"{format_count(report.num_files, 'file')}, {format_size(report.num_bytes)}, in {report.duration_s:.1f} s "
        f"({rate:.1f} MB/s){kept}\n{report.url} ({report.format})"
    )
