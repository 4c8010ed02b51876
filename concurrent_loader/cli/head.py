"""Implements `concurrent-loader head URL` and `show URL ID`: samples as text in the terminal."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concurrent_loader.cli.info import Url
from concurrent_loader.cli.open_reader import open_reader
from concurrent_loader.cli.options import Snapshot, StoreFlags, takes_store

if TYPE_CHECKING:
    from concurrent_loader.storage.shards.format.schema import Schema

__all__ = ["head", "show"]

_HEAD_VALUE_BYTES = 4 << 20
_SHOW_VALUE_BYTES = 64 << 20

Columns = Annotated[list[str] | None, typer.Option("--column", help="Column to show. May be repeated. Default: all.")]


@takes_store
def head(
    url: Url,
    *,
    num: Annotated[int, typer.Option("--num", "-n", min=1, max=1000, help="Number of samples.")] = 8,
    start: Annotated[int, typer.Option(min=0, help="Number of the first sample.")] = 0,
    column: Columns = None,
    snapshot: Snapshot = None,
    store_flags: StoreFlags,
) -> None:
    """Show the first samples of a dataset, one line per column.

    Values above 4 MiB are not fetched; their size is shown instead.
    """
    options = store_flags.options
    total, schema, metadata, samples = asyncio.run(
        _read(url, range(start, start + num), column, _HEAD_VALUE_BYTES, store_flags.client, options, snapshot)
    )
    if not samples:
        raise typer.BadParameter(f"the dataset has only {total:,} samples", param_hint="--start")
    width = shutil.get_terminal_size().columns
    for number, sample in samples:
        typer.echo("\n".join(_short_lines(number, sample, schema, metadata, width)))
    left = total - samples[-1][0] - 1
    typer.echo(f"… {left:,} more of {total:,} samples" if left else f"{total:,} samples")


@takes_store
def show(
    url: Url,
    sample_id: Annotated[int, typer.Argument(metavar="ID", min=0, help="Number of the sample, from 0.")],
    *,
    column: Columns = None,
    snapshot: Snapshot = None,
    store_flags: StoreFlags,
) -> None:
    """Show one sample in full: whole strings, indented JSON, arrays of up to 1,000 numbers.

    Values above 64 MiB are not fetched; their size is shown instead.
    """
    options = store_flags.options
    total, schema, metadata, samples = asyncio.run(
        _read(url, range(sample_id, sample_id + 1), column, _SHOW_VALUE_BYTES, store_flags.client, options, snapshot)
    )
    if not samples:
        raise typer.BadParameter(
            f"sample {sample_id} does not exist in a dataset of {total:,} samples", param_hint="ID"
        )
    typer.echo("\n".join(_full_lines(*samples[0], schema, metadata)))


async def _read(
    url: str,
    numbers: range,
    columns: list[str] | None,
    max_value_bytes: int,
    client: str,
    options: dict[str, Any],
    snapshot: str | None,
) -> tuple[int, Schema, dict[str, Any], list[tuple[int, dict[str, Any]]]]:
    from concurrent_loader.preview.read_sample import read_sample
    from concurrent_loader.storage.map_concurrently import map_concurrently

    async with open_reader(url, client=client, options=options, snapshot=snapshot) as reader:
        existing = range(numbers.start, min(numbers.stop, len(reader)))
        samples = await map_concurrently(
            lambda number: read_sample(reader, number, columns, max_value_bytes=max_value_bytes), existing
        )
        return (
            len(reader),
            reader.schema,
            dict(reader.manifest.metadata),
            list(zip(existing, samples, strict=True)),
        )


def _short_lines(
    number: int, sample: dict[str, Any], schema: Schema, metadata: dict[str, Any], width: int
) -> list[str]:
    from rich.cells import cell_len, set_cell_size

    from concurrent_loader.preview.class_counts import class_names
    from concurrent_loader.preview.value_text import short_text

    widest = max(map(len, sample))
    lines = [f"sample {number}"]
    for name, value in sample.items():
        line = f"  {name:<{widest}}  {short_text(schema[name], value, class_names(metadata, name))}"
        lines.append(line if cell_len(line) <= width else f"{set_cell_size(line, max(width - 2, 1))} …")
    return lines


def _full_lines(number: int, sample: dict[str, Any], schema: Schema, metadata: dict[str, Any]) -> list[str]:
    from concurrent_loader.preview.class_counts import class_names
    from concurrent_loader.preview.value_text import full_text

    lines = [f"sample {number}"]
    for name, value in sample.items():
        lines.append(f"{name}: {schema[name].type}")
        lines += [f"  {line}" for line in full_text(schema[name], value, class_names(metadata, name))]
    return lines
