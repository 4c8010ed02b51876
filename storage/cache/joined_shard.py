"""A shard together with the shards of columns that were added later; it reads like one shard with all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.cache.shard_cache import ShardCache
from concurrent_loader.storage.errors import CorruptData
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.shards.manifest.manifest import ColumnPlace, Manifest

__all__ = ["CachedPart", "JoinedShard", "JoinedShards", "ShardPart", "ShardParts", "needed_parts", "whole_shards"]

T = TypeVar("T")
Rows = npt.NDArray[np.int64]


class ShardPart(Protocol):
    """An open shard, or samples of one."""

    @property
    def key(self) -> str: ...
    @property
    def cached(self) -> bool: ...
    def encoding(self, column: str) -> str: ...
    def payload(self, column: str, rows: Rows) -> Sequence[bytes | memoryview | None]: ...
    def values(self, column: str, rows: Rows) -> npt.NDArray[Any] | Sequence[Any]: ...


class ShardParts(Protocol):
    """The shards of one part of a snapshot: its own shards, or those of a column set."""

    async def acquire(self, unit: int) -> Any: ...
    def release(self, unit: int, *, done_for_epoch: bool = False) -> None: ...
    async def replace(self, unit: int, damaged: Any) -> Any: ...


class JoinedShard:
    """One shard of a dataset with columns from several files.

    Args:
        parts: Open shards by the number of their part.
        places: Where each column is stored, by its name.

    Thread-safety: Reading methods may be called from any number of threads.
    """

    def __init__(self, parts: Mapping[int, ShardPart], places: Mapping[str, ColumnPlace]) -> None:
        self.parts = dict(parts)
        self.damaged: set[int] = set()  # parts in which a reader found damage
        self._places = places

    @property
    def key(self) -> str:
        """Key of the first file, which names the shard."""
        return self.parts[min(self.parts)].key

    @property
    def cached(self) -> bool:
        """Whether the bytes come from local files; after damage was found, whether the damaged ones do."""
        return all(self.parts[number].cached for number in self.damaged or self.parts)

    def encoding(self, column: str) -> str:
        """Returns the encoding of a column's stored values; empty for this project's own."""
        return self._read(column, lambda part, name: part.encoding(name))

    def payload(self, column: str, rows: Rows) -> Sequence[bytes | memoryview | None]:
        """Returns the verified bytes of a payload column for some rows; None for nulls."""
        return self._read(column, lambda part, name: part.payload(name, rows))

    def values(self, column: str, rows: Rows) -> npt.NDArray[Any] | Sequence[Any]:
        """Returns one column's values for some rows: an array for FIXED columns, otherwise a list."""
        return self._read(column, lambda part, name: part.values(name, rows))

    def _read(self, column: str, read: Callable[[ShardPart, str], T]) -> T:
        place = self._places[column]
        part = self.parts[place.part]
        try:
            return read(part, place.name)
        except CorruptData as error:
            # The error names this shard, by which its reader finds what to fetch again.
            if part.key != self.key:
                error.what = f"{error.what} (in {part.key}, which has added columns)"
            error.shard, error.column = self.key, column
            self.damaged.add(place.part)
            raise


class JoinedShards:
    """Opens the shards of a snapshot with columns from several files.

    Usable from one event loop. `acquire` and `release` come in pairs.

    Args:
        parts: Shards of each part that is needed, by its number.
        places: Where each column is stored, by its name.
    """

    def __init__(self, parts: Mapping[int, ShardParts], places: Mapping[str, ColumnPlace]) -> None:
        self._parts = dict(parts)
        self._places = places

    async def acquire(self, unit: int) -> JoinedShard:
        """Pins all files of a shard and opens them; fetches them if they are not local.

        Raises:
            StorageError: A file could not be fetched, or is corrupt in the bucket.
        """
        opened: dict[int, ShardPart] = {}

        async def acquire(number: int) -> None:
            opened[number] = await self._parts[number].acquire(unit)

        try:
            await map_concurrently(acquire, list(self._parts))
        except BaseException:
            for number in opened:
                self._parts[number].release(unit)
            raise
        return JoinedShard(opened, self._places)

    def release(self, unit: int, *, done_for_epoch: bool = False) -> None:
        """Releases the pins of a shard; see `ShardCache.release`."""
        for part in self._parts.values():
            part.release(unit, done_for_epoch=done_for_epoch)

    async def replace(self, unit: int, shard: JoinedShard) -> JoinedShard:
        """Fetches the damaged files of a shard again; pins stay as they are."""
        fresh = {number: await self._parts[number].replace(unit, shard.parts[number]) for number in shard.damaged}
        return JoinedShard({**shard.parts, **fresh}, self._places)


class CachedPart:
    """Whole shards of one part, from a cache."""

    def __init__(self, manifest: Manifest, cache: ShardCache) -> None:
        self._shards = manifest.shards
        self._cache = cache

    async def acquire(self, unit: int) -> Any:
        """Pins a shard and returns it."""
        return await self._cache.acquire(self._shards[unit])

    def release(self, unit: int, *, done_for_epoch: bool = False) -> None:
        """Releases one pin."""
        self._cache.release(self._shards[unit], done_for_epoch=done_for_epoch)

    async def replace(self, unit: int, damaged: Any) -> Any:
        """Fetches a damaged shard again."""
        return await self._cache.replace(self._shards[unit], damaged)


def needed_parts(manifest: Manifest, columns: Sequence[str]) -> list[int]:
    """Returns the numbers of the parts that store some columns, ascending; the shards alone without columns."""
    return sorted({manifest.place_of(name).part for name in columns}) or [0]


def whole_shards(manifest: Manifest, cache: ShardCache, columns: Sequence[str]) -> JoinedShards:
    """Returns the shards of a snapshot, of which some columns will be read."""
    parts = {number: CachedPart(manifest.parts[number], cache) for number in needed_parts(manifest, columns)}
    return JoinedShards(parts, {name: manifest.place_of(name) for name in columns})
