"""Implements `concurrent-loader ingest …`: imports data from other formats into a dataset of shards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from concurrent_loader.cli.options import (
    Client,
    EndpointUrl,
    InFlight,
    Json,
    Profile,
    Region,
    StorageOption,
    client_for,
    open_for_command,
    options_for,
    store_options,
)

if TYPE_CHECKING:
    from rich.progress import Progress

    from concurrent_loader.storage.importers.ingest import IngestReport

__all__ = ["app", "progress_bar"]

app = typer.Typer(no_args_is_help=True, help="Import data from another format into a dataset of shards.")

_MAX_SHOWN = 20
_SOURCE = "Source, if it differs from the destination"


class OnError(StrEnum):
    """Selects what happens to a file that cannot be imported."""

    FAIL = "fail"
    SKIP = "skip"


class Verify(StrEnum):
    """Selects how thoroughly each image is checked."""

    DECODE = "decode"
    HEADER = "header"
    NONE = "none"


class ImageType(StrEnum):
    """Selects the type of the image column."""

    JPEG = "jpeg"
    IMAGE = "image"


class Encoding(StrEnum):
    """Selects how the images of a column are encoded again."""

    LOSSLESS = "image=lossless"
    LOSSLESS_PACK = "image=lossless-pack"


@app.callback()
def ingest() -> None:
    """Import data from another format into a dataset of shards."""


@app.command("image-folder")
def image_folder(
    src: Annotated[str, typer.Argument(metavar="SRC", help="Folder or URL with one subfolder per class.")],
    dst: Annotated[str, typer.Argument(metavar="DST", help="URL of the dataset.")],
    *,
    shard_size: Annotated[str, typer.Option(help="Target size of a shard.")] = "8MiB",
    on_error: Annotated[OnError, typer.Option(help="Stop at the first bad file, or skip bad files.")] = OnError.FAIL,
    append: Annotated[bool, typer.Option("--append", help="Append to an existing dataset.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="With --append: add the source even if it was added before.")
    ] = False,
    token: Annotated[
        str | None, typer.Option(help="Name of this commit. A second commit with the same name adds nothing.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Commit a snapshot that contains only these images.")
    ] = False,
    classes: Annotated[bool, typer.Option(help="Make a label column from the subfolders.")] = True,
    shuffle: Annotated[bool, typer.Option(help="Shuffle the files; otherwise sort them by path.")] = True,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the shuffled order.")] = 0,
    image_type: Annotated[
        ImageType | None, typer.Option(help="Type of the image column. Default: by the file names.")
    ] = None,
    encode: Annotated[
        Encoding | None,
        typer.Option(
            metavar="COLUMN=FORMAT",
            help="Encode images again without loss (PNG, lossless WebP, TIFF and BMP): image=lossless, or "
            "image=lossless-pack without zstd, for decoding on a GPU.",
        ),
    ] = None,
    verify: Annotated[
        Verify, typer.Option(help="How to check each image: decode it, read its header, or not at all.")
    ] = Verify.DECODE,
    in_flight: InFlight = 32,
    uploads_in_flight: Annotated[int, typer.Option(min=1, help="Maximum number of uploads in flight.")] = 4,
    endpoint_url: EndpointUrl = None,
    region: Region = None,
    profile: Profile = None,
    storage_option: StorageOption = None,
    client: Client = "auto",
    src_endpoint_url: Annotated[
        str | None, typer.Option(help="URL of the S3 server of the source.", rich_help_panel=_SOURCE)
    ] = None,
    src_region: Annotated[
        str | None, typer.Option(help="Region of the source bucket.", rich_help_panel=_SOURCE)
    ] = None,
    src_profile: Annotated[
        str | None, typer.Option(help="AWS profile for the source.", rich_help_panel=_SOURCE)
    ] = None,
    src_storage_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Another option of the source's store. May be repeated.", rich_help_panel=_SOURCE
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Import images, one subfolder per class, from a folder or a bucket.

    Makes the columns image, label and path. Decodes every file first, to find damaged files before training does.
    """
    from concurrent_loader.storage.importers import ImageFolder
    from concurrent_loader.storage.importers.ingest import IngestProgress
    from concurrent_loader.storage.importers.ingest import ingest as run_ingest

    options = store_options(endpoint_url=endpoint_url, region=region, profile=profile, storage_option=storage_option)
    own = store_options(
        endpoint_url=src_endpoint_url, region=src_region, profile=src_profile, storage_option=src_storage_option
    )
    importer = ImageFolder(
        open_for_command(src, client=client, options={**options, **own}),
        classes=classes,
        shuffle_seed=seed if shuffle else None,
        image_type=image_type.value if image_type else None,
        encode=encode.value.partition("=")[2] if encode else None,
        verify=verify.value,
        in_flight=in_flight,
    )
    with progress_bar(in_bytes=False) as progress:
        task = progress.add_task("listing", total=None, rate="")

        def show(now: IngestProgress) -> None:
            skipped = f", {now.num_skipped} skipped" if now.num_skipped else ""
            rate = _rate(now.num_done - now.num_skipped, now.num_bytes, now.duration_s) if now.num_done else ""
            progress.update(
                task, description=f"images{skipped}", completed=now.num_done, total=now.num_total, rate=rate
            )

        report = run_ingest(
            importer,
            dst,
            on_error="skip" if on_error is OnError.SKIP else "fail",
            append=append,
            overwrite=overwrite,
            shard_size=shard_size,
            uploads_in_flight=uploads_in_flight,
            token=token,
            again=again,
            client=client_for(dst, client),
            storage_options=options_for(dst, options),
            on_progress=show,
        )
    if as_json:
        _print_json(report)
    else:
        _print(report, dst)


