"""Verifies a whole snapshot: objects against the manifest, values against their digests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.storage.errors import (
    CorruptData,
    DigestMismatch,
    FormatError,
    InvalidRange,
    NotFound,
    ObjectChanged,
    StorageError,
)
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.ranges import ByteRange, split
from concurrent_loader.storage.shards.format.index import ShardIndex, verify_shard
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES
from concurrent_loader.storage.shards.format.nulls import null_rows
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.shards.manifest.live_rows import LiveRows
from concurrent_loader.storage.shards.manifest.manifest import BundleEntry, Manifest, ShardEntry
from concurrent_loader.storage.shards.shard_fetcher import OpenSource, ShardFetcher
from concurrent_loader.storage.sizes import format_count

__all__ = ["VerifyProblem", "VerifyProgress", "VerifyReport", "verify_dataset"]

_MAX_AHEAD = 16
_MAX_AHEAD_BYTES = 256 << 20
_MAX_LISTED = 1000  # upper bound of the problems listed per shard

Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyProblem:
    """A difference between the stored bytes and what was written.

    Attributes:
        what: Description in one sentence.
        shard: Key of the shard or bundle.
        sample: Row in the shard, if known.
        column: Name of the column, if known.
        start: First byte of the damaged chunk, if known.
        end: One past the last byte of that chunk.
    """

    what: str
    shard: str
    sample: int | None = None
    column: str | None = None
    start: int | None = None
    end: int | None = None

    def __str__(self) -> str:
        places = [f"sample {self.sample}"] if self.sample is not None else []
        places += [f"column {self.column}"] if self.column is not None else []
        places += [f"bytes {self.start}-{self.end}"] if self.end is not None else []
        return f"{', '.join([self.shard, *places])}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyProgress:
    """The progress of a verification.

    Attributes:
        num_bytes: Number of bytes checked so far.
        num_bytes_total: Size of all shards and bundles in bytes.
        num_problems: Number of problems found so far.
    """

    num_bytes: int
    num_bytes_total: int
    num_problems: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result of a verification.

    Attributes:
        snapshot: Number of the snapshot.
        num_shards: Number of shards checked, those of added columns included.
        num_bundles: Number of bundles checked, likewise.
        num_samples: Number of samples in readable shards.
        num_bytes: Size of the checked shards and bundles in bytes.
        num_undigested: Number of shards whose payload has no digests, because only headers were adopted. Their columns
            and index were verified; of the payload, only that it is there, has its length, and can be decoded.
        problems: Problems found, in the order of the shards.

    Example:
        >>> import asyncio
        >>> from concurrent_loader.storage import FetchEngine, load_manifest, open_store, verify_dataset
        >>> engine = FetchEngine(open_store("photos"))
        >>> manifest = asyncio.run(load_manifest(engine))
        >>> asyncio.run(verify_dataset(engine, manifest)).problems
        ()
    """

    snapshot: int
    num_shards: int
    num_bundles: int
    num_samples: int
    num_bytes: int
    num_undigested: int = 0
    problems: tuple[VerifyProblem, ...]


async def verify_dataset(
    engine: FetchEngine,
    manifest: Manifest,
    *,
    on_progress: Callable[[VerifyProgress], None] | None = None,
    open_source: OpenSource | None = None,
) -> VerifyReport:
    """Fetches every shard and bundle, and checks chunk digests, structure, values, and bundles against shards.

    Args:
        engine: Engine over the dataset's store.
        manifest: Snapshot to verify.
        on_progress: Callback after each shard.
        open_source: Function that opens the store of adopted data; see `ShardFetcher`.

    Returns:
        Report of all problems. Damaged data does not raise an error.

    Raises:
        StorageError: The store cannot be read (access, network).

    Example:
        >>> import asyncio
        >>> from concurrent_loader.storage import FetchEngine, load_manifest, open_store, verify_dataset
        >>> engine = FetchEngine(open_store("photos"))
        >>> report = asyncio.run(verify_dataset(engine, asyncio.run(load_manifest(engine))))
        >>> report.num_samples
        20
    """
    fetcher = ShardFetcher(engine, open_source)
    check = _Check(fetcher, manifest, on_progress)
    try:
        await check.run()
    except ExceptionGroup as group:
        raise _first_leaf(group) from group
    finally:
        await fetcher.close()
    return VerifyReport(
        snapshot=manifest.snapshot,
        num_shards=sum(len(part.shards) for part in manifest.parts),
        num_bundles=sum(len(part.bundles) for part in manifest.parts),
        num_samples=check.num_samples,
        num_bytes=check.num_bytes_total,
        num_undigested=int((manifest.table.num_chunks == 0).sum()),
        problems=tuple(check.problems),
    )


@dataclass(frozen=True, slots=True)
class _Finding:
    entry: ShardEntry | BundleEntry
    problems: list[VerifyProblem]
    columns: Columns | None  # the FIXED columns; None if the file cannot be read


@dataclass(frozen=True, slots=True)
class _Overlap:
    """A run of samples that are both in a shard and in a bundle."""

    bundle: int
    shard_row: int
    bundle_row: int
    num_samples: int


