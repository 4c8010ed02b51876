"""Deletes samples by a new snapshot that names their rows. No shard is written or removed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.cache.open_cache import open_shard_cache
from concurrent_loader.storage.errors import CommitConflict, ConfigurationError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.shards.editing.commit_edit import commit_edit, open_to_edit
from concurrent_loader.storage.shards.editing.where import Where
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.shards.joined_reader import open_reader
from concurrent_loader.storage.shards.manifest.commit_tokens import check_token
from concurrent_loader.storage.shards.manifest.deleted_rows import DeletedRows
from concurrent_loader.storage.shards.manifest.live_rows import LiveRows
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.snapshots import load_manifest

__all__ = ["DeleteReport", "delete"]

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteReport:
    """The result of a deletion.

    Attributes:
        url: URL of the dataset.
        snapshot: Newest snapshot, without the samples; with ``dry_run`` the newest one before.
        num_deleted: Number of samples that this call deleted, or would delete; 0 if they were deleted before.
        num_samples: Number of samples that are left.

    Example:
        >>> from concurrent_loader.storage import delete
        >>> report = delete("photos", ids=[3], dry_run=True)
        >>> report.num_deleted, report.num_samples, report.snapshot
        (1, 19, 1)
    """

    url: str
    snapshot: int
    num_deleted: int
    num_samples: int


@hides_secrets
def delete(
    url: str | os.PathLike[str],
    *,
    where: str | None = None,
    ids: Iterable[int] | npt.ArrayLike | None = None,
    snapshot: int | None = None,
    token: str | None = None,
    dry_run: bool = False,
    client: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
) -> DeleteReport:
    """Commits a snapshot without some samples. Earlier snapshots, and the bytes of the samples, stay.

    The samples that are left keep their order and are numbered from 0, as in any snapshot. If another writer commits
    meanwhile, the deletion is made again on top of that; a condition then also applies to what was added.

    Args:
        url: URL of the dataset.
        where: Condition on columns of numbers and texts, such as ``"label == 7 and width < 64"``; see
            `concurrent_loader.storage.shards.editing.where.Where`.
        ids: Numbers of the samples, in any order.
        snapshot: Snapshot in which ``ids`` are the numbers; the newest by default.
        token: Name of the commit. If the dataset has a commit of this name, nothing is done.
        dry_run: Whether only to count the samples.
        client: Client library, as for `concurrent_loader.storage.open_store`.
        storage_options: Options of the store, as for `concurrent_loader.storage.open_store`.

    Raises:
        ConfigurationError: Neither or both of ``where`` and ``ids`` are given, the condition is invalid, or a sample
            does not exist.
        SchemaError: The condition does not fit the columns.
        CommitConflict: The shards of ``snapshot`` are not those of the newest one any more (it was overwritten or
            compacted), so that the numbers mean nothing there; or other writers were faster 20 times.
        StorageError: The store failed in spite of retries.

    Example:
        >>> from concurrent_loader.storage import ShardWriter, delete
        >>> with ShardWriter("cleaned", columns={"label": "int64"}) as writer:
        ...     for label in range(10):
        ...         writer.write({"label": label})
        >>> report = delete("cleaned", where="label < 3 or label == 7")
        >>> report.num_deleted, report.num_samples, report.snapshot
        (4, 6, 2)
    """
    if (where is None) == (ids is None):
        raise ConfigurationError("pass either where= or ids=", got=f"where={where!r}")
    if snapshot is not None and ids is None:
        raise ConfigurationError("snapshot= says which snapshot ids= are numbers of; a condition has none")
    check_token(token)
    numbers = None if ids is None else _numbers(ids)
    with open_to_edit(url, client, storage_options) as opened:
        run = _Deletion(opened.engine, where, numbers, snapshot)
        return opened.loop.run(run.run(token=token, dry_run=dry_run))


class _Deletion:
    def __init__(self, engine: FetchEngine, where: str | None, ids: Indices | None, snapshot: int | None) -> None:
        self._engine = engine
        self._where = where
        self._ids = ids
        self._snapshot = snapshot
        self._base: tuple[Manifest, Indices] | None = None  # the snapshot of the ids, and their stored rows
        self._num_deleted = 0

    async def run(self, *, token: str | None, dry_run: bool) -> DeleteReport:
        if dry_run:
            newest = await load_manifest(self._engine)
            await self._without(newest)
            num_samples = newest.num_samples - self._num_deleted
        else:
            edited = await commit_edit(self._engine, self._without, token=token)
            newest, num_samples = edited.manifest, edited.manifest.num_samples
            self._num_deleted = self._num_deleted if edited.is_new else 0
        return DeleteReport(
            url=self._engine.store.url,
            snapshot=newest.snapshot,
            num_deleted=self._num_deleted,
            num_samples=num_samples,
        )

    async def _without(self, newest: Manifest) -> Manifest | None:
        """Returns a snapshot without the samples; None if it has none of them."""
        rows = await self._rows(newest)
        before = 0 if newest.deleted is None else len(newest.deleted)
        if not len(rows):
            self._num_deleted = 0
            return None
        deleted = DeletedRows.of(rows).union(newest.deleted)
        self._num_deleted = len(deleted) - before
        return replace(newest, deleted=deleted) if self._num_deleted else None

    async def _rows(self, newest: Manifest) -> Indices:
        """Returns the stored rows to delete."""
        if self._where is not None:
            return await self._matching(newest, self._where)
        if self._base is None:
            base = newest if self._snapshot is None else await load_manifest(self._engine, self._snapshot)
            self._base = base, _rows_of_ids(base, self._ids)
        base, rows = self._base
        table, size = base.table, len(base.table)
        if newest.table is not table and newest.table.digests[:size] != table.digests:
            raise CommitConflict(
                "the newest snapshot has other shards than the one that the samples were counted in; look their "
                "numbers up again, or delete by a condition",
                url=self._engine.store.url, expected=base.snapshot, got=newest.snapshot,
            )  # fmt: skip
        return rows

    async def _matching(self, newest: Manifest, text: str) -> Indices:
        where = Where(text, Schema.parse(newest.schema))
        cache = open_shard_cache(self._engine, None)
        try:
            reader = open_reader(newest, self._engine, cache)
            values = {name: await reader.column(name) for name in where.columns}
        finally:
            await cache.close()
        return LiveRows(newest).stored(np.flatnonzero(where(values)))


def _numbers(ids: Iterable[int] | npt.ArrayLike) -> Indices:
    given = np.asarray(ids if isinstance(ids, np.ndarray | range) else list(ids))  # type: ignore[arg-type]
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ConfigurationError("ids must be a row of integer sample numbers", got=f"{given.dtype} {given.shape}")
    return given.astype(np.int64)


def _rows_of_ids(manifest: Manifest, ids: Indices | None) -> Indices:
    assert ids is not None
    strange = ids[(ids < 0) | (ids >= manifest.num_samples)]
    if len(strange):
        raise ConfigurationError(
            f"sample {strange[0]} does not exist in snapshot {manifest.snapshot}",
            expected=f"0 to {manifest.num_samples - 1}", got=int(strange[0]),
        )  # fmt: skip
    return LiveRows(manifest).stored(ids)
