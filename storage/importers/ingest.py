"""Imports another format into a dataset: writes the samples of an importer, and commits them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from concurrent_loader.storage.errors import CommitConflict, ConfigurationError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.importers.ingest_plan import (
    IngestPart,
    PartPlan,
    WrittenPart,
    delete_plan,
    load_part,
    part_name,
    save_plan,
)
from concurrent_loader.storage.importers.item_run import IngestProgress, ItemRun, OnError, import_metadata
from concurrent_loader.storage.importers.made_part import progress_of
from concurrent_loader.storage.importers.part_processes import PartTarget, write_parts
from concurrent_loader.storage.importers.parts import ImportOptions, ScannedImport, scan_import
from concurrent_loader.storage.importers.parts_commit import PartsCommit
from concurrent_loader.storage.importers.protocol import Importer, SampleSource
from concurrent_loader.storage.importers.report import IngestReport
from concurrent_loader.storage.importers.sample_source import as_importer
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.shards.writing.records import Records
from concurrent_loader.storage.shards.writing.upload_queue import UploadQueue
from concurrent_loader.storage.shards.writing.writer import ShardWriter
from concurrent_loader.storage.sizes import Size

__all__ = ["IngestProgress", "IngestReport", "ingest"]

OnProgress = Callable[[IngestProgress], None]


@hides_secrets
def ingest(
    importer: Importer | SampleSource,
    url: str | os.PathLike[str],
    *,
    on_error: OnError = "fail",
    append: bool = False,
    overwrite: bool = False,
    shard_size: Size = "8MiB",
    metadata: Mapping[str, Any] | None = None,
    uploads_in_flight: int = 4,
    token: str | None = None,
    again: bool = False,
    workers: int | None = None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    resume: bool = True,
    client: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[IngestProgress], None] | None = None,
) -> IngestReport:
    """Writes all samples of an importer and commits them. The importer is closed at the end.

    An importer of many files is divided into parts (see `plan_parts`), which several processes write. The dataset does
    not depend on their number. A run that was interrupted continues where it stopped.

    Args:
        importer: Source of the samples: an importer, or an object with ``columns`` and an iterator of dicts (see
            `SampleSource`).
        url: URL of the dataset; see `ShardWriter`.
        on_error: ``"fail"`` (default) raises an error at the first file that cannot be imported, and commits nothing.
            ``"skip"`` leaves such files out, and names them in the report and in the metadata under ``last_import``.
        append: Whether to add to the newest snapshot; see `ShardWriter`.
        overwrite: Whether to replace the samples; see `ShardWriter`.
        shard_size: Upper bound of a shard, 8 MiB by default.
        metadata: JSON metadata, added to the importer's.
        uploads_in_flight: Upper bound of concurrent uploads, 4 by default. A source of several parts has twice as many
            in each process: the last ones of a part, and those of the next.
        token: Name of this commit; see `ShardWriter`. The default is the source's identity: its files' names, sizes and
            ETags or times, and the import options. Appending a source that was imported before adds nothing.
        again: Whether to append the source even if it was imported before.
        workers: Number of processes, of which this is one. The default is this process alone, or one task per CPU of
            the Ray cluster. A program that starts processes must be guarded by ``if __name__ == "__main__"``, because
            they import it. A source that is one stream has one process.
        engine: ``"local"`` (default) for processes of this machine, or ``"ray"`` for ``workers`` tasks of a Ray cluster
            (the extra ``ray``), whose machines must reach source and destination under the same URLs.
        address: Address of the Ray cluster; None starts or finds one, as `ray.init` does.
        resume: Whether to continue an interrupted run of the same import. Otherwise every part is written again.
        client: Client library of the dataset's store.
        storage_options: Options of the dataset's store.
        on_progress: Callback for progress, called on the calling thread.

    Raises:
        ConfigurationError: An option is invalid, or source and destination are the same.
        CorruptData: A file cannot be imported (``on_error="fail"``), or no file can.
        SchemaError: The dataset to append to has other columns.
        CommitConflict: Another writer committed meanwhile; another run appends to its snapshot.
        StorageError: Source or destination failed.

    Example:
        >>> from concurrent_loader import ImageFolder, ingest, open_store
        >>> ingest(ImageFolder(open_store("images")), "ingested").num_samples
        6
    """
    options = ImportOptions.checked(
        shard_size=shard_size, metadata=metadata, on_error=on_error, append=append, overwrite=overwrite, token=token,
        again=again,
    )  # fmt: skip
    _check_workers(workers, engine, address)
    importer = as_importer(importer)
    target = PartTarget(url, client, dict(storage_options or {}), uploads_in_flight)
    began = time.monotonic()
    with LoopThread("storage-ingest") as loop:
        try:
            scanned = _scan(importer, loop, target, options)
            planned = None if scanned.repeats or scanned.needs_stream else scanned.plan()
            if planned is not None and len(planned[1]) > 1:
                scanned.check_destination()
                write = _writer_of_parts(workers, engine, address, target)
                report = _ingest_parts(*planned, target, write, resume=resume, on_progress=on_progress)
            else:
                report = _ingest_stream(scanned, loop, target, on_progress)
        except CommitConflict as error:
            error.what = "another writer committed meanwhile; run it again, with --append (append=True) to add to that"
            raise
        finally:
            loop.run(importer.close())
    return replace(report, duration_s=time.monotonic() - began)


def _ingest_stream(
    scanned: ScannedImport, loop: LoopThread, target: PartTarget, on_progress: OnProgress | None
) -> IngestReport:
    """Imports a source in one stream, or a source of one part, which makes the same dataset."""
    scan, options, importer = scanned.scan, scanned.options, scanned.importer
    name = scanned.checked_token
    with ShardWriter(
        target.url, columns=scan.columns, shard_size=options.shard_bytes, append=options.append,
        overwrite=options.overwrite, metadata={**scan.metadata, **options.metadata},
        uploads_in_flight=target.uploads_in_flight, token=name, client=target.client,
        storage_options=target.storage_options,
    ) as writer:  # fmt: skip
        if name is None:
            writer.keep_token(scan.identity)
        _check_unchanged(writer, scanned)
        run = ItemRun(
            writer, importer.url, options.on_error, derived=scan.derived, num_total=scan.num_samples,
            on_progress=on_progress,
        )  # fmt: skip
        if not writer.repeats:
            run.drain(loop, importer)
            onto = scanned.newest if options.append else None
            writer.update_metadata(
                import_metadata(
                    num_samples=writer.num_samples, skipped=run.skipped, encoded=run.encoded, parent=onto,
                    url=importer.url,
                )
            )  # fmt: skip
        writer.commit(rebase=False)  # labels continue those of the snapshot that was read
    return IngestReport(
        manifest=writer.manifest,
        num_samples=0 if writer.repeats else writer.num_samples,
        num_bytes=run.num_bytes,
        repeats=writer.repeats,
        num_ignored=scan.num_ignored,
        skipped=tuple(run.skipped),
        duration_s=0.0,
    )


def _ingest_parts(
    plan: PartPlan,
    parts: list[IngestPart],
    target: PartTarget,
    write: WriteParts,
    *,
    resume: bool,
    on_progress: OnProgress | None,
) -> IngestReport:
    """Writes the parts that are not written yet, and commits all."""
    store = target.open()
    queue = UploadQueue(store, in_flight=target.uploads_in_flight)
    progress = _PartsProgress(plan.num_samples, on_progress)
    try:
        engine = FetchEngine(store)
        if not resume:
            queue.run(delete_plan(engine, plan.name))
        records = Records(engine, plan.name)
        queue.run(records.open())
        queue.run(save_plan(engine, plan))
        commit = PartsCommit(plan, queue)
        progress.report()
        kept = {part.number for part in parts if records.has(part_name(part.number))}
        rest = write((part for part in parts if part.number not in kept), progress.within)
        try:
            for part in parts:
                found = queue.run(load_part(records, part.number)) if part.number in kept else None
                if found is None and part.number in kept:
                    found = target.write(part)  # its record is damaged, or its shards are gone
                found = next(rest) if found is None else found
                commit.add(found)
                progress.add(found)
        finally:
            rest.close()
        return commit.finish()
    finally:
        queue.close()


class _PartsProgress:
    """Sums the progress of the parts."""

    def __init__(self, num_total: int | None, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self._began = time.monotonic()
        self._num_reported = 0
        self._sum = IngestProgress(num_done=0, num_total=num_total, num_skipped=0, num_bytes=0)

    def add(self, part: WrittenPart) -> None:
        """Adds a finished part."""
        self._sum = self._sum + progress_of(part)
        self.report()

    def within(self, part: IngestProgress) -> None:
        """Reports the progress inside the parts that this process writes."""
        self.report(self._sum + part)

    def report(self, now: IngestProgress | None = None) -> None:
        """Calls the user's function, unless it knows of later samples."""
        now = now or self._sum
        if self._on_progress is not None and now.num_done >= self._num_reported:
            self._num_reported = now.num_done
            self._on_progress(replace(now, duration_s=time.monotonic() - self._began))


