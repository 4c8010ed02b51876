"""Reads ranges of an object of a source that are used once, and limits the memory of all that is decoded meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from concurrent_loader.storage.adopt.object_reader import Runner, StoreReader
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.listing import ObjectEntry

__all__ = ["MemoryLimit", "RangeReader"]

_KEPT_BYTES = 1 << 20


class RangeReader(StoreReader):
    """The bytes of one object, each range fetched by one request; a range of at most 1 MiB is kept until the next one.

    See `StoreReader`.
    """

    def __init__(self, entry: ObjectEntry, engine: FetchEngine, loop: Runner) -> None:
        super().__init__(entry, engine, loop)
        self._start, self._kept = 0, memoryview(b"")

    def _read(self, start: int, end: int) -> memoryview:
        if self._start <= start and end <= self._start + len(self._kept):
            return self._kept[start - self._start : end - self._start]
        data = self._loop.run(self._fetch(start, end))
        if len(data) <= _KEPT_BYTES:
            self._start, self._kept = start, data
        return data


class MemoryLimit:
    """Limits the bytes that threads hold at the same time. More than the limit is held by one thread alone.

    Args:
        max_bytes: Limit in bytes.

    Thread-safety: `hold` is for any number of threads; one thread must not hold twice.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = self._free_bytes = max_bytes
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, num_bytes: int) -> Iterator[None]:
        """Waits until so many bytes are free, and holds them during the block."""
        num_bytes = min(num_bytes, self._max_bytes)
        with self._changed:
            self._changed.wait_for(lambda: self._free_bytes >= num_bytes)
            self._free_bytes -= num_bytes
        try:
            yield
        finally:
            with self._changed:
                self._free_bytes += num_bytes
                self._changed.notify_all()
