"""Adds columns to a dataset: one new shard for each of its shards, with the added columns alone."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from concurrent_loader.storage.cache.joined_shard import JoinedShard, JoinedShards, whole_shards
from concurrent_loader.storage.cache.open_cache import open_shard_cache
from concurrent_loader.storage.columns.values import (
    NO_DEFAULT,
    ComputedValues,
    GivenValues,
    ShardRows,
    ValueSource,
    lookup,
)
from concurrent_loader.storage.errors import CommitConflict, ConfigurationError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.fetch.upload import Uploader
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.shards.editing.commit_edit import commit_edit, committed_before, open_to_edit
from concurrent_loader.storage.shards.format.schema import Column, Schema
from concurrent_loader.storage.shards.manifest.column_changes import check_new_names, with_columns
from concurrent_loader.storage.shards.manifest.commit_tokens import check_token
from concurrent_loader.storage.shards.manifest.deleted_rows import DeletedRows
from concurrent_loader.storage.shards.manifest.live_rows import LiveRows
from concurrent_loader.storage.shards.manifest.manifest import ColumnSet, Manifest
from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
from concurrent_loader.storage.shards.shard_fetcher import OpenSource
from concurrent_loader.storage.shards.writing.written_shards import DoneShard, WrittenShards, finish_part

__all__ = ["AddProgress", "add_column", "add_columns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddProgress:
    """The progress of adding columns.

    Attributes:
        num_samples: Number of samples whose values are stored.
        num_samples_total: Number of samples of the dataset.
    """

    num_samples: int
    num_samples_total: int


@hides_secrets
def add_column(
    url: str | os.PathLike[str],
    name: str,
    type: str,  # noqa: A002 - the word of the format
    values: Any,
    *,
    by: str | None = None,
    default: Any = NO_DEFAULT,
    inputs: Sequence[str] | None = None,
    batched: bool = False,
    workers: int | None = None,
    token: str | None = None,
    client: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[AddProgress], None] | None = None,
) -> Manifest:
    """Adds a column to a dataset in a new snapshot. No shard is written again.

    Samples, their numbers and their order stay. So a training run may go on with the new snapshot, and a loader's state
    of the old snapshot fits it.

    Args:
        url: URL of the dataset.
        name: Name of the column, which the dataset must not have.
        type: Type of the column, such as ``"int64"``, ``"float32[768]"``, ``"str"`` or ``"jpeg"``; ``"int64?"`` if
            some samples have no value.
        values: One of: a sequence or array with one value per sample, in the order of the samples; a function that
            returns the value of a sample, a dict as ``dataset[i]`` returns it; with ``by``, a mapping of keys to
            values.
        by: Name of the column whose value is a sample's key in ``values``: numbers or texts.
        default: Value of samples whose key is not in ``values``. Without it, such a sample is null in an optional
            column, and otherwise an error.
        inputs: Columns of the samples that the function gets; all by default. Columns that are left out are not
            fetched, if they are in other files.
        batched: Whether the function gets all samples of one shard as a list, and returns a list of values. Default:
            False.
        workers: As in `add_columns`.
        token: As in `add_columns`.
        client: As in `add_columns`.
        storage_options: As in `add_columns`.
        source_options: As in `add_columns`.
        on_progress: As in `add_columns`.

    Returns:
        New snapshot.

    Raises:
        SchemaError: The name is taken, the type is invalid, or a value does not fit it; the error names the sample.
        ConfigurationError: There is not one value per sample.
        CommitConflict: Samples were added or removed meanwhile. Call again.
        StorageError: There is no dataset, or the store failed. Nothing is visible; a second call uploads only what is
            missing.

    Example:
        >>> from concurrent_loader import ShardDataset, add_column
        >>> add_column("photos", "is_odd", "bool", lambda sample: sample["label"] == 1, inputs=["label"]).snapshot
        2
        >>> with ShardDataset("photos", columns=["label", "is_odd"]) as dataset:
        ...     dataset[1]
        {'label': 1, 'is_odd': True}
    """
    given = values
    if by is not None:
        if not isinstance(values, Mapping):
            got = values.__class__.__name__
            raise ConfigurationError("with by=, values must be a mapping of keys to values", got=got)
        if inputs is not None or batched:
            raise ConfigurationError("by= needs neither inputs nor batched")
        is_optional = default is NO_DEFAULT and Column(name, type).optional
        given, inputs = lookup(values, by, None if is_optional else default), [by]
    elif default is not NO_DEFAULT:
        raise ConfigurationError("a default needs values by key: pass by=, too")

    def values_of(sample: Any) -> Any:
        made = given(sample)
        return [{name: each} for each in made] if batched else {name: made}

    return add_columns(
        url, {name: type}, values_of if callable(given) else {name: given}, inputs=inputs, batched=batched,
        workers=workers, token=token, client=client, storage_options=storage_options, source_options=source_options,
        on_progress=on_progress,
    )  # fmt: skip


@hides_secrets
def add_columns(
    url: str | os.PathLike[str],
    columns: Mapping[str, str],
    values: Mapping[str, Any] | Callable[[Any], Any],
    *,
    inputs: Sequence[str] | None = None,
    batched: bool = False,
    workers: int | None = None,
    token: str | None = None,
    client: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[AddProgress], None] | None = None,
) -> Manifest:
    """Adds several columns to a dataset in one new snapshot; see `add_column`. They share files.

    Args:
        url: URL of the dataset.
        columns: Types of the new columns by name.
        values: A mapping of each column to a sequence with one value per sample, or a function from a sample to a dict
            of values by column.
        inputs: Columns of the samples that the function gets; all by default.
        batched: Whether the function gets and returns lists, with all samples of one shard. Default: False.
        workers: Number of threads that make values, each from a shard of its own; by default one per core. The
            function must be thread-safe, or ``workers`` 1. Memory: two shards and their added values per thread.
        token: Name of the commit. A second call with the same token changes nothing and returns the same snapshot, so
            a program can run again if it did not learn that its commit succeeded.
        client: Client library, as for `concurrent_loader.storage.open_store`.
        storage_options: Options of the store, as for `concurrent_loader.storage.open_store`.
        source_options: Options of the store of adopted data; by default ``storage_options``.
        on_progress: Callback for progress, called on another thread.

    Returns:
        New snapshot.

    Raises:
        SchemaError: A name is taken, a type is invalid, or a value does not fit it; the error names the sample.
        ConfigurationError: There is not one value per sample, or an option is invalid.
        CommitConflict: Samples were added or removed meanwhile. Call again.
        StorageError: There is no dataset, or the store failed.

    Example:
        >>> from concurrent_loader import add_columns
        >>> facts = {"length": "int64", "name": "str"}
        >>> made = add_columns("photos", facts, lambda sample: {"length": len(sample["image"]), "name": "a photo"})
        >>> made.schema
        {'image': 'jpeg', 'label': 'int64', 'length': 'int64', 'name': 'str'}
    """
    check_token(token)
    workers = os.cpu_count() or 1 if workers is None else workers
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ConfigurationError("workers must be an integer of at least 1", got=workers)
    schema = Schema.parse(columns)
    if not callable(values):
        if not isinstance(values, Mapping) or values.keys() != columns.keys():
            raise ConfigurationError(
                "values must be a function, or have one sequence for each column", expected=list(columns),
                got=list(values) if isinstance(values, Mapping) else type(values).__name__,
            )  # fmt: skip
        if inputs is not None or batched:
            raise ConfigurationError("inputs and batched are for a function only")

    def source_of(manifest: Manifest) -> ValueSource:
        if not callable(values):
            return GivenValues(values)
        names = list(manifest.schema) if inputs is None else list(dict.fromkeys(inputs))
        known = Schema.parse(manifest.schema)
        return ComputedValues(values, [known[name].name for name in names], batched=batched)

    with open_to_edit(url, client, storage_options, source_options) as opened:
        addition = _Addition(opened.engine, schema, workers, token, on_progress)
        return opened.loop.run(addition.run(source_of, opened.open_source))


class _Addition:
    """The steps of adding columns, on one event loop."""

    def __init__(
        self,
        engine: FetchEngine,
        schema: Schema,
        workers: int,
        token: str | None,
        on_progress: Callable[[AddProgress], None] | None,
    ) -> None:
        self._engine = engine
        self._schema = schema
        self._workers = workers
        self._token = token
        self._on_progress = on_progress
        self._uploader = Uploader(store=engine.store, retry=engine.policy)
        self._is_cancelled = False
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="storage-columns")

    async def run(self, source_of: Callable[[Manifest], ValueSource], open_source: OpenSource) -> Manifest:
        """Makes and stores all values, and commits them."""
        try:
            manifest = await load_manifest(self._engine)
            if (before := await committed_before(self._engine, manifest, self._token)) is not None:
                return before
            check_new_names(manifest, self._schema.names)
            source = source_of(manifest)
            source.check(manifest.num_samples)
            cache = open_shard_cache(self._engine, None, open_source=open_source)
            shards = whole_shards(manifest, cache, source.inputs) if source.inputs else None
            written = WrittenShards(self._schema)
            try:
                await self._store_all(manifest, source, shards, written)
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from errors.exceptions[0].__cause__
            finally:
                await cache.close()
            await self._uploader.confirm_replaced()
            made = written.manifest(None, append=False, metadata={}, token=None)
            added = ColumnSet(shards=made.shards, bundles=made.bundles)

            async def make(newest: Manifest) -> Manifest:
                # A deleted row has a placeholder, so it must stay deleted.
                if newest.table != manifest.table or not _has_all(newest.deleted, manifest.deleted):
                    raise CommitConflict(
                        "the samples of the dataset changed while columns were added; add them again",
                        url=self._engine.store.url, expected=manifest.snapshot, got=newest.snapshot,
                    )  # fmt: skip
                return with_columns(newest, self._schema.to_dict(), added, made.statistics)

            return (await commit_edit(self._engine, make, token=self._token)).manifest
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _store_all(
        self, manifest: Manifest, source: ValueSource, shards: JoinedShards | None, written: WrittenShards
    ) -> None:
        live = LiveRows(manifest)
        ahead: deque[tuple[asyncio.Task[DoneShard], int]] = deque()
        bundles: list[tuple[str, Any]] = []
        num_samples = 0

        async def take() -> None:
            nonlocal num_samples
            task, num_live = ahead.popleft()
            done = await task
            written.add_entry(done.entry, done.fixed, done.statistics, lambda key, data: bundles.append((key, data)))
            await put_bundles()
            num_samples += num_live
            if self._on_progress is not None:
                self._on_progress(AddProgress(num_samples=num_samples, num_samples_total=manifest.num_samples))

        async def put_bundles() -> None:
            while bundles:
                await self._uploader.put_content_addressed(*bundles.pop(0))

        async with asyncio.TaskGroup() as group:
            for number, num_rows in enumerate(manifest.table.num_samples.tolist()):
                if len(ahead) >= 2 * self._workers:  # one is made while another one is fetched or uploaded
                    await take()
                place = ShardRows(int(live.first_samples[number]), live.rows_of_shard(number), num_rows)
                ahead.append((group.create_task(self._store_one(source, shards, number, place)), len(place.rows)))
            while ahead:
                await take()
        written.flush(lambda key, data: bundles.append((key, data)))
        await put_bundles()

    async def _store_one(
        self, source: ValueSource, shards: JoinedShards | None, number: int, place: ShardRows
    ) -> DoneShard:
        shards = shards if len(place.rows) else None
        shard = None if shards is None else await shards.acquire(number)
        try:
            part, data = await self._make(source, shard, place)
        finally:
            if shards is not None:
                shards.release(number)
        await self._uploader.put_content_addressed(part.entry.key, data)
        return part

    async def _make(
        self, source: ValueSource, shard: JoinedShard | None, place: ShardRows
    ) -> tuple[DoneShard, memoryview]:
        def make() -> tuple[DoneShard, memoryview]:
            if self._is_cancelled:
                raise asyncio.CancelledError
            return finish_part(source.build(self._schema, shard, place))

        making = asyncio.get_running_loop().run_in_executor(self._threads, make)
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            # The thread reads the shard, so it ends before the shard is released.
            self._is_cancelled = True
            await asyncio.gather(making, return_exceptions=True)
            raise


def _has_all(deleted: DeletedRows | None, before: DeletedRows | None) -> bool:
    """Returns whether all rows that were deleted before still are."""
    return before is None or (deleted is not None and len(deleted.union(before)) == len(deleted))
