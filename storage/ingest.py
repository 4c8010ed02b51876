"""From a foreign format to a data set: an importer's samples, fetched many at a time, through the writer."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from storage.errors import CommitConflict, ConfigurationError, CorruptData, SchemaError
from storage.hidden_arguments import hides_secrets
from storage.importers.protocol import ImportedSample, Importer, ImportProblem
from storage.loop_thread import LoopThread
from storage.printable import printable
from storage.shards.manifest import Manifest
from storage.shards.snapshots import latest_snapshot, load_manifest
from storage.shards.writer import ShardWriter
from storage.sizes import Size
from storage.stores.opening import open_store

__all__ = ["IngestProgress", "IngestReport", "ingest"]

OnError = Literal["fail", "skip"]
_TAKE_ITEMS = 32  # samples handed from the loop's thread to the writer's at once: crossing costs about 0.1 ms
_MAX_LISTED = 1000  # skipped files named in the manifest; all of them are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestProgress:
    """How far it is.

    Attributes:
        num_done: Samples written and files skipped.
        num_total: That there will be.
        num_skipped: Of those done.
        num_bytes: Read from the source's good files.
        duration_s: Since the first file was asked for.
    """

    num_done: int
    num_total: int
    num_skipped: int
    num_bytes: int
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """What came of it.

    Attributes:
        manifest: The snapshot that was committed.
        num_samples: Written by this run.
        num_bytes: Read from the source for them.
        num_ignored: Objects of the source that are not of its format.
        skipped: Files that could not be imported, in the order of the samples.
        duration_s: From the first listing to the commit.
        repeats: Whether this source (or token) was committed before, in the snapshot ``manifest``: nothing was added.
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
        """How many files could not be imported."""
        return len(self.skipped)


@hides_secrets
def ingest(
    importer: Importer,
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
    """Writes everything that an importer yields, and commits it. The importer is closed at the end.

    Args:
        importer: The source.
        url: The data set, see `ShardWriter` for this and the options that are its.
        on_error: ``"fail"`` at the first file that cannot be imported: nothing is committed. ``"skip"`` it: skipped
            files are counted, and named in the report and in the manifest's metadata under ``last_import``.
        append: See `ShardWriter`.
        overwrite: See `ShardWriter`.
        shard_size: See `ShardWriter`.
        metadata: Added to the importer's.
        uploads_in_flight: See `ShardWriter`.
        token: Name of this commit, see `ShardWriter`. When appending, the default is the source's identity (its files'
            names, sizes and ETags or times, and what is made of them): appending the same source twice adds it once.
        again: Append the source even if it was appended before.
        client: For the data set's store.
        storage_options: For the data set's store.
        on_progress: Called now and then, from the calling thread.

    Raises:
        ConfigurationError: Options that cannot work; or the source is the destination.
        CorruptData: A file cannot be imported (``"fail"``), or none of them can.
        CommitConflict: Another writer committed meanwhile; running it again appends to what is there then.
        StorageError: Source or destination failed.
    """
    if on_error not in ("fail", "skip"):
        raise ConfigurationError("on_error is 'fail' or 'skip'", got=on_error)
    if not all(callable(getattr(importer, method, None)) for method in ("scan", "read", "close")):
        raise ConfigurationError("importer must be an importer, for example ImageFolder", got=type(importer).__name__)
    if again and token is not None:
        raise ConfigurationError("again adds the source without a token; give one of them", got=token)
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
                _check_unchanged(writer, onto, append=append)
                run = _Run(writer, importer.url, on_error, scan.num_samples, on_progress)
                if not writer.repeats:
                    run.drain(loop, _Source(importer.read()))
                writer.update_metadata({"last_import": run.summary(), **run.encoded(onto)})
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
    """One ingestion's counters, and the hand-over from the loop's thread to the writer's."""

    def __init__(
        self,
        writer: ShardWriter,
        source: str,
        on_error: OnError,
        num_total: int,
        on_progress: Callable[[IngestProgress], None] | None,
    ) -> None:
        self._writer = writer
        self._source = source
        self._on_error = on_error
        self._num_total = num_total
        self._on_progress = on_progress
        self.num_bytes = 0
        self.skipped: list[ImportProblem] = []
        self._encoded: dict[str, dict[str, int]] = {}
        self._began = 0.0

    def drain(self, loop: LoopThread, source: _Source) -> None:
        """Takes every item and writes it."""
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
            raise CorruptData(
                f"none of the files can be imported; the first: {first.reason}", url=self._source, key=first.name
            )

    def summary(self) -> dict[str, Any]:
        """What the manifest keeps about this import."""
        listed = [{"name": printable(each.name), "reason": each.reason} for each in self.skipped[:_MAX_LISTED]]
        return {"num_samples": self._writer.num_samples, "num_skipped": len(self.skipped), "skipped": listed}

    def encoded(self, onto: Manifest | None) -> dict[str, Any]:
        """What the manifest keeps about columns that were encoded anew: their bytes in the source, and as stored."""
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
                item = ImportProblem(name=item.name, reason=str(error))
            else:
                self.num_bytes += item.num_bytes
                for column, num_bytes in item.encoded_from.items():
                    counts = self._encoded.setdefault(column, {"source_bytes": 0, "stored_bytes": 0})
                    counts["source_bytes"] += num_bytes
                    counts["stored_bytes"] += len(cast("bytes", item.values[column]))
                return
        if self._on_error == "fail":
            raise CorruptData(
                f"a file cannot be imported: {item.reason}; mend it, or leave such files out by --on-error skip "
                "(in Python on_error='skip')",
                url=self._source,
                key=item.name,
            )
        self.skipped.append(item)

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
    """An importer's items, on the loop's thread: taken some at a time, and closed even in the middle of a take."""

    def __init__(self, items: AsyncGenerator[ImportedSample | ImportProblem, None]) -> None:
        self._items = items
        self._taking: asyncio.Task[Any] | None = None

    async def take(self) -> list[ImportedSample | ImportProblem]:
        """Returns the next items; none after the last."""
        self._taking = asyncio.current_task()
        taken: list[ImportedSample | ImportProblem] = []
        async for item in self._items:
            taken.append(item)
            if len(taken) == _TAKE_ITEMS:
                break
        return taken

    async def close(self) -> None:
        """Stops a take that an interrupted caller left behind, then the importer."""
        if self._taking is not None and not self._taking.done():
            if not self._taking.cancelling():  # a second cancellation would cut its clean-up short
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