def _print(report: IngestReport, dst: str) -> None:
    from concurrent_loader.storage.printable import printable
    from concurrent_loader.storage.sizes import format_count, format_size

    manifest = report.manifest
    if report.repeats:
        typer.echo(
            f"nothing was added: {dst} already has this commit, as snapshot {manifest.snapshot} "
            "(pass --append --again to add the same files again)"
        )
        return
    typer.echo(
        f"{format_count(report.num_samples, 'image')}, {format_size(report.num_bytes)}, in {report.duration_s:.1f} s "
        f"({_rate(report.num_samples, report.num_bytes, report.duration_s)})\n"
        f"{dst} snapshot {manifest.snapshot}: {format_count(manifest.num_samples, 'sample')} in "
        f"{format_count(len(manifest.shards), 'shard')}, {format_size(manifest.num_bytes)}"
    )
    if report.num_ignored:
        were = "was" if report.num_ignored == 1 else "were"
        typer.echo(f"{format_count(report.num_ignored, 'other file')} {were} ignored")
    if report.skipped:
        were = "was" if report.num_skipped == 1 else "were"
        typer.echo(f"{format_count(report.num_skipped, 'file')} {were} skipped:", err=True)
        for problem in report.skipped[:_MAX_SHOWN]:
            typer.echo(f"  {printable(problem.name)}: {printable(problem.reason)}", err=True)
        if report.num_skipped > _MAX_SHOWN:
            typer.echo(f"  … and {report.num_skipped - _MAX_SHOWN} more", err=True)


def _rate(num_images: int, num_bytes: int, duration_s: float) -> str:
    seconds = max(duration_s, 1e-9)
    return f"{num_images / seconds:.0f} images/s, {num_bytes / seconds / 1e6:.1f} MB/s"


def _print_json(report: IngestReport) -> None:
    import json

    from concurrent_loader.storage.printable import printable

    manifest = report.manifest
    typer.echo(
        json.dumps(
            {
                "snapshot": manifest.snapshot,
                "digest": manifest.digest,
                "repeats": report.repeats,
                "num_samples": report.num_samples,
                "num_bytes": report.num_bytes,
                "num_ignored": report.num_ignored,
                "num_skipped": report.num_skipped,
                "skipped": [{"name": printable(each.name), "reason": each.reason} for each in report.skipped],
                "duration_s": report.duration_s,
                "dataset_num_samples": manifest.num_samples,
                "dataset_num_bytes": manifest.num_bytes,
                "dataset_num_shards": len(manifest.shards),
            }
        )
    )


@contextmanager
def progress_bar(*, in_bytes: bool) -> Iterator[Progress]:
    """Shows a progress bar while the block runs, if standard error is a terminal.

    Args:
        in_bytes: Whether totals are bytes. Otherwise totals are counts, and each task has a text field ``rate``.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    amounts: tuple[ProgressColumn, ...] = (MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    if in_bytes:
        amounts = (DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *amounts,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    ) as progress:
        yield progress