WriteParts = Callable[[Iterable[IngestPart], OnProgress], Generator[WrittenPart, None, None]]


def _writer_of_parts(workers: int | None, engine: str, address: str | None, target: PartTarget) -> WriteParts:
    """Returns the function that writes parts and yields the results in their order."""
    if engine == "ray":
        from concurrent_loader.storage.importers.ray_parts import write_on_ray

        return lambda parts, _: write_on_ray(parts, target, num_workers=workers, address=address)
    return lambda parts, report: write_parts(parts, target, report, num_workers=workers or 1)


def _scan(importer: Importer, loop: LoopThread, target: PartTarget, options: ImportOptions) -> ScannedImport:
    """Scans the source against the dataset."""
    store = target.open()
    try:
        return scan_import(importer, loop, store, options)
    finally:
        loop.run(store.close())


def _check_workers(workers: int | None, engine: str, address: str | None) -> None:
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ConfigurationError("workers must be an integer of at least 1", got=workers)
    if engine not in ("local", "ray"):
        raise ConfigurationError("engine must be 'local' or 'ray'", got=engine)
    if address is not None and engine != "ray":
        raise ConfigurationError("address is the address of a Ray cluster: pass engine='ray' (--engine ray)")


def _check_unchanged(writer: ShardWriter, scanned: ScannedImport) -> None:
    digests = [manifest.digest if manifest else None for manifest in (writer.parent, scanned.newest)]
    if scanned.options.append and digests[0] != digests[1]:
        raise CommitConflict("another writer committed while the source was being listed; run it again")
