"""Exports a snapshot to another format: reads verified shards, writes files, and continues an unfinished export."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from concurrent_loader.storage.cache.open_cache import open_shard_cache
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.exporters.destination import Destination
from concurrent_loader.storage.exporters.plan import ExportJob, plan_files
from concurrent_loader.storage.exporters.protocol import ExportFormat, ExportSpec, WrittenFile
from concurrent_loader.storage.exporters.registry import FormatName, find_export_format
from concurrent_loader.storage.exporters.rows import check_key_column, export_columns
from concurrent_loader.storage.exporters.write_files import ExportProgress, FilesWriter
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.fetch.engine import InFlight
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.shards.manifest.live_rows import LiveRows
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.snapshots import SnapshotName, load_manifest
from concurrent_loader.storage.shards.shard_fetcher import OpenSource, check_source
from concurrent_loader.storage.sizes import Size, parse_size
from concurrent_loader.storage.stores.backends.open_store import open_for, open_store
from concurrent_loader.storage.stores.store import Store

__all__ = ["ExportOptions", "ExportReport", "export", "export_snapshot"]

_IDENTITY_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of an export that do not depend on where it is written.

    Attributes:
        columns: Names of the columns to export, or a mapping of names to new names; all columns by default.
        key_column: Column of type str that names the samples; by default they are numbered.
        shard_bytes: Target size of a file.
        workers: Number of files written at once.

    Raises:
        ConfigurationError: An option is out of range.
    """

    columns: Sequence[str] | Mapping[str, str] | None = None
    key_column: str | None = None
    shard_bytes: int = 256 << 20
    workers: int = 4

    def __post_init__(self) -> None:
        if self.shard_bytes < 1:
            raise ConfigurationError("shard_size must be at least 1 byte", got=self.shard_bytes)
        if isinstance(self.workers, bool) or not isinstance(self.workers, int) or self.workers < 1:
            raise ConfigurationError("workers must be an integer of at least 1", got=self.workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """The result of an export.

    Attributes:
        url: URL of the destination.
        format: Name of the format.
        snapshot: Number of the exported snapshot.
        num_samples: Number of samples in the export.
        num_files: Number of files with samples; for an image folder, number of images.
        num_bytes: Size of these files in bytes; for an image folder, size of the images that this call wrote.
        num_kept: Number of files that an earlier call had finished; for an image folder, number of parts.
        duration_s: Seconds from the first request to the end.
        repeats: Whether the destination already held this export, complete, so that nothing was written.

    Example:
        >>> from concurrent_loader import export
        >>> report = export("photos", "photos-tar", format="webdataset")
        >>> report.num_samples, report.num_files, report.repeats
        (20, 1, False)
    """

    url: str
    format: str
    snapshot: int
    num_samples: int
    num_files: int
    num_bytes: int
    num_kept: int
    duration_s: float
    repeats: bool = False


@hides_secrets
def export(
    url: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    format: FormatName,  # noqa: A002
    *,
    snapshot: SnapshotName | None = None,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    key_column: str | None = None,
    shard_size: Size = "256MiB",
    workers: int = 4,
    in_flight: InFlight = 16,
    scratch_dir: str | os.PathLike[str] | None = None,
    client: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
    dst_client: str = "auto",
    dst_storage_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[ExportProgress], None] | None = None,
) -> ExportReport:
    """Exports a dataset to another format. Encoded images and bytes keep every byte.

    Every value is verified before it is written. A call that was interrupted continues if it is repeated: finished
    files stay. Memory is bounded by the shards that are read at once (at most 256 MiB, or one larger shard) and by one
    row group or sample per worker.

    Args:
        url: URL of the dataset.
        dst: Folder or URL to write to. It must be empty, or hold the same export, unfinished.
        format: ``"webdataset"``, ``"parquet"``, ``"image-folder"`` or ``"mds"``.
        snapshot: Number of the snapshot, a tag, or a time; the newest by default.
        columns: Names of the columns to export, or a mapping of names to new names; all columns by default.
        key_column: Column of type str that names the samples (WebDataset, image folder); by default they are numbered.
        shard_size: Target size of a file, 256 MiB by default.
        workers: Number of files written at once, 4 by default.
        in_flight: Upper bound of requests in flight to the dataset's store, 16 by default.
        scratch_dir: Local folder for files that are uploaded when they are complete; needs ``workers`` times
            ``shard_size``. Default: the system's temporary folder. A local destination does not use it.
        client: Client library of the dataset's store.
        storage_options: Options of the dataset's store.
        source_options: Options of the store of adopted data; by default those of the dataset's store.
        dst_client: Client library of the destination's store.
        dst_storage_options: Options of the destination's store.
        on_progress: Callback for progress, called on a thread of the export.

    Raises:
        AlreadyExists: The destination holds something else.
        ConfigurationError: An option is invalid, or the format cannot hold the columns.
        SchemaError: A column does not exist, or the format cannot hold a value.
        CorruptData: A value differs from what was written. Files before it are complete, and its own is not written.
        StorageError: Source or destination failed, or a local drive is full.

    Example:
        >>> from concurrent_loader import export
        >>> export("photos", "photos-folder", format="image-folder").num_files
        20
    """
    options = ExportOptions(
        columns=columns, key_column=key_column, shard_bytes=parse_size(shard_size, name="shard_size"), workers=workers
    )
    find_export_format(format)

    async def run() -> ExportReport:
        async with (
            open_store(url, client=client, **(storage_options or {})) as source,
            open_store(dst, client=dst_client, **(dst_storage_options or {})) as store,
        ):
            engine = FetchEngine(source, in_flight=in_flight)
            own = (storage_options if source_options is None else source_options) or {}

            def open_source(adopted: str) -> FetchEngine:
                if source_options is None:
                    check_source(source.url, adopted)
                return FetchEngine(open_for(adopted, client, own), in_flight=in_flight)

            return await export_snapshot(
                engine, store, format, snapshot=snapshot, options=options, scratch_dir=scratch_dir,
                on_progress=on_progress,
                open_source=open_source,
            )  # fmt: skip

    with LoopThread("storage-export") as loop:
        return loop.run(run())


