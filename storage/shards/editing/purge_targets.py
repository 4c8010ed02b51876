"""Finds what a purge has to remove: deleted rows in all snapshots, and the objects that hold their bytes."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.storage.errors import ConfigurationError, CorruptData, FormatError, NotFound
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.scan_objects import list_metas
from concurrent_loader.storage.shards.editing.shard_samples import fetch_index
from concurrent_loader.storage.shards.manifest.live_rows import LiveRows
from concurrent_loader.storage.shards.manifest.manifest import Manifest, ShardEntry, manifest_key
from concurrent_loader.storage.shards.manifest.manifest_file import decode
from concurrent_loader.storage.shards.manifest.tombstones import PURGED
from concurrent_loader.storage.shards.shard_fetcher import ShardFetcher

__all__ = ["PLAN_KEY", "PurgePlan", "Targets", "every_manifest", "find_targets", "load_plan", "tainted_objects"]

Indices = npt.NDArray[np.int64]

PLAN_KEY = f"{PURGED}plan.json"
_FOLDERS = ("manifests/", "collected/")  # the second one has manifests that garbage collection keeps for a while
_MANIFEST = re.compile(r"(?:manifests|collected)/(\d{10})\.clm")


class PurgePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a purge removes. It is in the store from the first removal to the proof, so that a repetition finishes it.

    Attributes:
        manifests: Keys of manifests.
        objects: Keys of shards and bundles.
        digests: Digests of the rows' payload values, as 16 hex digits each; values without bytes have none.
        rows: Numbers of rows by the digest of their shard.
    """

    manifests: list[str]
    objects: list[str]
    digests: list[str]
    rows: dict[str, int]
    version: int = 1

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return sum(self.rows.values())

    def joined(self, other: PurgePlan | None) -> PurgePlan:
        """Returns this plan with the manifests, digests and rows of an earlier one."""
        if other is None:
            return self
        return PurgePlan(
            manifests=sorted({*self.manifests, *other.manifests}),
            objects=self.objects,
            digests=sorted({*self.digests, *other.digests}),
            rows={name: max(self.rows.get(name, 0), other.rows.get(name, 0)) for name in {**self.rows, **other.rows}},
        )


async def load_plan(engine: FetchEngine) -> PurgePlan | None:
    """Returns the plan of a purge that was interrupted, if there is one.

    Raises:
        FormatError: The plan is damaged.
    """
    try:
        data = (await engine.fetch_object(PLAN_KEY)).data
    except NotFound:
        return None
    try:
        plan = msgspec.json.decode(data, type=PurgePlan)
    except msgspec.MsgspecError as error:
        raise FormatError(f"the plan of the purge is damaged: {error}", url=engine.store.url, key=PLAN_KEY) from error
    strange = [key for key in plan.manifests if not _MANIFEST.fullmatch(key)]
    strange += [key for key in plan.objects if not re.fullmatch(r"(?:shards|columns)/[0-9a-zA-Z._-]+", key)]
    if plan.version != 1 or strange:
        raise FormatError(
            "the plan of the purge is damaged, or of a later version", url=engine.store.url, key=PLAN_KEY,
            got=strange[:1] or plan.version,
        )  # fmt: skip
    return plan


@dataclass(frozen=True, slots=True)
class Targets:
    """The rows to purge.

    Attributes:
        rows: Rows to purge by the digest of their shard, ascending, at least one. The values of columns that were added
            later are in shards of their own.
        added: Digests of such shards.
        digests: (n,) uint64: digests of their payload values that have bytes, ascending.
    """

    rows: dict[str, Indices] = field(default_factory=dict)
    added: frozenset[str] = frozenset()
    digests: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))


async def every_manifest(engine: FetchEngine, *, but: int | None = None) -> AsyncIterator[tuple[str, Manifest]]:
    """Yields key and content of all manifests, one in memory at a time; ``but`` leaves a snapshot out.

    Raises:
        FormatError: A manifest is damaged.
    """
    for folder in _FOLDERS:
        for key in sorted(meta.key for meta in await list_metas(engine, folder)):
            if not _MANIFEST.fullmatch(key) or (but is not None and key == manifest_key(but)):
                continue
            try:
                data = (await engine.fetch_object(key)).data
            except NotFound:
                continue  # garbage collection has just moved or deleted it
            yield key, decode(data, url=engine.store.url)


