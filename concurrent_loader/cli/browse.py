"""Implements `concurrent-loader browse URL`: makes one HTML page of a sample of a dataset."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from concurrent_loader.cli.info import Url
from concurrent_loader.cli.open_reader import open_reader
from concurrent_loader.cli.options import Snapshot, StoreFlags, takes_store

__all__ = ["browse"]

_MAX_BYTES = 20_000_000


class BoxFormat(StrEnum):
    """Selects the meaning of the four numbers of a box."""

    AUTO = "auto"
    XYXY = "xyxy"
    XYWH = "xywh"
    CXCYWH = "cxcywh"


@takes_store
def browse(
    url: Url,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("browse.html"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    num: Annotated[int, typer.Option("--num", "-n", min=1, max=2000, help="Number of samples.")] = 120,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random choice.")] = 0,
    boxes: Annotated[BoxFormat, typer.Option(help="Meaning of the four numbers of a box.")] = BoxFormat.AUTO,
    snapshot: Snapshot = None,
    store_flags: StoreFlags,
) -> None:
    """Make one HTML page with thumbnails, labels, boxes, masks, counts per class and histograms.

    The page shows a random sample, for which at most 20 MB are fetched, and the manifest. It contains everything that
    it shows, and loads nothing.
    """
    from concurrent_loader.storage.sizes import format_size

    if output.exists() and not overwrite:
        raise typer.BadParameter(f"{output} exists: pass --overwrite, or another file", param_hint="--output")
    options = store_flags.options
    page, num_shown, fetched_bytes = asyncio.run(
        _page(url, num, seed, boxes.value, store_flags.client, options, snapshot)
    )
    output.write_text(page, encoding="utf-8")
    typer.echo(f"{output}: {num_shown:,} samples, {format_size(fetched_bytes)} fetched")


async def _page(
    url: str, num: int, seed: int, box_format: str, client: str, options: dict[str, Any], snapshot: str | None
) -> tuple[str, int, int]:
    from concurrent_loader.preview.collect import collect
    from concurrent_loader.preview.page import make_page
    from concurrent_loader.preview.picture_columns import PictureColumns

    async with open_reader(url, client=client, options=options, snapshot=snapshot) as reader:
        drawn = PictureColumns.of(reader.schema).names
        payload = {column.name for column in reader.schema.payload}
        columns = [name for name in reader.schema.names if name in drawn or name not in payload]
        found = await collect(reader, columns, num_samples=num, max_bytes=_MAX_BYTES, seed=seed)
        return (
            make_page(reader.engine.store.url, reader.manifest, found, box_format=box_format),
            len(found.samples),
            found.fetched_bytes,
        )
