"""Reads the headers of an object of a source, and leaves out the payload between them."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from concurrent.futures import Future

from concurrent_loader.storage.adopt.object_reader import Runner, fetch_unchanged
from concurrent_loader.storage.adopt.protocol import check_inside
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.listing import ObjectEntry

__all__ = ["HeaderReader"]

_WINDOW_BYTES = 16 << 10
_LEAD_BYTES = 2 << 10  # in front of an expected position: labels behind the payload before it, and PAX headers
_AHEAD = 16
_MAX_WINDOWS = 512


class HeaderReader:
    """The bytes of one object, fetched in windows of 16 KiB where the walk reads; at most 512 windows are in memory.

    Each request waits for the one before it, unless `expect` announces where the walk will read: then 16 requests are
    in flight.

    Args:
        entry: Object to read; another ETag or size is an error.
        engine: Engine over the source's store.
        loop: Event loop of the engine.

    Attributes:
        num_requests: Number of requests so far.
        num_bytes: Number of bytes that were requested.
        end: One past the last byte that was requested: the rest of the object is not known.

    Raises:
        ConfigurationError: The store gives no ETag, so that nothing would tell that the object was replaced.

    Thread-safety: One thread at a time, which must not be the loop's.
    """

    def __init__(self, entry: ObjectEntry, engine: FetchEngine, loop: Runner) -> None:
        if entry.etag is None:
            raise ConfigurationError(
                "the store has no ETags, so an object that is replaced would not be noticed; adopt without "
                "headers_only (--headers-only)",
                url=engine.store.url, key=entry.key,
            )  # fmt: skip
        self._entry = entry
        self._engine = engine
        self._loop = loop
        self._starts: list[int] = []
        self._windows: dict[int, tuple[int, Future[memoryview]]] = {}
        self._expected: list[int] = []
        self._next = 0
        self.size = entry.size
        self.name = entry.key
        self.num_requests = self.num_bytes = self.end = 0

    def expect(self, positions: Iterable[int]) -> None:
        """Announces positions that will be read, in ascending order."""
        self._expected += positions

    def read(self, start: int, end: int) -> memoryview:
        """Returns exactly the bytes [start, end); see `ObjectReader`."""
        check_inside(start, end, self.size, self.name)
        if start == end:
            return memoryview(b"")
        expected = self._expected
        while self._next < len(expected) and (self._next < _AHEAD or expected[self._next - _AHEAD] <= start):
            position = expected[self._next]
            self._next += 1
            if start <= position < self.size and not self._covers(position, position + 1):
                self._request(max(0, position - _LEAD_BYTES), position + _WINDOW_BYTES - _LEAD_BYTES)
        if not self._covers(start, end):
            self._request(start, max(end, start + _WINDOW_BYTES))
        first = self._starts[bisect_right(self._starts, start) - 1]
        return self._windows[first][1].result()[start - first : end - first]

    def close(self) -> None:
        """Cancels requests that are still running."""
        for _, window in self._windows.values():
            window.cancel()
        self._windows.clear()
        self._starts.clear()

    def _covers(self, start: int, end: int) -> bool:
        at = bisect_right(self._starts, start) - 1
        return at >= 0 and end <= self._windows[self._starts[at]][0]

    def _request(self, start: int, end: int) -> None:
        end = min(end, self.size)
        if start not in self._windows:
            insort(self._starts, start)
        self._windows[start] = end, self._loop.submit(fetch_unchanged(self._engine, self._entry, start, end))
        self.num_requests += 1
        self.num_bytes += end - start
        self.end = max(self.end, end)
        while len(self._starts) > _MAX_WINDOWS:
            self._windows.pop(self._starts.pop(0 if self._starts[0] < start else -1))[1].cancel()