async def find_targets(engine: FetchEngine, fetcher: ShardFetcher, newest: Manifest) -> Targets:
    """Finds the rows that any snapshot has deleted and that are not live in the newest one.

    Raises:
        ConfigurationError: Such a row is in a virtual shard, whose bytes belong to somebody else.
        StorageError: A shard could not be read, or is damaged.
    """
    rows: dict[str, Indices] = {}
    added: set[str] = set()
    digests: list[npt.NDArray[np.uint64]] = []

    async def examine(part: Manifest, number: int, found: Indices) -> None:
        entry = part.shards[number]
        if entry.source is not None:
            raise ConfigurationError(
                "deleted samples are in an adopted object, which this command does not change; delete them at the "
                "source and adopt it again (concurrent-loader adopt … --overwrite), or copy the dataset "
                "(concurrent-loader convert) and delete the index and its source",
                url=entry.source.file.url, key=entry.source.file.key,
            )  # fmt: skip
        try:
            index = await fetch_index(fetcher, entry)
        except NotFound:
            return  # an interrupted purge has removed it, and its plan has the digests
        _check_rows(entry, index.num_samples)
        known = rows.get(entry.digest)
        rows[entry.digest] = found if known is None else np.union1d(known, found)
        for column in index.schema.payload:
            values = index.payload_digests(column.name)
            # The placeholder of a column that was added after the deletion says nothing about the sample.
            is_own = values != xxhash.xxh3_64_intdigest(column.encode(column.placeholder))
            is_own &= index.payload_ends(column.name) > index.payload_starts(column.name)
            digests.append(values[found[is_own[found]]])

    async def examine_all(manifest: Manifest) -> None:
        live = LiveRows(manifest)
        partial = np.flatnonzero(np.diff(live.first_samples) < manifest.table.num_samples)

        async def examine_one(number: int) -> None:
            stored = np.arange(manifest.table.num_samples[number])
            await examine(manifest, number, np.setdiff1d(stored, live.rows_of_shard(number)))

        await map_concurrently(examine_one, partial.tolist())

    await examine_all(newest)
    async for _, manifest in every_manifest(engine, but=newest.snapshot):
        await examine_all(manifest)
    live = LiveRows(newest)
    for number, digest in enumerate(newest.table.digests):
        if digest in rows:  # the newest snapshot may have the same shard twice, and keep a row once
            rows[digest] = np.setdiff1d(rows[digest], live.rows_of_shard(number))
    rows = {digest: found for digest, found in rows.items() if len(found)}
    own = dict(rows)
    # Columns that were added, in any snapshot: also those that were dropped before the rows were deleted.
    async for _, manifest in every_manifest(engine):
        for part in manifest.parts[1:]:
            for number, digest in enumerate(manifest.table.digests):
                if digest in own:
                    added.add(part.table.digests[number])
                    await examine(part, number, own[digest])
    return Targets(
        rows, frozenset(added), np.unique(np.concatenate(digests)) if digests and rows else np.empty(0, np.uint64)
    )


def tainted_objects(manifest: Manifest, targets: Targets) -> set[str]:
    """Returns the keys of the shards and bundles of a snapshot that hold a row to purge."""
    live = LiveRows(manifest)
    keys: set[str] = set()
    for part in manifest.parts:
        stored = []
        for number, digest in enumerate(part.table.digests):
            if digest in targets.rows:
                keys.add(part.shards[number].key)
                stored.append(targets.rows[digest] + live.first_rows[number])
        rows = np.sort(np.concatenate(stored)) if stored else np.empty(0, np.int64)
        for bundle in part.bundles:
            low, high = np.searchsorted(rows, [bundle.first_sample, bundle.first_sample + bundle.num_samples])
            if low < high:
                keys.add(bundle.key)
    return keys


def _check_rows(entry: ShardEntry, num_samples: int) -> None:
    if num_samples != entry.num_samples:
        raise CorruptData(
            "the shard does not have the number of samples that its manifest states", shard=entry.key,
            expected=entry.num_samples, got=num_samples,
        )  # fmt: skip
