"""Brings raw objects to the loader, one request each: above the cache, beside the source of shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.plan import BatchIndex
from concurrent_loader.selection import Selection
from concurrent_loader.source import OpenUnit, Visits
from storage.cache import ObjectEntry, ShardCache
from storage.listing import Listing

__all__ = ["ObjectSource", "ObjectUnit"]

Indices = npt.NDArray[np.int64]

_SPARE = 8  # objects, at least, that wait for a place in flight, so that none stays free


class ObjectUnit:
    """One object in memory: a unit of one sample.

    Args:
        key: Of the object.
        payload: Name of the payload column.
        data: The object.
        facts: Column → value, of all other columns.
    """

    cached = False  # the cache has checked its copy, and fetched the object again if need be

    def __init__(self, key: str, payload: str, data: memoryview, facts: Mapping[str, Any]) -> None:
        self.key = key
        self._payload = payload
        self._data = data
        self._facts = facts

    def payload(self, column: str, rows: Indices) -> list[memoryview]:
        """Returns the object's bytes, once for each row asked for."""
        return [self._data] * len(rows)

    def values(self, column: str, rows: Indices) -> npt.NDArray[Any] | list[Any]:
        """Returns a column's value, once for each row asked for."""
        if column == self._payload:
            return [bytes(self._data)] * len(rows)
        value = self._facts[column]
        return [value] * len(rows) if isinstance(value, str) else np.full(len(rows), value, np.int64)


class ObjectSource:
    """The objects of one listing, for one iteration; see `concurrent_loader.source.Source`.

    Args:
        url: Of the store.
        listing: The objects; the n-th is unit n, and sample n.
        labels: (n,) int64, or None.
        cache: Fetches and keeps them.
        payload: Name of the payload column.
        selection: Which of them; None for all.
        with_payload: Whether their bytes are wanted at all.
        in_flight: Says how many requests may be in flight at the moment.
    """

    def __init__(
        self,
        url: str,
        listing: Listing,
        labels: Indices | None,
        cache: ShardCache,
        *,
        payload: str,
        selection: Selection | None,
        with_payload: bool,
        in_flight: Callable[[], int],
    ) -> None:
        self._url = url
        self._listing = listing
        self._labels = labels
        self._cache = cache
        self._payload = payload
        self._selection = selection
        self._with_payload = with_payload
        self._in_flight = in_flight
        self._visits = Visits()

    @property
    def num_at_once(self) -> int:
        limit = self._in_flight()
        return limit + max(_SPARE, limit // 4)

    def num_samples(self, unit: int) -> int:
        return 1

    def num_bytes(self, unit: int) -> int:
        return int(self._listing.sizes[unit]) if self._with_payload else 0

    def url(self, unit: int) -> str:
        return self._url

    def key(self, unit: int) -> str:
        return self._listing.keys[unit]

    def fetched(self, unit: int) -> tuple[float, float | None] | None:
        if not self._with_payload:
            return None
        # An object that has not been asked for yet waits for a place in flight: for the store, not for the drive.
        _, ended_s = self._visits.get(unit, (0.0, None))
        return 0.0, ended_s

    async def follow(self, plan: object, world_size: int, *, shared: bool = False) -> None:
        """Does nothing: objects are evicted when they have not been used for the longest time."""

    def at(self, step: int) -> None:
        """Does nothing; see `follow`."""

    async def acquire(self, unit: int) -> OpenUnit:
        listing = self._listing
        entry = ObjectEntry(self._url, listing.keys[unit], int(listing.sizes[unit]), listing.etags[unit] or None)
        data = memoryview(b"")
        if self._with_payload:
            with self._visits.of(unit):
                data = await self._cache.read_object(entry)
        facts: dict[str, Any] = {"key": entry.key}
        if self._labels is not None:
            facts["label"] = int(self._labels[unit])
        return ObjectUnit(entry.key, self._payload, data, facts)

    def release(self, unit: int, *, spent: bool = False) -> None:
        """Forgets it; its memory goes with the last who refers to it."""
        self._visits.pop(unit, None)

    async def replace(self, unit: int, decayed: OpenUnit) -> OpenUnit:
        return await self.acquire(unit)

    async def end(self) -> None:
        """Has nothing to wait for."""

    def resolve(self, index: BatchIndex) -> BatchIndex:
        return index if self._selection is None else replace(index, sample=self._selection.numbers[index.sample])
