"""Writes samples to a dataset: shards are uploaded while more samples arrive, and a manifest makes them visible."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from concurrent_loader.storage.errors import (
    AlreadyExists,
    CommitConflict,
    ConfigurationError,
    NotFound,
    SchemaError,
    StoreClosed,
)
from concurrent_loader.storage.fetch.retry import RetryPolicy
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.public_names import PublicNames
from concurrent_loader.storage.redaction import shorten_traceback
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.shards.manifest.commit_tokens import check_token, snapshot_of, user_metadata
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.snapshots import commit, latest_snapshot, load_manifest
from concurrent_loader.storage.shards.writing.part_shards import PartSplitter, WrittenParts
from concurrent_loader.storage.shards.writing.shard_sizing import parse_shard_size
from concurrent_loader.storage.shards.writing.upload_queue import UploadQueue
from concurrent_loader.storage.shards.writing.written_shards import check_same_columns
from concurrent_loader.storage.sizes import Size
from concurrent_loader.storage.stores.backends.open_store import open_store
from concurrent_loader.storage.stores.store import Store

__all__ = ["ShardWriter"]

_MAX_REBASES = 32  # of one commit; each one means that another writer has committed


class ShardWriter(PublicNames):
    """Writes a dataset, or another snapshot of a dataset.

    Leaving the ``with`` block commits. Leaving it by an exception, or killing the process at any moment, makes nothing
    visible. The same samples give the same objects under the same names.

    Args:
        url: URL of the dataset, as for `concurrent_loader.storage.open_store`. It may also be an open store, which only
            the writer may use until it is closed, and which it does not close.
        columns: Column types by name, such as ``"jpeg"`` or ``"int64"``; docs/reference/format.md lists them.
        shard_size: Upper bound of a shard, 8 MiB by default, which is one GET; a single larger sample may exceed it.
        append: Whether to add to the newest snapshot, which must have the same columns. Without a snapshot, the writer
            starts a dataset.
        overwrite: Whether the new snapshot holds only the new samples; older snapshots stay readable.
        allow_empty: Whether a commit without samples is allowed; by default it is an error, because it is most often a
            wrong path or filter.
        metadata: JSON metadata of the snapshot; when appending, its keys replace those of the parent.
        uploads_in_flight: Upper bound of concurrent uploads, 4 by default; `write` waits beyond it. The writer holds
            about twice as many shards in memory.
        token: Name of this commit. If the dataset has a commit of this name, `write` ignores all samples, and
            `manifest` is the snapshot of that commit. So a program can run again if it did not learn that its commit
            succeeded. The last 1,000 names are kept; an overwrite forgets earlier names.
        retry: Retry policy for uploads and the commit.
        client: Client library, as for `concurrent_loader.storage.open_store`.
        storage_options: Options of the store, as for `concurrent_loader.storage.open_store`.

    Raises:
        AlreadyExists: The dataset exists, and neither ``append`` nor ``overwrite`` is set.
        SchemaError: The columns are invalid, or differ from those of the dataset to append to.
        ConfigurationError: An option is invalid.

    Thread-safety: One thread at a time.

    Example:
        >>> from concurrent_loader.storage import ShardWriter
        >>> with ShardWriter("numbers", columns={"x": "int64"}) as writer:
        ...     for number in range(3):
        ...         writer.write({"x": number})
        >>> writer.manifest.num_samples
        3
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
        allow_empty: bool = False,
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
        shard_bytes = parse_shard_size(shard_size)
        self.schema = Schema.parse(columns)
        self._append, self._overwrite = append, overwrite
        self._allow_empty = allow_empty
        self._metadata = user_metadata(metadata)
        self._token = self._kept_token = check_token(token)
        self._repeats = False
        self._where = url
        self._opening = (client, dict(storage_options or {}))
        self._uploads_in_flight = uploads_in_flight
        self._retry = retry
        self._num_samples = 0
        self._manifest: Manifest | None = None
        self._conflict = False
        self._torn = False  # an interrupt (Ctrl-C, MemoryError) hit during a change, which must never be committed
        self._in_doubt: Manifest | None = None  # the commit failed, but may have succeeded in the store
        self._queue: UploadQueue | None = self._open_queue()
        try:
            self._parent = self._load_parent()
        except BaseException:
            self.close()
            raise
        self._places = self._parent.places if append and self._parent is not None else {}
        self._cutter = PartSplitter(self.schema, self._places, shard_bytes=shard_bytes)
        self._written = WrittenParts(self.schema, self._places)
        if self._repeats:
            self.close()

    @property
    def num_samples(self) -> int:
        """Number of samples that this writer has written so far."""
        return self._num_samples

    @property
    def repeats(self) -> bool:
        """Whether a commit with the same token exists, so that this writer adds nothing."""
        return self._repeats

    @property
    def parent(self) -> Manifest | None:
        """Snapshot on which the next commit builds; None for a new dataset."""
        return self._parent

    @property
    def manifest(self) -> Manifest:
        """Committed snapshot.

        Raises:
            StoreClosed: Nothing has been committed yet.
        """
        if self._manifest is None:
            raise StoreClosed("nothing has been committed")
        return self._manifest

    def write(self, sample: Mapping[str, object]) -> None:
        """Adds a sample.

        Args:
            sample: Values by column name, one for every column.

        Raises:
            SchemaError: A value does not fit its column. The sample was not written, and the writer remains usable.
            StorageError: An upload failed in spite of retries. This sample was not written; the next call retries the
                upload.
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
                shorten_traceback(error, num_frames=1)
                raise
            self._num_samples += 1
            if full is not None:
                self._written.add(full, queue.put)

    def write_batch(self, columns: Mapping[str, Any] | Any) -> None:
        """Adds many samples, given by columns. The dataset is the same, byte for byte, as after `write` of each sample.

        Args:
            columns: Values of each column, all of one length: a sequence, an array (n, ...) of NumPy, a tensor, an
                Arrow array, or a series of polars or pandas; or a table of Arrow, polars or pandas. In an optional
                column, nulls of these libraries, masked rows and None are nulls. Sequences take longer than arrays.

        Raises:
            SchemaError: A value does not fit its column; the error names column and sample. Nothing was written, and
                the writer remains usable.
            StorageError: An earlier upload failed in spite of retries. Nothing was written; the next call retries it.

        Example:
            >>> import numpy as np
            >>> from concurrent_loader.storage import ShardWriter
            >>> with ShardWriter("squares", columns={"x": "int64", "name": "str"}) as writer:
            ...     writer.write_batch({"x": np.arange(3) ** 2, "name": ["zero", "one", "four"]})
            >>> writer.manifest.num_samples
            3
        """
        if self._repeats:
            return
        queue = self._writable()
        queue.check()
        try:
            batch = self._cutter.encode(columns)
        except SchemaError as error:
            if error.sample is not None:
                error.sample = self._num_samples + int(error.sample)
            shorten_traceback(error, num_frames=1)
            raise
        with self._whole():
            for full in self._cutter.extend(batch):
                self._written.add(full, queue.put)
            self._num_samples += batch.num_samples

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Sets more keys of the metadata, before the commit.

        Raises:
            ConfigurationError: The metadata is not JSON.
        """
        if not self._repeats:
            self._writable()
        self._metadata = {**self._metadata, **user_metadata(metadata)}

    def keep_token(self, token: str | None) -> None:
        """Names the commit like ``token``, but does not look for an earlier commit of that name."""
        self._kept_token = check_token(token)

    def commit(self, *, rebase: bool | None = None) -> Manifest:
        """Waits for the uploads, makes all samples visible at once, and closes the writer.

        Args:
            rebase: Whether to put this writer's samples on top of another writer's that committed meanwhile, as often
                as that happens, up to 32 times. Default: only with ``append`` or ``overwrite``, because a writer of a
                new dataset would add to another one.

        Returns:
            New snapshot; a second call returns the same one.

        Raises:
            CommitConflict: Another writer committed meanwhile. All shards are kept, so ``commit(rebase=True)`` works
                even after the ``with`` block.
            ConfigurationError: No sample was written, and ``allow_empty`` is false.
            SchemaError: The snapshot to rebase on has other columns.
            StorageError: The store failed in spite of retries; another call tries again.
        """
        if self._manifest is not None:
            return self._manifest
        if self._queue is None and self._conflict:
            self._queue = self._open_queue()
        queue = self._writable()
        if self._torn:
            raise StoreClosed("a write was interrupted half-way, so this writer cannot commit; open another writer")
        if not self._num_samples and not self._allow_empty:
            raise ConfigurationError(
                "no sample was written, so nothing was committed; pass allow_empty=True to commit an empty snapshot",
                url=queue.store.url,
            )
        with self._whole():
            rest = self._cutter.take_rest()
            if rest is not None:
                self._written.add(rest, queue.put)
            self._written.flush(queue.put)
        queue.flush()
        self._manifest = self._committed_in_doubt(queue) or self._commit(queue, rebase=rebase)
        self.close()
        return self._manifest

    def close(self) -> None:
        """Stops uploads and releases the store; uncommitted samples stay invisible. Idempotent."""
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

    # -- the dataset ---------------------------------------------------------------------------------------------------

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
        is_needed = self._token or self._append or self._overwrite
        parent = queue.run(load_manifest(queue.store, snapshot)) if is_needed else None
        self._manifest = self._committed_before(queue, parent)
        if self._manifest is None and not self._append and not self._overwrite:
            raise AlreadyExists(
                "the dataset exists already; add to it (append=True, --append) or replace it (overwrite=True)",
                url=queue.store.url,
                got=f"snapshot {snapshot}",
            )
        if self._append and parent is not None:
            check_same_columns(parent, self.schema, queue.store.url)
        return parent

    def _committed_before(self, queue: UploadQueue, newest: Manifest | None) -> Manifest | None:
        """Returns the snapshot of an earlier commit with this writer's token, if the newest snapshot lists it."""
        number = snapshot_of(newest, self._token)
        if number is None or newest is None:
            return None
        self._repeats = True
        with suppress(NotFound):  # that snapshot was deleted; the newest one has its samples
            return queue.run(load_manifest(queue.store, number))
        return newest

    def _commit(self, queue: UploadQueue, *, rebase: bool | None) -> Manifest:
        if rebase and (made := self._rebase(queue)) is not None:
            return made
        again = (self._append or self._overwrite) if rebase is None else rebase
        for _ in range(_MAX_REBASES if again else 0):
            try:
                return self._commit_once(queue)
            except CommitConflict:
                if (made := self._rebase(queue)) is not None:
                    return made
        return self._commit_once(queue)

    def _commit_once(self, queue: UploadQueue) -> Manifest:
        manifest = self._written.manifest(
            self._parent, append=self._append, metadata=self._metadata, token=self._kept_token
        )
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
        """Returns the snapshot of a failed commit if the commit succeeded in the store (its response was lost)."""
        doubtful = self._in_doubt
        if doubtful is None:
            return None
        try:
            found = queue.run(load_manifest(queue.store, doubtful.snapshot))
        except NotFound:
            return None
        return found if found.digest == doubtful.digest else None

    def _rebase(self, queue: UploadQueue) -> Manifest | None:
        """Takes the newest snapshot as the parent; returns the snapshot of an earlier commit with the same token."""
        parent = queue.run(load_manifest(queue.store))
        if not self._overwrite:
            check_same_columns(parent, self.schema, queue.store.url)
            if parent.places != self._places:
                raise SchemaError(
                    "columns of the dataset were added, renamed or dropped since this writer began, so its shards do "
                    "not fit; write the samples again", url=queue.store.url,
                )  # fmt: skip
            self._append = True  # a writer of a new dataset now adds to the one that another writer committed first
        self._parent = parent
        return self._committed_before(queue, parent)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        self._torn = True
        yield
        self._torn = False  # not in a finally block: an interrupted change stays torn

    def _writable(self) -> UploadQueue:
        if self._manifest is not None:
            raise StoreClosed("this writer has committed; open another one with append=True")
        if self._queue is None:
            raise StoreClosed("this writer is closed")
        return self._queue
