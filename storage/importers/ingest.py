"""Imports another format into a dataset: writes the samples of an importer, and commits them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from concurrent_loader.storage.errors import CommitConflict, ConfigurationError, CorruptData, SchemaError
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.importers.protocol import (
    ImportedSample,
    Importer,
    ImportProblem,
    ImportScan,
    SampleSource,
)
from concurrent_loader.storage.importers.sample_source import as_importer
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.printable import printable
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.snapshots import latest_snapshot, load_manifest
from concurrent_loader.storage.shards.writing.writer import ShardWriter
from concurrent_loader.storage.sizes import Size
from concurrent_loader.storage.stores.backends.open_store import open_store

__all__ = ["IngestProgress", "IngestReport", "ingest"]

OnError = Literal["fail", "skip"]
_TAKE_ITEMS = 32  # samples per hand-over from the event loop to the writer: each costs about 0.1 ms
_MAX_LISTED = 1000  # upper bound of the skipped files named in the manifest; all are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestProgress:
    """The progress of an import.

    Attributes:
        num_done: Number of samples written and files skipped.
        num_total: Number of samples and files to expect; None if unknown.
        num_skipped: Number of files skipped.
        num_bytes: Number of bytes of imported files.
        duration_s: Seconds since the first file was requested.
    """

    num_done: int
    num_total: int | None
    num_skipped: int
    num_bytes: int
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """The result of an import.

    Attributes:
        manifest: Committed snapshot.
        num_samples: Number of samples written by this import.
        num_bytes: Number of bytes of the imported files.
        num_ignored: Number of objects of the source that are not of its format.
        skipped: Files that could not be imported, in the order of the samples.
        duration_s: Seconds from the first listing to the commit.
        repeats: Whether the snapshot ``manifest`` already has this token or this source, so that nothing was added.

    Example:
        >>> from concurrent_loader.storage import ImageFolder, open_store
        >>> from concurrent_loader.storage.importers.ingest import ingest
        >>> report = ingest(ImageFolder(open_store("images")), "imported")
        >>> report.num_samples, report.num_skipped
        (6, 0)
    """

    manifest: Manifest
    num_samples: int
    num_bytes: int
    num_ignored: int
    skipped: tuple[ImportProblem, ...]
    duration_s: float
    repeats: bool = False

    @property
    def num_skipped(self) -> int:
        """Number of files that could not be imported."""
        return len(self.skipped)


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
    client: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[IngestProgress], None] | None = None,
) -> IngestReport:
    """Writes all samples of an importer and commits them. The importer is closed at the end.

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
        uploads_in_flight: Upper bound of concurrent uploads, 4 by default.
        token: Name of this commit; see `ShardWriter`. The default is the source's identity: its files' names, sizes and
            ETags or times, and the import options. Appending a source that was imported before adds nothing.
        again: Whether to append the source even if it was imported before.
        client: Client library of the dataset's store.
        storage_options: Options of the dataset's store.
        on_progress: Callback for progress, called on the calling thread.

    Raises:
        ConfigurationError: An option is invalid, or source and destination are the same.
        CorruptData: A file cannot be imported (``on_error="fail"``), or no file can.
        CommitConflict: Another writer committed meanwhile; another run appends to its snapshot.
        StorageError: Source or destination failed.

    Example:
        >>> from concurrent_loader import ImageFolder, ingest, open_store
        >>> ingest(ImageFolder(open_store("images")), "ingested").num_samples
        6
    """
    if on_error not in ("fail", "skip"):
        raise ConfigurationError("on_error must be 'fail' or 'skip'", got=on_error)
    importer = as_importer(importer)
    if again and token is not None:
        raise ConfigurationError("again adds the source without a token; pass only one of them", got=token)
    options = dict(storage_options or {})
    began = time.monotonic()
    with LoopThread("storage-ingest") as loop:
        try:
            if open_store(url, client=client, **options).url == importer.url:
                raise ConfigurationError("source and destination are the same folder", url=importer.url)
            onto = loop.run(_newest(url, client, options)) if append else None
            scan = loop.run(importer.scan(onto))
            name = scan.identity if append and token is None and not again else token
            with ShardWriter(
                url, columns=scan.columns, shard_size=shard_size, append=append, overwrite=overwrite,
                metadata={**scan.metadata, **(metadata or {})}, uploads_in_flight=uploads_in_flight, token=name,
                client=client, storage_options=storage_options,
            ) as writer:  # fmt: skip
                if name is None:
                    writer.keep_token(scan.identity)
                _check_unchanged(writer, onto, append=append)
                run = _Run(writer, importer.url, on_error, scan, on_progress)
                if not writer.repeats:
                    run.drain(loop, _Source(importer.read()))
                writer.update_metadata({"last_import": run.summary(), **run.encoded(onto)})
                writer.commit(rebase=False)  # labels continue those of the snapshot that was read
        except CommitConflict as error:
            error.what = "another writer committed meanwhile; run it again, with --append (append=True) to add to that"
            raise
        finally:
            loop.run(importer.close())
    return IngestReport(
        manifest=writer.manifest,
        num_samples=0 if writer.repeats else writer.num_samples,
        num_bytes=run.num_bytes,
        repeats=writer.repeats,
        num_ignored=scan.num_ignored,
        skipped=tuple(run.skipped),
        duration_s=time.monotonic() - began,
    )


class _Run:
    """The counters of one import, and the hand-over from the event loop to the writer."""

    def __init__(
        self,
        writer: ShardWriter,
        source: str,
        on_error: OnError,
        scan: ImportScan,
        on_progress: Callable[[IngestProgress], None] | None,
    ) -> None:
        self._writer = writer
        self._source = source
        self._on_error = on_error
        self._num_total = scan.num_samples
        self._derived = scan.derived
        self._on_progress = on_progress
        self.num_bytes = 0
        self.skipped: list[ImportProblem] = []
        self._encoded: dict[str, dict[str, int]] = {}
        self._began = 0.0

    def drain(self, loop: LoopThread, source: _Source) -> None:
        """Writes every item of the source."""
        self._began = time.monotonic()
        self._report()
        try:
            while taken := loop.run(source.take()):
                for item in taken:
                    self._write(item)
                self._report()
        finally:
            loop.run(source.close())
        if not self._writer.num_samples and self.skipped:
            first = self.skipped[0]
            raise CorruptData(f"no file can be imported; the first: {first.reason}", url=self._source, key=first.name)

    def summary(self) -> dict[str, Any]:
        """Returns the metadata about this import."""
        listed = [{"name": printable(each.name), "reason": each.reason} for each in self.skipped[:_MAX_LISTED]]
        return {"num_samples": self._writer.num_samples, "num_skipped": len(self.skipped), "skipped": listed}

    def encoded(self, onto: Manifest | None) -> dict[str, Any]:
        """Returns the metadata about columns that were encoded again: their bytes in the source and as stored."""
        if not self._encoded:
            return {}
        before = onto.metadata.get("encoded") if onto is not None else None
        total = dict(before) if isinstance(before, dict) else {}
        for column, counts in self._encoded.items():
            earlier = total.get(column)
            known = earlier if isinstance(earlier, dict) else {}
            total[column] = {name: count + int(known.get(name, 0)) for name, count in counts.items()}
        return {"encoded": total}

    def _write(self, item: ImportedSample | ImportProblem) -> None:
        if isinstance(item, ImportedSample):
            try:
                self._writer.write(item.values)
            except SchemaError as error:
                item = ImportProblem(name=item.name, reason=self._reason(error))
            else:
                self.num_bytes += item.num_bytes
                for column, num_bytes in item.encoded_from.items():
                    counts = self._encoded.setdefault(column, {"source_bytes": 0, "stored_bytes": 0})
                    counts["source_bytes"] += num_bytes
                    counts["stored_bytes"] += len(cast("bytes", item.values[column]))
                return
        if self._on_error == "fail":
            raise CorruptData(
                f"a file cannot be imported: {item.reason}; repair it, or leave such files out by --on-error skip "
                "(in Python on_error='skip')",
                url=self._source,
                key=item.name,
            )
        self.skipped.append(item)

    def _reason(self, error: SchemaError) -> str:
        if error.column not in self._derived:
            return str(error)
        return (
            f"{error}; this column's type was derived from the first samples, so choose another one (--column "
            f"{error.column}=TYPE; in Python columns={{{error.column!r}: type}})"
        )

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(
                IngestProgress(
                    num_done=self._writer.num_samples + len(self.skipped),
                    num_total=self._num_total,
                    num_skipped=len(self.skipped),
                    num_bytes=self.num_bytes,
                    duration_s=time.monotonic() - self._began,
                )
            )


class _Source:
    """An importer's items on the event loop, taken in groups; may be closed during a take."""

    def __init__(self, items: AsyncGenerator[ImportedSample | ImportProblem, None]) -> None:
        self._items = items
        self._taking: asyncio.Task[Any] | None = None

    async def take(self) -> list[ImportedSample | ImportProblem]:
        """Returns the next items; an empty list after the last."""
        self._taking = asyncio.current_task()
        taken: list[ImportedSample | ImportProblem] = []
        async for item in self._items:
            taken.append(item)
            if len(taken) == _TAKE_ITEMS:
                break
        return taken

    async def close(self) -> None:
        """Cancels a take of an interrupted caller, and then closes the importer's generator."""
        if self._taking is not None and not self._taking.done():
            if not self._taking.cancelling():  # a second cancellation would interrupt its clean-up
                self._taking.cancel()
            await asyncio.wait({self._taking})
        await self._items.aclose()


async def _newest(url: str | os.PathLike[str], client: str, options: dict[str, Any]) -> Manifest | None:
    async with open_store(url, client=client, **options) as store:
        snapshot = await latest_snapshot(store)
        return await load_manifest(store, snapshot) if snapshot is not None else None


def _check_unchanged(writer: ShardWriter, onto: Manifest | None, *, append: bool) -> None:
    digests = [manifest.digest if manifest else None for manifest in (writer.parent, onto)]
    if append and digests[0] != digests[1]:
        raise CommitConflict("another writer committed while the source was being listed; run it again")
