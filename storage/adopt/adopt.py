"""Adopts a source: scans its objects once, and commits an index through which they are a dataset."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from concurrent_loader.storage.adopt.formats import HEADERS_ONLY, find_format
from concurrent_loader.storage.adopt.header_reader import HeaderReader
from concurrent_loader.storage.adopt.object_reader import StoreObjects
from concurrent_loader.storage.adopt.protocol import ForeignColumn, ForeignFormat, SourceObject, UnitFormat
from concurrent_loader.storage.adopt.report import AdoptPlan, AdoptProgress, AdoptReport
from concurrent_loader.storage.adopt.scan import ScannedObject, Scanner
from concurrent_loader.storage.adopt.stores import open_both
from concurrent_loader.storage.errors import (
    AlreadyExists,
    CommitConflict,
    ConfigurationError,
    DatasetChanged,
    FormatError,
    SchemaError,
    StorageError,
)
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.fetch.upload import Uploader
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.listing import ObjectEntry, list_objects
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.shards.format.schema import Column, Schema
from concurrent_loader.storage.shards.manifest.commit_tokens import user_metadata
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.snapshots import commit, latest_snapshot, load_manifest
from concurrent_loader.storage.shards.writing.records import Records, run_name
from concurrent_loader.storage.shards.writing.written_shards import WrittenShards
from concurrent_loader.storage.sizes import Size, parse_size
from concurrent_loader.storage.stores.backends.local import LocalStore

__all__ = ["adopt"]

_MIN_SHARD_BYTES, _MAX_SHARD_BYTES = 64 << 10, 1 << 30
_HEADER_THREADS = 32  # they wait for small requests
_POLL_S = 0.2


@hides_secrets
def adopt(
    format: str,  # noqa: A002 - the word of the command line
    source: str | os.PathLike[str],
    index: str | os.PathLike[str],
    *,
    columns: Mapping[str, str] | None = None,
    only: Sequence[str] | None = None,
    match: str | None = None,
    append: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    headers_only: bool = False,
    block_size: int | None = None,
    shard_size: Size = "8MiB",
    num_threads: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    client: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[AdoptProgress], None] | None = None,
) -> AdoptReport:
    """Makes data of another format a dataset, without copying or changing it.

    Every byte is read once, and gets a digest, unless ``headers_only`` is set. The index holds columns, positions and
    digests; samples are read from the source. A run that was interrupted continues: objects that were scanned are not
    read again.

    Args:
        format: ``"webdataset"``, ``"mds"``, ``"litdata"``, ``"tfrecord"`` or ``"parquet"``.
        source: URL of the folder or prefix that holds the data. Nothing is written there.
        index: URL of the dataset to make.
        columns: Types by column name, for columns whose derived type is not the wanted one.
        only: Columns to adopt; all by default.
        match: Pattern that the keys of objects must match, such as ``"data/train-*"``, as in a shell, where ``*``
            matches slashes too; by default every key.
        append: Whether to adopt only the objects that the newest snapshot of the index does not have.
        overwrite: Whether the new snapshot replaces the samples of the index.
        dry_run: Whether to stop before the scan, and only report what it would read.
        headers_only: Whether to read only the headers of the objects, and the values that go into the index. Payload
            then has no digests: reading it checks its length and the object's ETag, but not the bytes. For
            ``"webdataset"``, ``"mds"`` and ``"litdata"`` without compression, from a store with ETags.
        block_size: Number of tokens per sample, for chunks of LitData's ``TokensLoader``; by default each written item
            is a sample.
        shard_size: Target size of a virtual shard, 8 MiB by default, which is one request.
        num_threads: Number of objects to scan at the same time. Default: the number of processors, at most 8; with
            ``headers_only``, 32.
        metadata: JSON metadata of the snapshot.
        client: Client library, as for `concurrent_loader.storage.open_store`.
        storage_options: Options of the index's store.
        source_options: Options of the source's store; by default those of the index's store.
        on_progress: Callback for progress, called on the calling thread.

    Raises:
        FormatError: The source is not of this format, or is damaged; the error names object and sample.
        AlreadyExists: The index exists, and neither ``append`` nor ``overwrite`` is set.
        SchemaError: The columns differ from those of the index to append to.
        DatasetChanged: An object changed during the scan, or since it was adopted.
        ConfigurationError: An option is invalid, or the source has no headers that could be read alone.
        StorageError: Source or index failed.

    Example:
        >>> import io, os, tarfile
        >>> from concurrent_loader import ShardDataset
        >>> from concurrent_loader.storage.adopt import adopt
        >>> os.mkdir("tars")
        >>> with tarfile.open("tars/a.tar", "w") as tar:
        ...     info = tarfile.TarInfo("0.txt")
        ...     info.size = 5
        ...     tar.addfile(info, io.BytesIO(b"hello"))
        >>> adopt("webdataset", "tars", "adopted").num_samples
        1
        >>> with ShardDataset("adopted") as dataset:
        ...     dataset[0]["txt"]
        'hello'
    """
    if append and overwrite:
        raise ConfigurationError("append and overwrite exclude each other")
    shard_bytes = parse_size(shard_size, name="shard_size")
    if not _MIN_SHARD_BYTES <= shard_bytes <= _MAX_SHARD_BYTES:
        raise ConfigurationError("shard_size must be 64 KiB to 1 GiB", got=shard_size)
    if num_threads is not None and num_threads < 1:
        raise ConfigurationError("num_threads must be at least 1", got=num_threads)
    form = find_format(format, block_size=block_size)
    if headers_only and form.name not in HEADERS_ONLY:
        raise ConfigurationError(
            "objects of this format are read as a whole; adopt without headers_only (--headers-only)",
            expected=sorted(HEADERS_ONLY), got=format,
        )  # fmt: skip
    began = time.monotonic()
    with open_both(source, index, client, storage_options, source_options) as (loop, data, target):
        run = _Adoption(loop, data, target, form)
        parent = run.parent(append=append, overwrite=overwrite)
        found = run.find(parent if append else None, match)
        reads_headers = headers_only or (dry_run and run.has_headers(found))
        derived = run.columns(found, columns or {}, only, parent if append else None, headers_only=reads_headers)
        plan = run.plan(found, derived)
        if dry_run:
            return AdoptReport(plan=plan, manifest=None, duration_s=time.monotonic() - began)
        if not found:
            if parent is None:
                raise FormatError("the source has no object of this format", url=data.store.url)
            return AdoptReport(plan=plan, manifest=parent, duration_s=time.monotonic() - began)
        scanner = Scanner(
            format=form, columns=derived, chosen=only is not None, shard_bytes=shard_bytes, engine=data, loop=loop,
            pins_etags=not isinstance(data.store, LocalStore), headers_only=headers_only,
        )  # fmt: skip
        identity = {
            "format": format, "url": data.store.url, "shard_bytes": shard_bytes, "chosen": only is not None,
            "headers_only": headers_only,
            "columns": [[name, column.type, column.encoding] for name, column in derived.items()],
        }  # fmt: skip
        records = Records(target, run_name(identity))
        threads = num_threads or (_HEADER_THREADS if headers_only else min(8, os.cpu_count() or 1))
        scanned, num_resumed = run.scan(
            scanner, records, found, min(threads, run.max_threads or threads), plan, on_progress
        )
        classes = {name: list(column.classes) for name, column in derived.items() if column.classes}
        facts = {**({"classes": classes} if classes else {}), **(metadata or {}), "adopted": format}
        manifest = run.commit(scanned, derived, parent, append=append, metadata=facts)
        with suppress(StorageError):  # they are small, and no reader looks at them
            loop.run(records.delete())
    entries = [shard.entry for each in scanned for shard in each]
    return AdoptReport(
        plan=plan,
        manifest=manifest,
        num_samples=sum(entry.num_samples for entry in entries),
        num_resumed=num_resumed,
        index_bytes=sum(entry.size - entry.tail_start for entry in entries),
        duration_s=time.monotonic() - began,
    )


class _Adoption:
    """The steps of one adoption."""

    def __init__(self, loop: LoopThread, source: FetchEngine, target: FetchEngine, form: ForeignFormat) -> None:
        self._loop = loop
        self._source = source
        self._target = target
        self._format = form
        self._uploader = Uploader(store=target.store, retry=target.policy)
        self._num_ignored = 0
        self._headers: HeaderReader | None = None
        self.max_threads: int | None = None

    def parent(self, *, append: bool, overwrite: bool) -> Manifest | None:
        """Returns the newest snapshot of the index."""
        snapshot = self._loop.run(latest_snapshot(self._target))
        if snapshot is None:
            return None
        if not append and not overwrite:
            raise AlreadyExists(
                "the index exists already; adopt new objects (append=True, --append) or replace it (overwrite=True)",
                url=self._target.store.url, got=f"snapshot {snapshot}",
            )  # fmt: skip
        return self._loop.run(load_manifest(self._target, snapshot))

    def find(self, onto: Manifest | None, match: str | None) -> list[SourceObject]:
        """Returns the objects to scan, in the order of the samples."""
        listing = self._loop.run(list_objects(self._source, lambda key: True))
        url = self._source.store.url
        entries = [
            ObjectEntry(url, key, size, etag or None)
            for key, size, etag in zip(
                listing.keys.tolist(), listing.sizes.tolist(), listing.etags.tolist(), strict=True
            )
        ]
        small = StoreObjects({entry.key: entry for entry in entries}, self._source, self._loop)
        wanted = entries if match is None else [entry for entry in entries if fnmatchcase(entry.key, match)]
        found = self._format.objects(wanted, small)
        self._num_ignored = len(entries) - len(found)
        ranges = onto.table.ranges if onto is not None else None
        if ranges is None:
            return found
        known = {file.key: file for file in ranges.files if file.url == url}
        for each in found:
            before = known.get(each.entry.key)
            if before is None:
                continue
            if before.size != each.entry.size or before.etag not in (None, each.entry.etag):
                raise DatasetChanged(
                    "an adopted object was replaced; adopt its source again with --overwrite",
                    url=url, key=each.entry.key, expected=before.etag or before.size, got=each.entry.etag,
                )  # fmt: skip
        return [each for each in found if each.entry.key not in known]

    def has_headers(self, found: Sequence[SourceObject]) -> bool:
        """Returns whether the headers of the objects can be read alone."""
        if not found or self._format.name not in HEADERS_ONLY:
            return False
        return found[0].entry.etag is not None and not found[0].info.get("compression")

    def columns(
        self,
        found: list[SourceObject],
        types: Mapping[str, str],
        only: Sequence[str] | None,
        onto: Manifest | None,
        *,
        headers_only: bool,
    ) -> dict[str, ForeignColumn]:
        """Returns the columns of the dataset."""
        if not found:
            return {}
        scanner = Scanner(
            format=self._format, columns={}, chosen=False, shard_bytes=0, engine=self._source, loop=self._loop,
            pins_etags=False, headers_only=headers_only,
        )  # fmt: skip
        reader = scanner.open(found[0])
        try:
            derived = self._format.columns(found[0], reader)
            if isinstance(self._format, UnitFormat):
                self.max_threads = self._format.max_threads(reader)
        except StorageError as error:
            error.locate(url=self._source.store.url, key=found[0].entry.key)
            raise
        finally:
            reader.close()
        self._headers = reader if isinstance(reader, HeaderReader) else None
        for name in (*types, *(only or ())):
            if name not in derived:
                raise SchemaError("the source has no such column", column=name, expected=sorted(derived))
        for name, type_ in types.items():
            asked, known = self._format.retype(found[0], name, type_), derived[name]
            derived[name] = asked = replace(asked, field=known.field)
            if "int" in asked.type:
                derived[name] = replace(asked, classes=known.classes, unit=known.unit)
        chosen = {name: derived[name] for name in (only if only is not None else derived)}
        schema = Schema(tuple(Column(name, column.type, column.encoding) for name, column in chosen.items()))
        if onto is not None and list(schema.to_dict().items()) != list(onto.schema.items()):
            raise SchemaError(
                "the columns differ from those of the index to append to; choose them with --only and --column",
                expected=onto.schema, got=schema.to_dict(),
            )  # fmt: skip
        if onto is not None:
            _check_classes(chosen, onto)
        if onto is not None and onto.places:
            raise SchemaError(
                "columns of the index to append to were added, renamed or dropped; adopt the new objects into an index "
                "of its own", expected=onto.schema,
            )  # fmt: skip
        return chosen

    def plan(self, found: list[SourceObject], columns: Mapping[str, ForeignColumn]) -> AdoptPlan:
        """Returns what the scan reads; of headers, as much per byte of the source as the first samples took."""
        num_bytes = sum(each.entry.size for each in found)
        headers = self._headers
        share = 0.0 if headers is None else num_bytes / max(1, headers.end)
        num_requests = sum(-(-each.entry.size // (8 << 20)) for each in found)
        return AdoptPlan(
            columns={name: column.type for name, column in columns.items()},
            num_objects=len(found),
            num_bytes=num_bytes,
            num_requests=num_requests,
            num_ignored=self._num_ignored,
            headers_bytes=None if headers is None else min(num_bytes, round(headers.num_bytes * share)),
            headers_requests=None if headers is None else round(headers.num_requests * share),
        )

    def scan(
        self,
        scanner: Scanner,
        records: Records,
        found: list[SourceObject],
        num_threads: int,
        plan: AdoptPlan,
        on_progress: Callable[[AdoptProgress], None] | None,
    ) -> tuple[list[ScannedObject], int]:
        """Scans all objects, several at a time; returns the results in order, and the number of resumed objects."""
        self._loop.run(records.open())
        began = time.monotonic()
        before = self._source.counters.num_bytes
        num_resumed = 0

        def one(source: SourceObject) -> ScannedObject:
            nonlocal num_resumed
            known = self._loop.run(records.load(source.entry.digest, scanner.source_file(source)))
            if known is not None:
                num_resumed += 1
                return known
            scanned = scanner.scan(source, self._upload)
            self._loop.run(records.save(source.entry.digest, [shard.entry for shard in scanned]))
            return scanned

        def report(tasks: list[Future[ScannedObject]]) -> None:
            if on_progress is not None:
                on_progress(
                    AdoptProgress(
                        num_bytes=self._source.counters.num_bytes - before,
                        num_bytes_total=(plan.headers_bytes or 0) if scanner.headers_only else plan.num_bytes,
                        num_objects=sum(task.done() for task in tasks),
                        num_objects_total=plan.num_objects,
                        duration_s=time.monotonic() - began,
                    )
                )

        with ThreadPoolExecutor(num_threads, thread_name_prefix="adopt") as pool:
            tasks = [pool.submit(one, each) for each in found]
            try:
                pending = set(tasks)
                while pending:
                    done, pending = wait(pending, timeout=_POLL_S, return_when="FIRST_EXCEPTION")
                    report(tasks)
                    for task in done:
                        task.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return [task.result() for task in tasks], num_resumed

    def commit(
        self,
        scanned: list[ScannedObject],
        columns: Mapping[str, ForeignColumn],
        parent: Manifest | None,
        *,
        append: bool,
        metadata: Mapping[str, Any],
    ) -> Manifest:
        """Commits a snapshot of all scanned objects."""
        schema = Schema(tuple(Column(name, column.type, column.encoding) for name, column in columns.items()))
        written = WrittenShards(schema)
        for each in scanned:
            for shard in each:
                written.add_entry(shard.entry, shard.fixed, shard.statistics, self._upload)
        written.flush(self._upload)
        manifest = written.manifest(parent, append=append, metadata=user_metadata(metadata), token=None)
        self._loop.run(self._uploader.confirm_replaced())
        try:
            self._loop.run(commit(self._target, manifest))
        except CommitConflict as error:
            error.what = "another writer committed meanwhile; run it again, with --append (append=True) to add to that"
            raise
        return manifest

    def _upload(self, key: str, data: Any) -> None:
        self._loop.run(self._uploader.put_content_addressed(key, data))


def _check_classes(columns: Mapping[str, ForeignColumn], onto: Manifest) -> None:
    """Checks that labels keep their names: the names of the index, and perhaps more behind them."""
    known = onto.metadata.get("classes")
    for name, column in columns.items():
        before = known.get(name) if isinstance(known, dict) else None
        if column.classes and isinstance(before, list) and list(column.classes[: len(before)]) != before:
            raise SchemaError(
                "the source numbers its classes differently from the index: adopt it into an index of its own",
                column=name, expected=before[:5], got=column.classes[:5],
            )  # fmt: skip
