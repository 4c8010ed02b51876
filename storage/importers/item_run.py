"""Moves the items of one importer into a writer, and counts them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, cast

from concurrent_loader.storage.errors import CorruptData, SchemaError
from concurrent_loader.storage.importers.protocol import ImportedSample, Importer, ImportProblem
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.printable import printable
from concurrent_loader.storage.shards.manifest.manifest import Manifest

__all__ = ["EncodedSizes", "IngestProgress", "ItemRun", "OnError", "SampleWriter", "import_metadata"]

OnError = Literal["fail", "skip"]
EncodedSizes = dict[str, dict[str, int]]
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

    def __add__(self, other: IngestProgress) -> IngestProgress:
        """Returns the counters of both; total and duration are those of this object."""
        return replace(
            self,
            num_done=self.num_done + other.num_done,
            num_skipped=self.num_skipped + other.num_skipped,
            num_bytes=self.num_bytes + other.num_bytes,
        )


class SampleWriter(Protocol):
    """Where the samples go."""

    @property
    def num_samples(self) -> int:
        """Number of samples written so far."""
        ...

    def write(self, sample: Mapping[str, object]) -> None:
        """Adds a sample."""
        ...


class ItemRun:
    """The counters of an import or of one of its parts, and the hand-over from the event loop to the writer.

    Args:
        writer: Writer of the samples.
        url: URL of the source for messages.
        on_error: ``"fail"`` or ``"skip"``.
        derived: Columns whose type was derived from the first samples.
        num_total: Number of samples and files to expect; None if unknown.
        on_progress: Callback for progress, called on the calling thread.
    """

    def __init__(
        self,
        writer: SampleWriter,
        url: str,
        on_error: OnError,
        *,
        derived: frozenset[str] = frozenset(),
        num_total: int | None = None,
        on_progress: Callable[[IngestProgress], None] | None = None,
    ) -> None:
        self._writer = writer
        self._url = url
        self._on_error = on_error
        self._derived = derived
        self._num_total = num_total
        self._on_progress = on_progress
        self._began = 0.0
        self.num_bytes = 0
        self.skipped: list[ImportProblem] = []
        self.encoded: EncodedSizes = {}

    def drain(self, loop: LoopThread, importer: Importer) -> None:
        """Writes every item of an importer that has been scanned.

        Raises:
            CorruptData: A file cannot be imported (``on_error="fail"``).
        """
        self._began = time.monotonic()
        self._report()
        source = _Source(importer.read())
        try:
            while taken := loop.run(source.take()):
                for item in taken:
                    self._write(item)
                self._report()
        finally:
            loop.run(source.close())

    def _write(self, item: ImportedSample | ImportProblem) -> None:
        if isinstance(item, ImportedSample):
            try:
                self._writer.write(item.values)
            except SchemaError as error:
                item = ImportProblem(name=item.name, reason=self._reason(error))
            else:
                self.num_bytes += item.num_bytes
                for column, num_bytes in item.encoded_from.items():
                    counts = self.encoded.setdefault(column, {"source_bytes": 0, "stored_bytes": 0})
                    counts["source_bytes"] += num_bytes
                    counts["stored_bytes"] += len(cast("bytes", item.values[column]))
                return
        if self._on_error == "fail":
            raise CorruptData(
                f"a file cannot be imported: {item.reason}; repair it, or leave such files out by --on-error skip "
                "(in Python on_error='skip')",
                url=self._url,
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

    @property
    def progress(self) -> IngestProgress:
        """Counters so far."""
        return IngestProgress(
            num_done=self._writer.num_samples + len(self.skipped),
            num_total=self._num_total,
            num_skipped=len(self.skipped),
            num_bytes=self.num_bytes,
            duration_s=time.monotonic() - self._began,
        )

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.progress)


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


def import_metadata(
    *, num_samples: int, skipped: list[ImportProblem], encoded: EncodedSizes, parent: Manifest | None, url: str
) -> dict[str, Any]:
    """Returns the manifest's metadata about a finished import.

    Args:
        num_samples: Number of samples written.
        skipped: Files that could not be imported; the first 1,000 are named.
        encoded: Bytes in the source and as stored, of columns that were encoded again.
        parent: Snapshot that the import is appended to, or None.
        url: URL of the source for the error.

    Raises:
        CorruptData: No file could be imported.
    """
    if not num_samples and skipped:
        raise CorruptData(f"no file can be imported; the first: {skipped[0].reason}", url=url, key=skipped[0].name)
    listed = [{"name": printable(each.name), "reason": each.reason} for each in skipped[:_MAX_LISTED]]
    summary = {"num_samples": num_samples, "num_skipped": len(skipped), "skipped": listed}
    return {"last_import": summary, **_with_earlier(encoded, parent)}


def _with_earlier(encoded: EncodedSizes, parent: Manifest | None) -> dict[str, Any]:
    """Returns the sizes of encoded columns in the whole dataset; nothing if this import encoded none."""
    if not encoded:
        return {}
    before = parent.metadata.get("encoded") if parent is not None else None
    total = dict(before) if isinstance(before, dict) else {}
    for column, counts in encoded.items():
        earlier = total.get(column)
        known = earlier if isinstance(earlier, dict) else {}
        total[column] = {name: count + int(known.get(name, 0)) for name, count in counts.items()}
    return {"encoded": total}