class _Check:
    def __init__(
        self, fetcher: ShardFetcher, manifest: Manifest, on_progress: Callable[[VerifyProgress], None] | None
    ) -> None:
        self._fetcher = fetcher
        self._parts = manifest.parts
        self._manifest = manifest.parts[0]
        self._may_have_more = bool(manifest.places)  # files keep columns that were dropped
        self._on_progress = on_progress
        self._num_bytes = 0
        self._bundle: tuple[int, _Finding] | None = None
        self.num_bytes_total = sum(
            part.num_bytes + sum(bundle.size for bundle in part.bundles) for part in manifest.parts
        )
        self.num_samples = self._num_taken = 0
        self._live = np.diff(LiveRows(manifest).first_samples)  # deleted rows are checked, too, but they are no samples
        self.problems: list[VerifyProblem] = []

    async def run(self) -> None:
        counts = []
        for part in self._parts:
            self._manifest, self._bundle, self.num_samples, self._num_taken = part, None, 0, 0
            await self._run()
            counts.append(self.num_samples)
        self.num_samples = min(counts)

    async def _run(self) -> None:
        ahead: deque[asyncio.Task[_Finding]] = deque()
        ahead_bytes = 0
        overlaps = _overlaps(self._manifest)
        async with asyncio.TaskGroup() as group:
            for entry in self._manifest.shards:
                while ahead and (len(ahead) >= _MAX_AHEAD or ahead_bytes + entry.size > _MAX_AHEAD_BYTES):
                    finding = await ahead.popleft()
                    ahead_bytes -= finding.entry.size
                    await self._take(finding, next(overlaps))
                ahead.append(group.create_task(self._examine(entry)))
                ahead_bytes += entry.size
            while ahead:
                await self._take(await ahead.popleft(), next(overlaps))

    async def _take(self, shard: _Finding, overlaps: list[_Overlap]) -> None:
        self._note(shard)
        if shard.columns is not None:
            self.num_samples += int(self._live[self._num_taken])
        self._num_taken += 1
        for overlap in overlaps:
            bundle = await self._examine_bundle(overlap.bundle)
            self.problems += _disagreements(shard, bundle, overlap)

    async def _examine_bundle(self, number: int) -> _Finding:
        """Returns the findings of a bundle; keeps only one, because bundles are requested in ascending order."""
        if self._bundle is None or self._bundle[0] != number:
            self._bundle = None
            self._bundle = number, await self._examine(self._manifest.bundles[number])
            self._note(self._bundle[1])
        return self._bundle[1]

    def _note(self, finding: _Finding) -> None:
        self.problems += finding.problems
        self._num_bytes += finding.entry.size
        if self._on_progress is not None:
            counts = {"num_bytes": self._num_bytes, "num_bytes_total": self.num_bytes_total}
            self._on_progress(VerifyProgress(**counts, num_problems=len(self.problems)))

    async def _examine(self, entry: ShardEntry | BundleEntry) -> _Finding:
        problems: list[VerifyProblem] = []
        async with asyncio.TaskGroup() as group:
            chunks = zip(split(ByteRange(0, entry.size), chunk_bytes=CHUNK_BYTES), entry.chunk_digests, strict=True)
            tasks = [group.create_task(self._chunk(entry, chunk, digest, problems)) for chunk, digest in chunks]
        parts = [part for task in tasks if (part := task.result()) is not None]
        if len(parts) < len(tasks):
            return _Finding(entry, problems[:1], None)
        return await asyncio.to_thread(
            _examine_bytes, b"".join(parts), entry, self._manifest, problems, may_have_more=self._may_have_more
        )

    async def _chunk(
        self, entry: ShardEntry | BundleEntry, chunk: ByteRange, digest: int | None, problems: list[VerifyProblem]
    ) -> memoryview | None:
        try:
            return await self._fetcher.fetch(entry, chunk.start, chunk.end, digest=digest)
        except DigestMismatch:
            what = "a chunk is not the one that the manifest pins"
            problems.append(VerifyProblem(what=what, shard=entry.key, start=chunk.start, end=chunk.end))
            # Without a digest, to name the damaged samples.
            return await self._fetcher.fetch(entry, chunk.start, chunk.end)
        except (NotFound, ObjectChanged, InvalidRange, FormatError) as error:
            problems.append(_problem(error, entry))
            return None


def _overlaps(manifest: Manifest) -> Iterator[list[_Overlap]]:
    """Yields the overlaps of each shard with bundles."""
    first = 0
    number = 0
    bundles = manifest.bundles
    for shard in manifest.shards:
        end = first + shard.num_samples
        common: list[_Overlap] = []
        while number < len(bundles) and bundles[number].first_sample < end:
            bundle = bundles[number]
            bundle_end = bundle.first_sample + bundle.num_samples
            start = max(first, bundle.first_sample)
            if (num_samples := min(end, bundle_end) - start) > 0:
                common.append(_Overlap(number, start - first, start - bundle.first_sample, num_samples))
            if bundle_end > end:
                break
            number += 1
        yield common
        first = end


