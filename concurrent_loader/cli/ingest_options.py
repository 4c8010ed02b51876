"""Defines the options that all commands of `concurrent-loader ingest` share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import typer

__all__ = [
    "Address",
    "Again",
    "Append",
    "Dst",
    "Engine",
    "EngineOption",
    "OnError",
    "OnErrorOption",
    "Overwrite",
    "Part",
    "Resume",
    "ShardSize",
    "SrcEndpointUrl",
    "SrcProfile",
    "SrcRegion",
    "SrcStorageOption",
    "Token",
    "UploadsInFlight",
    "Workers",
]

_MANY = "Many processes and machines"
_SOURCE = "Source, if it differs from the destination"


class OnError(StrEnum):
    """Selects what happens to a sample that cannot be imported."""

    FAIL = "fail"
    SKIP = "skip"


Engine = Literal["local", "ray"]

Dst = Annotated[str, typer.Argument(metavar="DST", help="URL of the dataset.")]
ShardSize = Annotated[str, typer.Option(help="Target size of a shard.")]
OnErrorOption = Annotated[OnError, typer.Option(help="Stop at the first bad sample, or skip bad samples.")]
Append = Annotated[bool, typer.Option("--append", help="Append to an existing dataset.")]
Again = Annotated[bool, typer.Option("--again", help="With --append: add the source even if it was added before.")]
Token = Annotated[
    str | None, typer.Option(help="Name of this commit. A second commit with the same name adds nothing.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Commit a snapshot that contains only this source.")]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of processes, for a source of many files. Default: one per core, or with Ray one per CPU of the "
        "cluster.",
        rich_help_panel=_MANY,
    ),
]
EngineOption = Annotated[
    Engine, typer.Option("--engine", help="Where the processes run: on this machine, or on Ray.", rich_help_panel=_MANY)
]
Address = Annotated[str | None, typer.Option(help="With --engine ray: address of the cluster.", rich_help_panel=_MANY)]
Part = Annotated[
    str | None,
    typer.Option(
        metavar="K/N",
        help="Write only the K-th of N shares, from 1/N to N/N, and do not commit; `concurrent-loader commit` does it "
        "when all are written.",
        rich_help_panel=_MANY,
    ),
]
Resume = Annotated[
    bool, typer.Option(help="Continue an interrupted run of the same import, or begin again.", rich_help_panel=_MANY)
]
UploadsInFlight = Annotated[int, typer.Option(min=1, help="Maximum number of uploads in flight.")]
SrcEndpointUrl = Annotated[
    str | None, typer.Option(help="URL of the S3 server of the source.", rich_help_panel=_SOURCE)
]
SrcRegion = Annotated[str | None, typer.Option(help="Region of the source bucket.", rich_help_panel=_SOURCE)]
SrcProfile = Annotated[str | None, typer.Option(help="AWS profile for the source.", rich_help_panel=_SOURCE)]
SrcStorageOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE", help="Another option of the source's store. May be repeated.", rich_help_panel=_SOURCE
    ),
]
