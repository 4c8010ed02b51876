"""Implements `concurrent-loader ingest …`: imports data from other formats into a dataset of shards."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from concurrent_loader.cli.ingest_formats import add_formats
from concurrent_loader.cli.ingest_options import (
    Address,
    Again,
    Append,
    Dst,
    EngineOption,
    OnError,
    OnErrorOption,
    Overwrite,
    Part,
    Resume,
    ShardSize,
    SrcEndpointUrl,
    SrcProfile,
    SrcRegion,
    SrcStorageOption,
    Token,
    UploadsInFlight,
    Workers,
)
from concurrent_loader.cli.ingest_run import run_import
from concurrent_loader.cli.options import (
    InFlight,
    Json,
    StoreFlags,
    client_for,
    open_for_command,
    options_for,
    store_options,
    takes_store,
)

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Import data from another format into a dataset of shards.")


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
@takes_store
def image_folder(
    src: Annotated[str, typer.Argument(metavar="SRC", help="Folder or URL with one subfolder per class.")],
    dst: Dst,
    *,
    shard_size: ShardSize = "8MiB",
    on_error: OnErrorOption = OnError.FAIL,
    append: Append = False,
    again: Again = False,
    token: Token = None,
    overwrite: Overwrite = False,
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
    uploads_in_flight: UploadsInFlight = 4,
    workers: Workers = None,
    engine: EngineOption = "local",
    address: Address = None,
    part: Part = None,
    resume: Resume = True,
    store_flags: StoreFlags,
    src_endpoint_url: SrcEndpointUrl = None,
    src_region: SrcRegion = None,
    src_profile: SrcProfile = None,
    src_storage_option: SrcStorageOption = None,
    as_json: Json = False,
) -> None:
    """Import images, one subfolder per class, from a folder or a bucket.

    Makes the columns image, label and path. Decodes every file first, to find damaged files before training does.
    """
    from concurrent_loader.storage.importers import ImageFolder

    options = store_flags.options
    own = store_options(
        endpoint_url=src_endpoint_url, region=src_region, profile=src_profile, storage_option=src_storage_option
    )
    importer = ImageFolder(
        open_for_command(src, client=store_flags.client, options={**options, **own}),
        classes=classes,
        shuffle_seed=seed if shuffle else None,
        image_type=image_type.value if image_type else None,
        encode=encode.value.partition("=")[2] if encode else None,
        verify=verify.value,
        in_flight=in_flight,
    )
    run_import(
        importer, dst, noun="image", as_json=as_json, on_error=on_error.value, append=append, overwrite=overwrite,
        shard_size=shard_size, uploads_in_flight=uploads_in_flight, token=token, again=again,
        workers=workers, engine=engine, address=address, part=part, resume=resume,
        client=client_for(dst, store_flags.client), storage_options=options_for(dst, options),
    )  # fmt: skip


add_formats(app)