def _examine_bytes(
    data: bytes,
    entry: ShardEntry | BundleEntry,
    manifest: Manifest,
    problems: list[VerifyProblem],
    *,
    may_have_more: bool,
) -> _Finding:
    has_digests = isinstance(entry, BundleEntry) or entry.has_digests
    if not problems and has_digests and xxhash.xxh3_128_hexdigest(data) != entry.digest:
        problems.append(VerifyProblem(what="the file's digest differs from the manifest", shard=entry.key))
    try:
        index = verify_shard(data, shard=entry.key)
    except CorruptData as error:
        # `verify_shard` stops at the first fault, but a repair needs all of them.
        faults = list(_faults(data, entry, error))
        return _Finding(entry, problems + faults[:_MAX_LISTED], None)
    problems += _contradictions(index, entry, manifest, may_have_more=may_have_more)
    return _Finding(entry, problems, None if problems else _fixed_columns(index, manifest))


def _faults(data: bytes, entry: ShardEntry | BundleEntry, first: CorruptData) -> Iterator[VerifyProblem]:
    tail = memoryview(data)[entry.tail_start :]
    try:
        index = ShardIndex.parse(tail, tail_start=entry.tail_start, size=len(data), shard=entry.key)
    except CorruptData as error:
        yield _problem(error, entry)
        return
    found = False
    for row in range(index.num_samples):
        for column in index.schema.payload:
            place = index.payload_range(row, column.name)
            try:
                index.decode_value(column.name, row, memoryview(data)[place.start : place.end])
            except CorruptData as error:
                found = True
                yield _problem(error, entry)
    if not found:
        yield _problem(first, entry)


def _contradictions(
    index: ShardIndex, entry: ShardEntry | BundleEntry, manifest: Manifest, *, may_have_more: bool
) -> Iterator[VerifyProblem]:
    schema = index.schema.to_dict()
    if isinstance(entry, ShardEntry):
        expected = manifest.schema
        names = [column.name for column in index.schema.payload]
        num_bytes = sum(int((index.payload_ends(name) - index.payload_starts(name)).sum()) for name in names)
        if num_bytes != entry.payload_bytes:
            yield VerifyProblem(
                what=f"{num_bytes} payload bytes, {entry.payload_bytes} in the manifest", shard=entry.key
            )
        if index.has_digests != entry.has_digests and index.schema.payload:
            yield VerifyProblem(what="the values have digests only here, or only in the manifest", shard=entry.key)
    else:
        expected = {column.name: column.type for column in Schema.parse(manifest.schema).fixed}
    if may_have_more:  # in any order
        schema = {name: schema[name] for name in expected if name in schema}
    schema = {
        name: f"{type_}?" if expected.get(name) == f"{type_}?" else type_ for name, type_ in schema.items()
    }  # without nulls
    if list(schema.items()) != list(expected.items()):
        yield VerifyProblem(what="the columns differ from the manifest", shard=entry.key)
    if index.num_samples != entry.num_samples:
        yield VerifyProblem(what=f"{index.num_samples} samples, {entry.num_samples} in the manifest", shard=entry.key)
    if index.tail_start != entry.tail_start:
        yield VerifyProblem(what="tail_start differs from the manifest", shard=entry.key)


def _fixed_columns(index: ShardIndex, manifest: Manifest) -> Columns:
    return {at.name: np.asanyarray(index.column(at.name)) for at in index.schema.fixed if at.name in manifest.schema}


def _disagreements(shard: _Finding, bundle: _Finding, overlap: _Overlap) -> Iterator[VerifyProblem]:
    if shard.columns is None or bundle.columns is None:
        return
    for name, repeated in bundle.columns.items():
        # Compare bytes: NaN equals NaN here, and -0.0 differs from 0.0.
        mine = _rows(shard.columns[name], overlap.shard_row, overlap.num_samples)
        theirs = _rows(repeated, overlap.bundle_row, overlap.num_samples)
        differing = np.flatnonzero((mine != theirs).any(axis=1))
        if len(differing):
            yield VerifyProblem(
                what=f"{format_count(len(differing), 'value differs', 'values differ')} from {bundle.entry.key}",
                shard=shard.entry.key,
                sample=overlap.shard_row + int(differing[0]),
                column=name,
            )


def _rows(values: npt.NDArray[Any], first: int, num_rows: int) -> npt.NDArray[np.uint8]:
    chosen = values[first : first + num_rows]
    data = np.ascontiguousarray(np.ma.getdata(chosen)).view(np.uint8).reshape(num_rows, -1)
    return np.column_stack([data, null_rows(chosen)])  # zeros differ from a null


def _first_leaf(group: BaseExceptionGroup[Any]) -> BaseException:
    first = group.exceptions[0]
    return _first_leaf(first) if isinstance(first, BaseExceptionGroup) else first


def _problem(error: StorageError, entry: ShardEntry | BundleEntry) -> VerifyProblem:
    return VerifyProblem(what=error.what, shard=entry.key, sample=error.sample, column=error.column)
