"""Proves a purge: looks for the digests of purged values in every shard that is left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import CorruptData, InvalidRange, NotFound
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.scan_objects import list_metas
from concurrent_loader.storage.shards.editing.purge_targets import every_manifest
from concurrent_loader.storage.shards.editing.shard_samples import fetch_index
from concurrent_loader.storage.shards.format.index import ShardIndex
from concurrent_loader.storage.shards.format.layout import FOOTER_BYTES, parse_footer
from concurrent_loader.storage.shards.manifest.live_rows import LiveRows
from concurrent_loader.storage.shards.manifest.manifest import Manifest
from concurrent_loader.storage.shards.shard_fetcher import ShardFetcher
from concurrent_loader.storage.stores.objects import ObjectMeta

__all__ = ["PurgeCopy", "PurgeScan", "scan"]

T = TypeVar("T")

_MAX_COPIES = 1000
_AT_ONCE = 1024  # shards whose indexes are in flight or in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeCopy:
    """A value with the bytes of a purged one, in a sample that was not deleted.

    Attributes:
        snapshot: Number of the snapshot.
        sample: Number of the sample there; None if it is deleted there.
        column: Name of the column.
        shard: Key of the shard.
    """

    snapshot: int
    sample: int | None
    column: str
    shard: str


@dataclass(slots=True, kw_only=True)
class PurgeScan:
    """What the proof has found.

    Attributes:
        num_shards: Number of shards whose digests were compared.
        num_values: Number of payload values in them.
        copies: Values with the bytes of purged ones, at most 1,000.
        stray: Keys of shards that no snapshot has, and that hold purged values.
        unreadable: Keys of objects in the folder of the shards that are no shards, and names of virtual shards without
            digests.
        left: Keys of removed objects that the store lists nevertheless.
        num_unreferenced: Number of bundles and tails that no snapshot has. They have no digests of single values, so it
            is unknown of whom they are.
    """

    num_shards: int = 0
    num_values: int = 0
    copies: list[PurgeCopy]
    stray: list[str]
    unreadable: list[str]
    left: list[str]
    num_unreferenced: int = 0


async def scan(
    engine: FetchEngine, fetcher: ShardFetcher, digests: npt.NDArray[np.uint64], removed: Sequence[str]
) -> PurgeScan:
    """Compares the digests of all values in all shards below the dataset's URL with those of purged values.

    Args:
        engine: Engine over the dataset's store.
        fetcher: Fetcher of the dataset's shards.
        digests: (n,) uint64: digests of purged values.
        removed: Keys of the objects that were removed.

    Raises:
        StorageError: A shard of a snapshot could not be read, or is damaged.
    """
    found = PurgeScan(copies=[], stray=[], unreadable=[], left=[])
    seen: set[str] = set()
    keys: set[str] = set()
    async for _, manifest in every_manifest(engine):
        keys.update(manifest.referenced_keys())
        for part in manifest.parts:
            numbers = [number for number, digest in enumerate(part.table.digests) if digest not in seen]
            seen.update(part.table.digests)
            await _scan_shards(fetcher, part, numbers, digests, found)
    listed = await _listed(engine)
    found.left = sorted(set(removed) & listed.keys())
    stray = [meta for key, meta in listed.items() if key.startswith("shards/") and key not in keys]
    await _in_pieces(lambda meta: _scan_stray(engine, meta, digests, found), stray)
    found.num_unreferenced = sum(key not in keys and not key.startswith("shards/") for key in listed)
    return found


async def _scan_shards(
    fetcher: ShardFetcher,
    manifest: Manifest,
    numbers: Sequence[int],
    digests: npt.NDArray[np.uint64],
    found: PurgeScan,
) -> None:
    live = LiveRows(manifest)

    async def look(number: int) -> None:
        entry = manifest.shards[number]
        index = await fetch_index(fetcher, entry)
        hits = _hits(index, digests, found)
        kept = set(live.rows_of_shard(number).tolist()) if hits else set()
        for column, row in hits:
            if len(found.copies) < _MAX_COPIES:
                sample = live.sample(number, row) if row in kept else None
                found.copies.append(
                    PurgeCopy(snapshot=manifest.snapshot, sample=sample, column=column, shard=entry.key)
                )

    await _in_pieces(look, numbers)


async def _scan_stray(engine: FetchEngine, meta: ObjectMeta, digests: npt.NDArray[np.uint64], found: PurgeScan) -> None:
    """Looks into a shard that no snapshot has: of a writer that failed, or has not committed yet."""
    try:
        size = meta.size
        footer = parse_footer((await engine.fetch(meta.key, max(0, size - FOOTER_BYTES), size)).data, size=size)
        tail = (await engine.fetch(meta.key, footer.tail_start, size)).data
        index = ShardIndex.parse(tail, tail_start=footer.tail_start, size=size, shard=meta.key)
    except NotFound:
        return  # deleted meanwhile
    except (CorruptData, InvalidRange):
        found.unreadable.append(meta.key)
        return
    if _hits(index, digests, found):
        found.stray.append(meta.key)


def _hits(index: ShardIndex, digests: npt.NDArray[np.uint64], found: PurgeScan) -> list[tuple[str, int]]:
    """Returns column and row of the values of a shard that have one of the digests."""
    if not index.has_digests:
        found.unreadable.append(index.shard or "")
        return []
    found.num_shards += 1
    hits = []
    for column in index.schema.payload:
        has_bytes = index.payload_ends(column.name) > index.payload_starts(column.name)
        found.num_values += index.num_samples
        same = np.isin(index.payload_digests(column.name), digests) & has_bytes
        hits += [(column.name, row) for row in np.flatnonzero(same).tolist()]
    return hits


async def _listed(engine: FetchEngine) -> dict[str, ObjectMeta]:
    found: dict[str, ObjectMeta] = {}
    for folder in ("shards/", "columns/", "tails/"):
        found |= {meta.key: meta for meta in await list_metas(engine, folder)}
    return found


async def _in_pieces(call: Callable[[T], Awaitable[None]], items: Sequence[T]) -> None:
    for start in range(0, len(items), _AT_ONCE):
        await map_concurrently(call, items[start : start + _AT_ONCE])
