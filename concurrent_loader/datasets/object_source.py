"""Fetches raw objects for the loader, with one request each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.datasets.protocol import FetchTimes, GroupChooser, OpenUnit
from concurrent_loader.datasets.selection import Selection
from concurrent_loader.order.protocol import BatchIndex
from concurrent_loader.storage.cache import ShardCache
from concurrent_loader.storage.listing import Listing

__all__ = ["ObjectSource", "ObjectUnit"]

Indices = npt.NDArray[np.int64]

_SPARE = 8  # minimum number of queued objects, so that no request slot stays free


class ObjectUnit:
    """One object in memory: a unit of one sample.

    Args:
        key: Key of the object.
        payload: Name of the payload column.
        data: Bytes of the object.
        facts: Value of each other column.
    """

    cached = False  # the cache has checked its copy, and fetched the object again if necessary

    def __init__(self, key: str, payload: str, data: memoryview, facts: Mapping[str, Any]) -> None:
        self.key = key
        self._payload = payload
        self._data = data
        self._facts = facts

    def encoding(self, column: str) -> str:
        """Returns no encoding: objects have none."""
        return ""

    def payload(self, column: str, rows: Indices) -> list[memoryview]:
        """Returns the bytes of the object, or of another column's text, once per row."""
        data = self._data if column == self._payload else memoryview(str(self._facts[column]).encode())
        return [data] * len(rows)

    def values(self, column: str, rows: Indices) -> npt.NDArray[Any] | list[Any]:
        """Returns a column's value, once per row."""
        if column == self._payload:
            return [bytes(self._data)] * len(rows)
        value = self._facts[column]
        return [value] * len(rows) if isinstance(value, str) else np.full(len(rows), value, np.int64)


class ObjectSource:
    """The objects of one listing, for one iteration; see `concurrent_loader.datasets.protocol.Source`.

    Args:
        url: URL of the store.
        listing: Listing of the objects. The n-th object is unit n and sample n.
        labels: (n,) int64, class labels; None without labels.
        cache: Cache that fetches the objects.
        payload: Name of the payload column.
        selection: Selected samples; None for all samples.
        with_payload: Whether to fetch the objects' bytes.
        in_flight: Function that returns the current limit of concurrent requests.
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
        self._fetch_times = FetchTimes()

    @property
    def max_concurrent(self) -> int:
        limit = self._in_flight()
        return limit + max(_SPARE, limit // 4)

    def num_samples(self, unit: int) -> int:
        if self._selection is None:
            return 1
        first, last = np.searchsorted(self._selection.numbers, [unit, unit + 1]).tolist()
        return int(last - first)

    def num_bytes(self, unit: int) -> int:
        return int(self._listing.sizes[unit]) if self._with_payload else 0

    def url(self, unit: int) -> str:
        return self._url

    def key(self, unit: int) -> str:
        return self._listing.keys[unit]

    def fetch_times(self, unit: int) -> tuple[float, float | None] | None:
        if not self._with_payload:
            return None
        # An object that has not been requested yet waits for a request slot: for the store, not for the drive.
        _, ended_s = self._fetch_times.get(unit, (0.0, None))
        return 0.0, ended_s

    async def set_schedule(self, plan: object, world_size: int, *, shared: bool = False) -> None:
        """Does nothing: the cache evicts the least recently used objects."""

    def set_step(self, step: int) -> None:
        """Does nothing; see `set_schedule`."""

    def choose_groups(self, choosers: Sequence[Mapping[str, GroupChooser]]) -> None:
        """Does nothing: raw objects have no index beside them, so videos are fetched whole."""

    async def row_fetcher(self, unit: int, rows: Indices) -> None:
        """Returns None: a unit is one sample."""

    async def acquire(self, unit: int) -> OpenUnit:
        entry = self._listing.entry(unit, self._url)
        data = memoryview(b"")
        if self._with_payload:
            with self._fetch_times.of(unit):
                data = await self._cache.read_object(entry)
        facts: dict[str, Any] = {"key": entry.key}
        if self._labels is not None:
            facts["label"] = int(self._labels[unit])
        return ObjectUnit(entry.key, self._payload, data, facts)

    def release(self, unit: int, *, done_for_epoch: bool = False) -> None:
        """Forgets the unit. Its memory is freed with the last reference."""
        self._fetch_times.pop(unit, None)

    async def replace(self, unit: int, damaged: OpenUnit) -> OpenUnit:
        return await self.acquire(unit)

    async def end(self) -> None:
        """Does nothing: objects hold no open files."""

    def resolve(self, index: BatchIndex) -> BatchIndex:
        return index if self._selection is None else replace(index, sample=self._selection.numbers[index.sample])
