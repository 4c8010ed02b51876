"""Writes the files of an export: several at once, each from shards that are fetched one ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from concurrent_loader.storage.cache.blocking_io import in_thread
from concurrent_loader.storage.cache.joined_shard import needed_parts, whole_shards
from concurrent_loader.storage.cache.shard_cache import ShardCache
from concurrent_loader.storage.errors import CorruptData, SchemaError
from concurrent_loader.storage.exporters.destination import STATE_PREFIX, Destination
from concurrent_loader.storage.exporters.plan import ExportFile, ExportJob
from concurrent_loader.storage.exporters.protocol import ExportColumn, ExportFormat, FileWriter, WrittenFile
from concurrent_loader.storage.exporters.rows import SampleRow, read_rows
from concurrent_loader.storage.exporters.shards_ahead import ShardsAhead
from concurrent_loader.storage.fetch.in_flight_gate import InFlightGate
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.shards.manifest.live_rows import LiveRows
from concurrent_loader.storage.shards.manifest.manifest import Manifest

__all__ = ["ExportProgress", "FilesWriter"]

_MAX_SHARD_BYTES = 256 << 20
_SLICE_BYTES = 8 << 20  # bytes of samples that are decoded at once, so that a cancellation takes effect soon
_PUTS_IN_FLIGHT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportProgress:
    """The progress of an export.

    Attributes:
        num_bytes: Number of bytes of the dataset that this call has written, estimated within shards.
        num_bytes_total: Number of bytes of the dataset that this call writes.
        num_samples: Number of samples that this call has written.
    """

    num_bytes: int
    num_bytes_total: int
    num_samples: int


class FilesWriter:
    """Writes all files of an export that are not finished. Usable once, from one event loop.

    Attributes:
        num_bytes_written: Size of the samples' own files that were written, for formats with such files.
    """

    def __init__(
        self,
        manifest: Manifest,
        cache: ShardCache,
        destination: Destination,
        output: ExportFormat,
        columns: Sequence[ExportColumn],
        key_column: str | None,
        on_progress: Callable[[ExportProgress], None] | None,
    ) -> None:
        self._manifest = manifest
        self._destination = destination
        self._output = output
        self._columns = columns
        self._key_column = key_column
        self._on_progress = on_progress
        self._rows = LiveRows(manifest)
        stored = list(dict.fromkeys([*(each.source for each in columns), *([key_column] if key_column else [])]))
        self._shards = whole_shards(manifest, cache, stored)
        self._shard_bytes: list[int] = np.sum(
            [manifest.parts[number].table.sizes for number in needed_parts(manifest, stored)], axis=0
        ).tolist()
        self._gate = InFlightGate(max_requests=1 << 16, max_bytes=_MAX_SHARD_BYTES)
        self._puts = asyncio.Semaphore(_PUTS_IN_FLIGHT)
        self._sizes: dict[str, int] = {}
        self._num_bytes = 0.0
        self._num_bytes_total = 0
        self._num_samples = 0
        self.num_bytes_written = 0

    async def write(self, jobs: Sequence[ExportJob], finished: Collection[int], *, workers: int) -> Mapping[str, int]:
        """Writes the files; returns their sizes by name.

        Args:
            jobs: All files.
            finished: Numbers of the files that exist already.
            workers: Number of jobs that run at once.
        """
        todo = [
            ExportJob(job.first_shard, job.num_shards, files)
            for job in jobs
            if (files := tuple(file for file in job.files if file.number not in finished))
        ]
        self._num_bytes_total = sum(file.num_bytes for job in todo for file in job.files)
        self._report()
        remaining = iter(todo)

        async def work(_worker: int) -> None:
            for job in remaining:
                await self._write_job(job)

        await map_concurrently(work, range(min(workers, len(todo))))
        return self._sizes

    async def finish(self, files: Sequence[WrittenFile]) -> None:
        """Writes the indexes, marks the export as complete, and deletes temporary files."""
        names = [file.name for file in files]
        if self._output.is_file_per_sample:
            await self._check_count()
        if self._output.merged is not None:
            await self._destination.join(self._output.merged, names)
        for name, data in self._output.index(files).items():
            await self._destination.put(name, data)
        summary = {"num_samples": self._manifest.num_samples, "num_files": len(files)}
        await self._destination.complete(summary, [name for name in names if name.startswith(STATE_PREFIX)])

    async def _check_count(self) -> None:
        """Checks that every sample has a file of its own: two samples with one name would be one file."""
        merged = self._output.merged
        number = await self._destination.count(lambda key: not key.startswith(STATE_PREFIX) and key != merged)
        if number != self._manifest.num_samples:
            raise SchemaError(
                "the number of files is not that of the samples; two samples may have the same key (number the samples "
                "instead, leave --key-column out), or another process wrote here",
                column=self._key_column, expected=self._manifest.num_samples, got=number,
            )  # fmt: skip

    # -- one job -------------------------------------------------------------------------------------------------------

    async def _write_job(self, job: ExportJob) -> None:
        async with ShardsAhead(self._shards, self._shard_bytes, self._gate, self._rows.first_samples, job) as shards:
            for file in job.files:
                await self._write_file(file, shards)

    async def _write_file(self, file: ExportFile, shards: ShardsAhead) -> None:
        name = self._output.file_name(file.number)
        new = await self._destination.create(name)
        try:
            writer = await self._open_writer(name, new.file, file.num_samples)
            await self._write_samples(file, name, writer, shards)
            self._sizes[name] = await self._destination.publish(name, new)
        finally:
            new.close()

    async def _open_writer(self, name: str, file: BinaryIO, num_samples: int) -> FileWriter:
        opened: list[FileWriter] = []  # also if the caller is cancelled while the thread opens it
        try:
            await self._destination.on_drive(name, lambda: opened.append(self._output.open(file, num_samples)))
        except BaseException:
            for writer in opened:
                writer.abandon()
            raise
        return opened[0]

    async def _write_samples(self, file: ExportFile, name: str, writer: FileWriter, shards: ShardsAhead) -> None:
        is_complete = False
        try:
            at = file.first_sample
            while at < file.end_sample:
                await shards.containing(at)
                end = min(shards.end_sample, file.end_sample, at + shards.rows_per(_SLICE_BYTES))
                await self._write_slice(name, writer, shards, range(at, end))
                self._num_bytes += file.num_bytes * (end - at) / file.num_samples
                self._num_samples += end - at
                self._report()
                at = end
            await self._destination.on_drive(name, writer.close)
            is_complete = True
        finally:
            if not is_complete:
                writer.abandon()

    async def _write_slice(self, name: str, writer: FileWriter, shards: ShardsAhead, samples: range) -> None:
        def read() -> list[SampleRow]:
            rows = self._rows.rows(shards.number, np.arange(samples.start, samples.stop))
            return read_rows(shards.shard, self._columns, self._key_column, rows)

        def write() -> list[tuple[str, bytes]]:
            own_files = []
            for sample, (values, key) in zip(samples, rows, strict=True):
                try:
                    own = writer.write(sample, values, key)
                except SchemaError as error:
                    error.locate(sample=sample)
                    raise
                if own is not None:
                    own_files.append(own)
            return own_files

        try:
            rows = await in_thread(read)
        except CorruptData:
            # A local file differs from the manifest: it is fetched like an object, which names what is wrong.
            if not shards.shard.cached:
                raise
            await shards.replace()
            rows = await in_thread(read)
        await map_concurrently(self._put, await self._destination.on_drive(name, write))

    async def _put(self, file: tuple[str, bytes]) -> None:
        async with self._puts:
            await self._destination.put(*file)
        self.num_bytes_written += len(file[1])

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(
                ExportProgress(
                    num_bytes=round(self._num_bytes), num_bytes_total=self._num_bytes_total,
                    num_samples=self._num_samples,
                )
            )  # fmt: skip