async def export_snapshot(
    engine: FetchEngine,
    store: Store,
    format_name: str,
    *,
    snapshot: SnapshotName | None = None,
    options: ExportOptions | None = None,
    scratch_dir: str | os.PathLike[str] | None = None,
    on_progress: Callable[[ExportProgress], None] | None = None,
    open_source: OpenSource | None = None,
) -> ExportReport:
    """Exports a snapshot, as `export` does, from an engine to a store; neither is closed.

    The engine's retry policy holds for both.

    Cancellation: Waits for the file operation that is running. Finished files stay.
    """
    began = time.monotonic()
    options = options or ExportOptions()
    _check_apart(engine.store.url, store.url)
    manifest = await load_manifest(engine, snapshot)
    find_format = find_export_format(format_name)
    check_key_column(manifest, options.key_column)
    columns = export_columns(manifest, options.columns)
    jobs, output = await asyncio.to_thread(_plan, manifest, find_format, columns, options)
    files = [file for job in jobs for file in job.files]
    names = {output.file_name(file.number): file for file in files}
    destination = Destination(store, scratch_dir=scratch_dir, retry=engine.policy)
    identity = {
        "version": _IDENTITY_VERSION,
        "format": format_name,
        "snapshot": manifest.snapshot,
        "dataset": manifest.digest,
        "columns": [[column.source, column.name] for column in columns],
        "key_column": options.key_column,
        "shard_size": options.shard_bytes,
    }
    found, is_complete = await destination.begin(identity, names)
    kept = {name: size for name, size in found.items() if name in names}
    num_bytes = sum(kept.values())
    if not is_complete:
        cache = open_shard_cache(engine, None, open_source=open_source)
        writer = FilesWriter(manifest, cache, destination, output, columns, options.key_column, on_progress)
        try:
            written = await writer.write(jobs, {names[name].number for name in kept}, workers=options.workers)
        finally:
            await cache.close()
        sizes = {**kept, **written}
        num_bytes = writer.num_bytes_written if output.is_file_per_sample else sum(sizes.values())
        index = [
            WrittenFile(name=name, num_samples=file.num_samples, num_bytes=sizes[name]) for name, file in names.items()
        ]
        await writer.finish(index)
    return ExportReport(
        url=store.url,
        format=format_name,
        snapshot=manifest.snapshot,
        num_samples=manifest.num_samples,
        num_files=manifest.num_samples if output.is_file_per_sample else len(files),
        num_bytes=num_bytes,
        num_kept=len(files) if is_complete else len(kept),
        duration_s=time.monotonic() - began,
        repeats=is_complete,
    )


def _plan(
    manifest: Manifest, find_format: Callable[[ExportSpec], ExportFormat], columns: Any, options: ExportOptions
) -> tuple[list[ExportJob], ExportFormat]:
    """Returns the division into files and the format; the format is created twice, because it names their number."""

    def create(num_files: int) -> ExportFormat:
        return find_format(
            ExportSpec(
                columns=columns, num_samples=manifest.num_samples, num_files=num_files, key_column=options.key_column
            )
        )

    table = manifest.table
    counts = np.diff(LiveRows(manifest).first_samples)
    sizes = (table.sizes * (counts / np.maximum(1, table.num_samples))).astype(np.int64)  # of the live rows, estimated
    jobs = plan_files(
        counts.tolist(), sizes.tolist(), target_bytes=options.shard_bytes,
        min_files=create(0).min_files,
    )  # fmt: skip
    return jobs, create(sum(len(job.files) for job in jobs))


def _check_apart(source: str, destination: str) -> None:
    """Checks that neither of two folders contains the other.

    Raises:
        ConfigurationError: One contains the other.
    """
    if f"{destination}/".startswith(f"{source}/") or f"{source}/".startswith(f"{destination}/"):
        raise ConfigurationError("the destination must be outside of the dataset", url=destination, got=source)
