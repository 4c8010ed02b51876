"""Writes one share of an import for `concurrent-loader ingest … --part K/N`, without a commit."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

import typer

from concurrent_loader.cli.progress import progress_bar

if TYPE_CHECKING:
    from concurrent_loader.storage.importers import Importer

__all__ = ["num_cores", "parse_share", "run_share"]


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def parse_share(text: str) -> tuple[int, int]:
    """Returns the numbers of ``K/N``.

    Raises:
        typer.BadParameter: The text has another form, or K is not 1 to N.
    """
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise typer.BadParameter(f"expected K/N with K from 1 to N, such as 17/256, got {text!r}", param_hint="--part")
    return int(match[1]), int(match[2])


def run_share(
    importer: Importer, dst: str, share: tuple[int, int], *, workers: int, resume: bool, as_json: bool, **options: Any
) -> None:
    """Plans an import, and writes every N-th part of it.

    Args:
        importer: Source of the samples.
        dst: URL of the dataset.
        share: Numbers K and N of the share.
        workers: Number of processes.
        resume: Whether parts that are written already are left as they are.
        as_json: Whether to print one JSON object.
        **options: Options of `plan_parts`, and ``uploads_in_flight``.
    """
    from concurrent_loader.storage.importers.part_processes import PartTarget, write_parts
    from concurrent_loader.storage.importers.parts import plan_parts
    from concurrent_loader.storage.sizes import format_count, format_size

    number, of = share
    uploads = options.pop("uploads_in_flight")
    parts = plan_parts(importer, dst, **options)
    mine = parts[number - 1 :: of]
    target = PartTarget(dst, options["client"], dict(options["storage_options"]), uploads, resume)
    num_samples = num_bytes = num_skipped = 0
    with progress_bar(in_bytes=False) as progress:
        task = progress.add_task("parts", total=len(mine), rate="")
        for done in write_parts(mine, target, lambda _: None, num_workers=workers):
            num_samples += done.num_samples
            num_bytes += done.num_bytes
            num_skipped += len(done.skipped)
            progress.update(task, advance=1, rate=format_size(num_bytes))
    if as_json:
        facts = {"plan": parts[0].plan, "num_parts": len(parts), "num_written": len(mine)}
        typer.echo(
            json.dumps({**facts, "num_samples": num_samples, "num_bytes": num_bytes, "num_skipped": num_skipped})
        )
        return
    typer.echo(
        f"share {number}/{of}: {format_count(len(mine), 'part')} of {len(parts)}, "
        f"{format_count(num_samples, 'sample')}, {format_size(num_bytes)}, {num_skipped} skipped\n"
        f"when all shares are written: concurrent-loader commit {dst} --plan {parts[0].plan}"
    )
