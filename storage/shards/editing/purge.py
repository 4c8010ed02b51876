"""Removes the bytes of deleted samples from a dataset, and proves it.

Snapshots never change, so a snapshot that stores a purged row cannot be kept. The newest one is replaced by a snapshot
whose shards were written again; older ones are removed, and a tombstone says so. The steps, each of which may be
repeated:

1. Write the shards of the newest snapshot that hold such rows again, and commit.
2. Write the plan: manifests and objects to remove, and the digests of the values.
3. Remove manifests (first a tombstone, so that a reader gets an error that says why), then objects.
4. Compare the digests of all values that are left with those of the plan, and delete the plan.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from concurrent_loader.storage.errors import ConfigurationError, StorageError
from concurrent_loader.storage.fetch.upload import Uploader
from concurrent_loader.storage.hidden_arguments import hides_secrets
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.scan_objects import list_metas
from concurrent_loader.storage.shards.editing.commit_edit import OpenDataset, commit_edit, open_to_edit
from concurrent_loader.storage.shards.editing.purge_scan import PurgeCopy, PurgeScan, scan
from concurrent_loader.storage.shards.editing.purge_targets import (
    PLAN_KEY,
    PurgePlan,
    Targets,
    every_manifest,
    find_targets,
    load_plan,
    tainted_objects,
)
from concurrent_loader.storage.shards.editing.rewrite import RewriteProgress, Rewriter
from concurrent_loader.storage.shards.editing.shard_samples import fetch_index
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.manifest.snapshots import load_manifest
from concurrent_loader.storage.shards.manifest.statistics import Statistics, merge_statistics
from concurrent_loader.storage.shards.manifest.tombstones import tombstone_key
from concurrent_loader.storage.shards.shard_fetcher import ShardFetcher
from concurrent_loader.storage.shards.writing.records import UNFINISHED_FOLDER
from concurrent_loader.storage.shards.writing.written_shards import shard_statistics

__all__ = ["PurgeReport", "purge"]

_SHARD_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeReport:
    """The result of a purge, and its proof.

    Attributes:
        url: URL of the dataset.
        dry_run: Whether nothing was changed; then the report has no proof.
        snapshot: Newest snapshot.
        num_samples: Number of its samples, which are the same as before.
        num_rows: Number of rows whose bytes were removed; with ``dry_run``, would be.
        num_rewritten: Number of shards of the newest snapshot that were written again.
        removed_snapshots: Numbers of the snapshots that stored such rows, and cannot be opened any more.
        num_removed: Number of shards and bundles that were removed.
        num_shards_scanned: Number of shards that are left, whose values were compared with the purged ones.
        num_values_scanned: Number of values in them.
        copies: Values in other samples that have the bytes of purged ones, at most 1,000: nobody has deleted these.
        unreadable: Keys of objects in the folder of the shards that are no shards, and names of virtual shards without
            digests: nothing is known of their values.
        left: Keys of removed objects that the store lists nevertheless.
        num_unreferenced: Number of bundles and tails that no snapshot has. It is unknown of whom they are.

    Example:
        >>> from concurrent_loader.storage import purge
        >>> report = purge("photos", dry_run=True)
        >>> report.num_rows, report.removed_snapshots, report.is_proved
        (0, (), False)
    """

    url: str
    dry_run: bool
    snapshot: int
    num_samples: int
    num_rows: int = 0
    num_rewritten: int = 0
    removed_snapshots: tuple[int, ...] = ()
    num_removed: int = 0
    num_shards_scanned: int = 0
    num_values_scanned: int = 0
    copies: tuple[PurgeCopy, ...] = ()
    unreadable: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    num_unreferenced: int = 0

    @property
    def is_proved(self) -> bool:
        """Whether no payload value of a purged row is left anywhere in the dataset."""
        return not (self.dry_run or self.copies or self.unreadable or self.left)


@hides_secrets
def purge(
    url: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    client: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[RewriteProgress], None] | None = None,
) -> PurgeReport:
    """Removes the bytes of all deleted samples from all snapshots. This cannot be undone.

    A row is purged if any snapshot has deleted it and the newest one does not have it. Shards of the newest snapshot
    with such rows are written again, in a new snapshot with the same samples. Every other snapshot that stores such a
    row is removed; opening it raises `SnapshotDeleted`. Then all shards that are left are searched for the digests of
    the removed values. A call that was interrupted continues if it is repeated. Only one may run at a time.

    Args:
        url: URL of the dataset.
        dry_run: Whether only to say what would be removed.
        client: Client library, as for `concurrent_loader.storage.open_store`.
        storage_options: Options of the store, as for `concurrent_loader.storage.open_store`.
        on_progress: Callback for progress, called on another thread.

    Raises:
        ConfigurationError: A deleted sample is in an adopted object. Or an import in parts, an adoption or a conversion
            is unfinished, which may need objects that a purge removes.
        CommitConflict: Other writers were faster 20 times.
        CorruptData: A shard differs from what was written.
        StorageError: The store failed in spite of retries; repeat the call.

    Example:
        >>> from concurrent_loader.storage import ShardWriter, delete, purge
        >>> with ShardWriter("erased", columns={"text": "bytes"}) as writer:
        ...     for name in (b"Ada", b"Bob", b"Cid"):
        ...         writer.write({"text": name})
        >>> report = delete("erased", ids=[1])
        >>> report = purge("erased")
        >>> report.num_rows, report.removed_snapshots, report.snapshot, report.is_proved
        (1, (1, 2), 3, True)
    """
    with open_to_edit(url, client, storage_options) as opened:
        fetcher = ShardFetcher(opened.engine, opened.open_source)
        run = _Purge(opened, fetcher, on_progress)
        try:
            return opened.loop.run(run.dry_run() if dry_run else run.run())
        finally:
            opened.loop.run(fetcher.close())


class _Purge:
    def __init__(
        self, opened: OpenDataset, fetcher: ShardFetcher, on_progress: Callable[[RewriteProgress], None] | None
    ) -> None:
        self._engine = opened.engine
        self._fetcher = fetcher
        self._uploader = Uploader(store=opened.engine.store, retry=opened.engine.policy)
        self._rewriter = Rewriter(opened.engine, fetcher, shard_bytes=_SHARD_BYTES, on_progress=on_progress)
        self._targets = Targets()
        self._num_rewritten = 0

    async def dry_run(self) -> PurgeReport:
        newest = await load_manifest(self._engine)
        self._targets = await find_targets(self._engine, self._fetcher, newest)
        plan = await self._plan(None)
        return PurgeReport(
            url=self._engine.store.url,
            dry_run=True,
            snapshot=newest.snapshot,
            num_samples=newest.num_samples,
            num_rows=plan.num_rows,
            num_rewritten=int(np.count_nonzero(self._chosen(newest))),
            removed_snapshots=_numbers(plan),
            num_removed=len(plan.objects),
        )

    async def run(self) -> PurgeReport:
        before = await load_plan(self._engine)
        await self._check_alone()
        edited = await commit_edit(self._engine, self._rewritten)
        plan = await self._plan(edited.manifest, before)
        found = PurgeScan(copies=[], stray=[], unreadable=[], left=[])
        if plan.manifests or plan.objects or plan.digests:
            await self._uploader.put(PLAN_KEY, msgspec.json.encode(plan))
            await self._check_alone()  # again: to write shards takes long
            await self._remove(plan, edited.manifest.snapshot)
            found = await self._proof(plan)
            if not (found.left or found.copies or found.unreadable):
                await self._delete(PLAN_KEY)  # without it, the next call would not know what to search for
        return PurgeReport(
            url=self._engine.store.url,
            dry_run=False,
            snapshot=edited.manifest.snapshot,
            num_samples=edited.manifest.num_samples,
            num_rows=plan.num_rows,
            num_rewritten=self._num_rewritten,
            removed_snapshots=_numbers(plan),
            num_removed=len(plan.objects) + len(found.stray),
            num_shards_scanned=found.num_shards,
            num_values_scanned=found.num_values,
            copies=tuple(found.copies),
            unreadable=tuple(found.unreadable),
            left=tuple(found.left),
            num_unreferenced=found.num_unreferenced,
        )

    # -- the newest snapshot -------------------------------------------------------------------------------------------

    async def _rewritten(self, newest: Manifest) -> Manifest | None:
        """Returns the newest snapshot without the rows; None if it stores none of them."""
        self._targets = await find_targets(self._engine, self._fetcher, newest)
        chosen = self._chosen(newest)
        self._num_rewritten = int(np.count_nonzero(chosen))
        if not chosen.any():
            return None
        made = await self._rewriter.rewrite(newest, chosen)
        return replace(made, statistics=await self._statistics(made))

    def _chosen(self, manifest: Manifest) -> np.ndarray[Any, np.dtype[np.bool_]]:
        chosen = np.zeros(len(manifest.table), np.bool_)
        for part in manifest.parts:
            chosen |= np.fromiter(
                (digest in self._targets.rows for digest in part.table.digests), np.bool_, len(chosen)
            )
        return chosen

    async def _statistics(self, manifest: Manifest) -> Statistics:
        """Returns statistics without the purged rows: a minimum or maximum may be the value of one."""
        merged: Statistics = {}
        for start in range(0, len(manifest.shards), 1024):

            async def facts_of(number: int) -> Statistics:
                return shard_statistics(await fetch_index(self._fetcher, manifest.shards[number]))

            numbers = range(start, min(start + 1024, len(manifest.shards)))
            for facts in await map_concurrently(facts_of, numbers):
                merged = merge_statistics(merged, facts)
        return merged

    # -- the other snapshots, and the objects --------------------------------------------------------------------------

    async def _plan(self, newest: Manifest | None, before: PurgePlan | None = None) -> PurgePlan:
        """Returns what to remove; ``newest`` and its successors stay.

        Args:
            newest: Newest snapshot; None for a dry run.
            before: Plan of a purge that was interrupted. Since then, a commit may have written its objects again.
        """
        manifests: list[str] = []
        objects: set[str] = set() if before is None else set(before.objects)
        kept: set[str] = set()
        async for key, manifest in every_manifest(self._engine):
            tainted = tainted_objects(manifest, self._targets)
            if tainted and (newest is None or manifest.snapshot < newest.snapshot):
                manifests.append(key)
                objects |= tainted
            else:
                kept.update(manifest.referenced_keys())
        return PurgePlan(
            manifests=sorted(manifests),
            # Also what an attempt has written that met a conflict. A new shard may have the bytes of an old one.
            objects=sorted((objects | self._rewriter.keys) - kept),
            digests=[f"{digest:016x}" for digest in self._targets.digests.tolist()],
            rows={name: len(rows) for name, rows in self._targets.rows.items() if name not in self._targets.added},
        ).joined(before)

    async def _remove(self, plan: PurgePlan, newest: int) -> None:
        for number in _numbers(plan):
            await self._uploader.put(tombstone_key(number), msgspec.json.encode({"version": 1, "newest": newest}))
        # Manifests first: nobody opens a snapshot that loses its shards meanwhile.
        await map_concurrently(self._delete, plan.manifests)
        await map_concurrently(self._delete, plan.objects)

    async def _proof(self, plan: PurgePlan) -> PurgeScan:
        digests = np.array([int(digest, 16) for digest in plan.digests], np.uint64)
        while True:
            found = await scan(self._engine, self._fetcher, digests, plan.objects)
            if not found.stray:
                return found
            # A job writes its plan before its shards, and deletes it after the commit. So without a plan, the shards
            # that were listed are in a snapshot now, or of nobody.
            await self._check_alone()
            kept: set[str] = set()
            async for _, manifest in every_manifest(self._engine):
                kept.update(manifest.referenced_keys())
            if kept.isdisjoint(found.stray):
                await map_concurrently(self._delete, found.stray)
                return found

    async def _check_alone(self) -> None:
        """Raises an error if a job has written shards that it has not committed yet."""
        prefix = f"{UNFINISHED_FOLDER}/"

        if jobs := {meta.key.split("/")[1] for meta in await list_metas(self._engine, prefix)}:
            url = self._engine.store.url
            raise ConfigurationError(
                "an import, adoption or conversion into this dataset is unfinished, and may need what a purge removes: "
                f"finish it (`concurrent-loader commit {url}` for an import whose parts are written), or, if nobody "
                f"continues it, delete its records by `concurrent-loader gc {url} --grace 1h`; then purge again",
                url=url, got=sorted(jobs)[:10],
            )  # fmt: skip

    async def _delete(self, key: str) -> None:
        try:
            await self._engine.call_with_retries(lambda: self._engine.store.delete(key), key)
        except StorageError as error:
            error.locate(key=key)
            raise


def _numbers(plan: PurgePlan) -> tuple[int, ...]:
    return tuple(sorted({int(key[-14:-4]) for key in plan.manifests}))
