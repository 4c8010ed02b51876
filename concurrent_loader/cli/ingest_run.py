"""Runs an importer for a command: progress, report, JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import typer

from concurrent_loader.cli.ingest_share import num_cores, parse_share, run_share
from concurrent_loader.cli.progress import progress_bar

if TYPE_CHECKING:
    from concurrent_loader.storage.importers import Importer
    from concurrent_loader.storage.importers.ingest import IngestProgress, IngestReport

__all__ = ["print_import", "run_import"]

_MAX_SHOWN = 20


def run_import(
    importer: Importer,
    dst: str,
    *,
    noun: str,
    as_json: bool,
    workers: int | None,
    engine: Literal["local", "ray"],
    address: str | None,
    part: str | None,
    resume: bool,
    **options: Any,
) -> None:
    """Imports a source with a progress bar, and prints the report.

    Args:
        importer: Source of the samples.
        dst: URL of the dataset.
        noun: What a sample is called, such as ``"image"``.
        as_json: Whether to print one JSON object.
        workers: Number of processes; None for one per core.
        engine: ``"local"`` or ``"ray"``.
        address: Address of the Ray cluster, or None.
        part: Share to write, as ``"K/N"``; None to write all and commit.
        resume: Whether to continue an interrupted run.
        **options: Options of `concurrent_loader.storage.importers.ingest.ingest`.
    """
    from concurrent_loader.storage.importers.ingest import ingest

    if workers is None and engine == "local":
        workers = num_cores()
    if part is not None:
        if engine != "local":
            raise typer.BadParameter("a share is written by this machine; leave out --engine", param_hint="--part")
        run_share(importer, dst, parse_share(part), workers=workers or 1, resume=resume, as_json=as_json, **options)
        return
    with progress_bar(in_bytes=False) as progress:
        task = progress.add_task("listing", total=None, rate="")

        def show(now: IngestProgress) -> None:
            skipped = f", {now.num_skipped} skipped" if now.num_skipped else ""
            rate = _rate(now.num_done - now.num_skipped, now.num_bytes, now.duration_s, noun) if now.num_done else ""
            progress.update(
                task, description=f"{noun}s{skipped}", completed=now.num_done, total=now.num_total, rate=rate
            )

        report = ingest(
            importer, dst, on_progress=show, workers=workers, engine=engine, address=address, resume=resume, **options
        )  # fmt: skip
    print_import(report, dst, noun=noun, as_json=as_json)


def print_import(report: IngestReport, dst: str, *, noun: str, as_json: bool) -> None:
    """Prints the report of an import."""
    if as_json:
        _print_json(report)
    else:
        _print_report(report, dst, noun=noun)


def _print_report(report: IngestReport, dst: str, *, noun: str) -> None:
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
        f"{format_count(report.num_samples, noun)}, {format_size(report.num_bytes)}, in {report.duration_s:.1f} s "
        f"({_rate(report.num_samples, report.num_bytes, report.duration_s, noun)})\n"
        f"{dst} snapshot {manifest.snapshot}: {format_count(manifest.num_samples, 'sample')} in "
        f"{format_count(len(manifest.shards), 'shard')}, {format_size(manifest.num_bytes)}"
    )
    if report.num_ignored:
        were = "was" if report.num_ignored == 1 else "were"
        typer.echo(f"{format_count(report.num_ignored, 'other file')} {were} ignored")
    if report.skipped:
        were = "was" if report.num_skipped == 1 else "were"
        typer.echo(
            f"{format_count(report.num_skipped, noun if noun == 'sample' else 'file')} {were} skipped:", err=True
        )
        for problem in report.skipped[:_MAX_SHOWN]:
            typer.echo(f"  {printable(problem.name)}: {printable(problem.reason)}", err=True)
        if report.num_skipped > _MAX_SHOWN:
            typer.echo(f"  … and {report.num_skipped - _MAX_SHOWN} more", err=True)


def _rate(number: int, num_bytes: int, duration_s: float, noun: str) -> str:
    seconds = max(duration_s, 1e-9)
    return f"{number / seconds:.0f} {noun}s/s, {num_bytes / seconds / 1e6:.1f} MB/s"


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
