"""Writes one part of an import in two steps: makes its samples, and waits for its last uploads."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.freed_memory import keep_freed_memory
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.importers.ingest_plan import IngestPart, WrittenPart, load_part, part_name, save_part
from concurrent_loader.storage.importers.item_run import IngestProgress, ItemRun
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.shards.writing.part_writer import PartWriter
from concurrent_loader.storage.shards.writing.records import Records
from concurrent_loader.storage.shards.writing.upload_queue import UploadQueue
from concurrent_loader.storage.stores.backends.open_store import open_store
from concurrent_loader.storage.stores.store import Store

__all__ = ["MadePart", "make_part", "progress_of"]


@dataclass(frozen=True, slots=True)
class MadePart:
    """A part whose samples are made, and whose last shards are being uploaded.

    Attributes:
        progress: Counters of the part.
        end: Function that waits for the uploads, saves the record of the part, and returns its result.
        queue: Uploads of the part.
    """

    progress: IngestProgress
    end: Callable[[], WrittenPart]
    queue: UploadQueue

    def finish(self) -> WrittenPart:
        """Waits for the uploads, and saves the record of the part; called once, on any thread.

        Raises:
            StorageError: The store failed. Write the part again.
        """
        try:
            return self.end()
        finally:
            self.queue.close()

    def cancel(self) -> None:
        """Cancels the uploads, so that `finish` on another thread raises an error soon. Idempotent."""
        self.queue.cancel()


@hides_secrets
def make_part(
    part: IngestPart,
    url: str | os.PathLike[str] | Store,
    *,
    uploads_in_flight: int,
    resume: bool,
    client: str,
    storage_options: Mapping[str, Any] | None,
    on_progress: Callable[[IngestProgress], None] | None,
    making: AbstractContextManager[object],
) -> MadePart:
    """Makes the samples of a part and starts the uploads; `MadePart.finish` does the rest of `write_part`.

    Args:
        part: Part to write.
        url: URL of the dataset, or an open store, which is not closed.
        uploads_in_flight: Upper bound of concurrent uploads.
        resume: Whether a part that is written already is left as it is.
        client: Client library of the dataset's store.
        storage_options: Options of the dataset's store.
        on_progress: Callback for progress, called on the calling thread.
        making: Context within which the samples are made.
    """
    keep_freed_memory()
    store = url if isinstance(url, Store) else open_store(url, client=client, **dict(storage_options or {}))
    queue = UploadQueue(store, in_flight=uploads_in_flight, keep_store=isinstance(url, Store))
    try:
        records = Records(FetchEngine(store), part.plan)
        if resume:
            records.expect(part_name(part.number))
            known = queue.run(load_part(records, part.number))
            if known is not None:
                return MadePart(progress_of(known), lambda: known, queue)
        writer = PartWriter(Schema.parse(part.columns), shard_bytes=part.shard_bytes, queue=queue)
        importer = copy.deepcopy(part.source)  # a part can be written again, so its own stores stay unused
        with making, LoopThread("storage-ingest") as loop:
            try:
                run = ItemRun(writer, importer.url, part.on_error, derived=part.derived, on_progress=on_progress)
                run.drain(loop, importer)
            finally:
                loop.run(importer.close())
    except BaseException:
        queue.close()
        raise

    def end() -> WrittenPart:
        written = WrittenPart(
            number=part.number,
            shards=writer.finish(),
            num_samples=writer.num_samples,
            num_bytes=run.num_bytes,
            skipped=tuple(run.skipped),
            encoded=run.encoded,
        )
        queue.run(save_part(records, written))
        return written

    return MadePart(run.progress, end, queue)


def progress_of(part: WrittenPart) -> IngestProgress:
    """Returns the counters of a finished part."""
    return IngestProgress(
        num_done=part.num_samples + len(part.skipped),
        num_total=None,
        num_skipped=len(part.skipped),
        num_bytes=part.num_bytes,
    )
