"""The way in: samples become shards, shards go up while further samples come, and one manifest makes them visible."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np

from storage.errors import AlreadyExists, CommitConflict, ConfigurationError, NotFound, SchemaError, StoreClosed
from storage.fetch.retry import RetryPolicy
from storage.hidden_arguments import hides_secrets
from storage.public_names import PublicNames
from storage.secrets import shortened
from storage.shards.builder import FinishedShard, ShardBuilder
from storage.shards.bundling import BundleGatherer
from storage.shards.columns import Schema
from storage.shards.commit_tokens import check_token, snapshot_of, user_metadata, with_token
from storage.shards.cutting import ShardCutter
from storage.shards.index import ShardIndex
from storage.shards.manifest import BundleEntry, Manifest, ShardEntry, bundle_key, shard_key
from storage.shards.snapshots import commit, latest_snapshot, load_manifest
from storage.shards.statistics import Statistics, fixed_facts, merge_statistics, payload_facts
from storage.shards.upload_queue import UploadQueue
from storage.sizes import Size, parse_size
from storage.stores.opening import open_store
from storage.stores.protocol import Store

__all__ = ["ShardWriter"]

_MIN_SHARD_BYTES = 4 << 10
_MAX_SHARD_BYTES = 1 << 30


class ShardWriter(PublicNames):
    """Writes a data set, or a further snapshot of one.

    ::

        with ShardWriter("s3://bucket/photos", columns={"image": "jpeg", "label": "int64"}) as writer:
            for image, label in samples:
                writer.write({"image": image, "label": label})

    Leaving the block commits; leaving it by an exception, or being killed at any moment, makes nothing visible. The
    same samples make the same objects under the same names, whatever the timing.

    Args:
        url: Where to, as `storage.open_store` takes it. Or a store of the caller's: nobody else may use it until the
            writer is closed, and the writer does not close it.
        columns: Name → type, see `storage.shards.columns`.
        shard_size: A finished shard is no larger, unless a single sample is. The default is one transfer chunk: one
            shard is one GET.
        append: Commit on top of the newest snapshot, whose columns must be the same; where there is none, begin one.
        overwrite: Commit a snapshot of the new samples alone; older snapshots stay readable.
        metadata: Free-form JSON; when appending, keys given here replace those of the parent.
        uploads_in_flight: Shards on their way at once; `write` waits beyond that. The writer holds about twice as many
            shards in memory.
        token: Name of this commit. If the data set has a commit of this name, nothing is added: `write` ignores its
            samples, and `manifest` is the snapshot of that commit. So a program whose commit was made, but which did
            not learn of it, can be run again. The last 1,000 names are kept; an overwrite forgets those before it.
        retry: When to insist on an upload or a commit.
        client: As for `storage.open_store`.
        storage_options: As for `storage.open_store`.

    Raises:
        AlreadyExists: There is a data set, and neither ``append`` nor ``overwrite`` was asked for.
        SchemaError: Columns that cannot be, or other ones than those of the data set to append to.
        ConfigurationError: Options that cannot work.

    Thread-safety: one thread at a time.
    """

    @hides_secrets
    def __init__(
        self,
        url: str | os.PathLike[str] | Store,
        *,
        columns: Mapping[str, str],
        shard_size: Size = "8MiB",
        append: bool = False,
        overwrite: bool = False,
        metadata: Mapping[str, Any] | None = None,
        uploads_in_flight: int = 4,
        token: str | None = None,
        retry: RetryPolicy | None = None,
        client: str = "auto",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if append and overwrite:
            raise ConfigurationError("append and overwrite exclude each other")
        if uploads_in_flight < 1:
            raise ConfigurationError("uploads_in_flight must be at least 1", got=uploads_in_flight)
        shard_bytes = parse_size(shard_size, name="shard_size")
        if not _MIN_SHARD_BYTES <= shard_bytes <= _MAX_SHARD_BYTES:
            raise ConfigurationError("shard_size must be 4 KiB to 1 GiB", got=shard_size)
        self.schema = Schema.parse(columns)
        self._append, self._overwrite = append, overwrite
        self._metadata = user_metadata(metadata)
        self._token = check_token(token)
        self._repeats = False
        self._where = url
        self._opening = (client, dict(storage_options or {}))
        self._uploads_in_flight = uploads_in_flight
        self._retry = retry
        self._cutter = ShardCutter(self.schema, shard_bytes=shard_bytes)
        self._bundler = BundleGatherer(self.schema)
        self._shards: list[ShardEntry] = []
        self._bundles: list[BundleEntry] = []  # first_sample counts this writer's samples
        self._statistics: Statistics = {}
        self._num_samples = 0
        self._manifest: Manifest | None = None
        self._conflict = False
        self._torn = False  # an interrupt (Ctrl-C, MemoryError) hit in the middle of a change: never commit that
        self._in_doubt: Manifest | None = None  # its commit failed, and may have happened all the same
        self._queue: UploadQueue | None = self._open_queue()
        try:
            self._parent = self._load_parent()
        except BaseException:
            self.close()
            raise
        if self._repeats:
            self.close()

    @property
    def num_samples(self) -> int:
        """Written so far by this writer."""
        return self._num_samples

    @property
    def repeats(self) -> bool:
        """Whether a commit of the same token was there already, so that this writer adds nothing."""
        return self._repeats

    @property
    def parent(self) -> Manifest | None:
        """The snapshot that the next commit builds on; None for a new data set."""
        return self._parent

    @property
    def manifest(self) -> Manifest:
        """The snapshot that was committed.

        Raises:
            StoreClosed: Nothing was committed (yet).
        """
        if self._manifest is None:
            raise StoreClosed("nothing has been committed")
        return self._manifest

    def write(self, sample: Mapping[str, object]) -> None:
        """Adds a sample.

        Args:
            sample: A value for each column and for nothing else.

        Raises:
            SchemaError: The sample does not fit; it was not written, and the writer goes on.
            StorageError: A shard could not be uploaded, in spite of retries. This sample was not written; the shard's
                bytes are kept and sent again by the next call.
        """
        if self._repeats:
            return
        queue = self._writable()
        queue.check()
        with self._whole():
            try:
                full = self._cutter.add(sample)
            except SchemaError as error:
                self._torn = False
                error.locate(sample=self._num_samples)
                shortened(error, num_frames=1)
                raise
            self._num_samples += 1
            if full is not None:
                self._finish_shard(full)

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Sets further keys of the metadata, up to the commit (what is only known after the last sample).

        Raises:
            ConfigurationError: Not JSON.
        """
        if not self._repeats:
            self._writable()
        self._metadata = {**self._metadata, **user_metadata(metadata)}

    def commit(self, *, rebase: bool = False) -> Manifest:
        """Waits for the uploads and makes everything visible at once; the writer is closed then.

        Args:
            rebase: After a `CommitConflict`: put this writer's samples on top of what the other writer committed.

        Returns:
            The new snapshot. A second call returns it again.

        Raises:
            CommitConflict: Another writer committed meanwhile. All shards are kept: ``commit(rebase=True)`` works even
                after the ``with`` block.
            SchemaError: Rebasing onto a snapshot with other columns.
            StorageError: The store failed, in spite of retries; calling again tries again.
        """
        if self._manifest is not None:
            return self._manifest
        if self._queue is None and self._conflict:
            self._queue = self._open_queue()
        queue = self._writable()
        if self._torn:
            raise StoreClosed("a write was interrupted half-way; what this writer holds cannot be committed")
        with self._whole():
            self._finish_rest()
        queue.flush()
        self._manifest = self._committed_in_doubt(queue) or self._commit(queue, rebase=rebase)
        self.close()
        return self._manifest

    def close(self) -> None:
        """Stops uploads and releases the store; what was not committed stays invisible. Idempotent."""
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._queue is not None:
                self.commit()
        finally:
            self.close()

    # -- the data set it writes to -------------------------------------------------------------------------------------

    def _open_queue(self) -> UploadQueue:
        given = isinstance(self._where, Store)
        client, options = self._opening
        store = self._where if isinstance(self._where, Store) else open_store(self._where, client=client, **options)
        return UploadQueue(store, in_flight=self._uploads_in_flight, keep_store=given, retry=self._retry)

    def _load_parent(self) -> Manifest | None:
        queue = self._writable()
        snapshot = queue.run(latest_snapshot(queue.store))
        if snapshot is None:
            return None
        parent = (
            queue.run(load_manifest(queue.store, snapshot)) if self._token or self._append or self._overwrite else None
        )
        self._manifest = self._committed_before(queue, parent)
        if self._manifest is None and not self._append and not self._overwrite:
            raise AlreadyExists(
                "there is a data set already; add to it (append=True, --append) or replace it (overwrite=True)",
                url=queue.store.url,
                got=f"snapshot {snapshot}",
            )
        if self._append and parent is not None:
            self._check_same_columns(parent, queue.store.url)
        return parent

    def _committed_before(self, queue: UploadQueue, newest: Manifest | None) -> Manifest | None:
        """Returns the snapshot that this writer's token was committed in, if the newest one knows it."""
        number = snapshot_of(newest, self._token)
        if number is None or newest is None:
            return None
        self._repeats = True
        with suppress(NotFound):  # somebody deleted that snapshot; what it added is in the newest one
            return queue.run(load_manifest(queue.store, number))
        return newest

    def _commit(self, queue: UploadQueue, *, rebase: bool) -> Manifest:
        if rebase:
            self._rebase(queue)
            if (made := self._committed_before(queue, self._parent)) is not None:
                return made
        manifest = self._next_manifest()
        try:
            queue.run(commit(queue.store, manifest, retry=self._retry))
        except CommitConflict:
            self._conflict = True
            newest = queue.run(load_manifest(queue.store)) if self._token is not None else None
            if (made := self._committed_before(queue, newest)) is not None:
                return made
            raise
        except BaseException:
            self._in_doubt = manifest
            raise
        return manifest

    def _committed_in_doubt(self, queue: UploadQueue) -> Manifest | None:
        """Returns the snapshot of an earlier commit that failed if it was made after all (its answer was lost)."""
        doubtful = self._in_doubt
        if doubtful is None:
            return None
        try:
            found = queue.run(load_manifest(queue.store, doubtful.snapshot))
        except NotFound:
            return None
        return found if found.digest == doubtful.digest else None

    def _rebase(self, queue: UploadQueue) -> None:
        parent = queue.run(load_manifest(queue.store))
        if not self._overwrite:
            self._check_same_columns(parent, queue.store.url)
            self._append = True  # a writer that meant to begin the data set now adds to the one that was quicker
        self._parent = parent

    def _check_same_columns(self, parent: Manifest, url: str) -> None:
        if list(parent.schema.items()) != list(self.schema.to_dict().items()):
            raise SchemaError(
                "the columns are not those of the data set to append to", url=url,
                expected=parent.schema, got=self.schema.to_dict(),
            )  # fmt: skip

    def _next_manifest(self) -> Manifest:
        parent = self._parent
        base = parent if self._append else None
        first = base.num_samples if base else 0
        bundles = (replace(entry, first_sample=first + entry.first_sample) for entry in self._bundles)
        snapshot = parent.snapshot + 1 if parent else 1
        metadata = {**(base.metadata if base else {}), **self._metadata}
        return Manifest(
            snapshot=snapshot,
            schema=self.schema.to_dict(),
            shards=(*(base.shards if base else ()), *self._shards),
            bundles=(*(base.bundles if base else ()), *bundles),
            statistics=merge_statistics(base.statistics if base else {}, self._statistics),
            metadata=with_token(metadata, self._token, snapshot),
            parent=parent.digest if parent else None,
        )

    @contextmanager
    def _whole(self) -> Iterator[None]:
        self._torn = True
        yield
        self._torn = False  # not in a finally: what was torn stays so

    def _writable(self) -> UploadQueue:
        if self._manifest is not None:
            raise StoreClosed("this writer has committed; open another one with append=True")
        if self._queue is None:
            raise StoreClosed("this writer is closed")
        return self._queue

    # -- shards --------------------------------------------------------------------------------------------------------

    def _finish_rest(self) -> None:
        rest = self._cutter.take_rest()
        if rest is not None:
            self._finish_shard(rest)
        for bundle in self._bundler.flush():
            self._put_bundle(bundle)

    def _finish_shard(self, builder: ShardBuilder) -> None:
        shard = builder.finish()
        data = shard.data
        entry = ShardEntry(
            key=shard_key(shard.digest),
            size=shard.size,
            num_samples=shard.num_samples,
            tail_start=shard.tail_start,
            digest=shard.digest,
            chunk_digests=shard.chunk_digests,
            payload_bytes=shard.payload_bytes,
        )
        self._shards.append(entry)
        self._writable().put(entry.key, data)
        fixed = {column.name: builder.fixed_values(column.name) for column in self.schema.fixed}
        self._statistics = merge_statistics(self._statistics, self._describe(entry, data, fixed))
        for bundle in self._bundler.add(fixed, shard.num_samples):
            self._put_bundle(bundle)

    def _put_bundle(self, bundle: FinishedShard) -> None:
        first = self._bundles[-1].first_sample + self._bundles[-1].num_samples if self._bundles else 0
        entry = BundleEntry(
            key=bundle_key(bundle.digest),
            size=bundle.size,
            tail_start=bundle.tail_start,
            digest=bundle.digest,
            chunk_digests=bundle.chunk_digests,
            first_sample=first,
            num_samples=bundle.num_samples,
        )
        self._bundles.append(entry)
        self._writable().put(entry.key, bundle.data)

    def _describe(self, entry: ShardEntry, data: memoryview, fixed: Mapping[str, np.ndarray[Any, Any]]) -> Statistics:
        facts = {name: fixed_facts(values) for name, values in fixed.items()}
        if self.schema.payload:
            # Read back as a reader would: a shard that cannot be read is never committed.
            tail = data[entry.tail_start :]
            index = ShardIndex.parse(tail, tail_start=entry.tail_start, size=entry.size, shard=entry.key)
            for column in self.schema.payload:
                facts[column.name] = payload_facts(index.payload_ends(column.name) - index.payload_starts(column.name))
        return facts
