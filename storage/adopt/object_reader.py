"""Reads an object of a source in order, with requests ahead of the walk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from concurrent_loader.storage.adopt.protocol import check_inside
from concurrent_loader.storage.errors import DatasetChanged, FormatError, NotFound, ObjectChanged
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.listing import ObjectEntry

__all__ = ["FetchingReader", "Runner", "StoreObjects", "StoreReader", "fetch_unchanged"]

T = TypeVar("T")

_BLOCK_BYTES = 8 << 20
_KEPT = 3  # blocks behind the newest: a virtual shard of 8 MiB is read twice, once by value and once as a whole
_AHEAD = 2


class Runner(Protocol):
    """Runs coroutines on an event loop for another thread, such as `LoopThread`."""

    def run(self, coroutine: Coroutine[Any, Any, T], /) -> T:
        """Returns the result of a coroutine."""
        ...

    def submit(self, coroutine: Coroutine[Any, Any, T], /) -> Future[T]:
        """Starts a coroutine."""
        ...


class StoreReader(ABC):
    """The bytes of one object of a store; see `ObjectReader`.

    Args:
        entry: Object to read; another ETag or size is an error.
        engine: Engine over the source's store.
        loop: Event loop of the engine.

    Thread-safety: One thread at a time, which must not be the loop's.
    """

    def __init__(self, entry: ObjectEntry, engine: FetchEngine, loop: Runner) -> None:
        self._entry = entry
        self._engine = engine
        self._loop = loop
        self.size = entry.size
        self.name = entry.key

    def read(self, start: int, end: int) -> memoryview:
        """Returns exactly the bytes [start, end); see `ObjectReader`."""
        check_inside(start, end, self.size, self.name)
        return self._read(start, end) if start < end else memoryview(b"")

    def close(self) -> None:
        """Does nothing: no request is running."""

    @abstractmethod
    def _read(self, start: int, end: int) -> memoryview:
        """Reads a range that is not empty, and inside the object."""

    async def _fetch(self, start: int, end: int) -> memoryview:
        return await fetch_unchanged(self._engine, self._entry, start, end)


class FetchingReader(StoreReader):
    """The bytes of one object, fetched in blocks of 8 MiB; at most six blocks are in memory. See `StoreReader`."""

    def __init__(self, entry: ObjectEntry, engine: FetchEngine, loop: Runner) -> None:
        super().__init__(entry, engine, loop)
        self._blocks: dict[int, Future[memoryview]] = {}

    def _read(self, start: int, end: int) -> memoryview:
        first, last = start // _BLOCK_BYTES, (end - 1) // _BLOCK_BYTES
        if first == last:
            base = first * _BLOCK_BYTES
            return self._block(first)[start - base : end - base]
        joined = bytearray(end - start)
        for number in range(first, last + 1):
            base = number * _BLOCK_BYTES
            piece = self._block(number)[max(0, start - base) : end - base]
            at = max(start, base) - start
            joined[at : at + len(piece)] = piece
        return memoryview(joined).toreadonly()

    def close(self) -> None:
        """Cancels requests that are still running."""
        for block in self._blocks.values():
            block.cancel()
        self._blocks.clear()

    def _block(self, number: int) -> memoryview:
        block = self._blocks.get(number)
        if block is not None and block.done():
            return block.result()
        # Only a walk that goes forward gets requests ahead; a jump fetches one block.
        is_next = number == 0 or number - 1 in self._blocks
        for wanted in range(number, number + (1 + _AHEAD if is_next else 1)):
            if wanted * _BLOCK_BYTES < self.size and wanted not in self._blocks:
                base = wanted * _BLOCK_BYTES
                self._blocks[wanted] = self._loop.submit(self._fetch(base, min(base + _BLOCK_BYTES, self.size)))
        while len(self._blocks) > 1 + _AHEAD + _KEPT:
            farthest = max(self._blocks, key=lambda each: abs(each - number))
            self._blocks.pop(farthest).cancel()
        return self._blocks[number].result()


async def fetch_unchanged(engine: FetchEngine, entry: ObjectEntry, start: int, end: int) -> memoryview:
    """Fetches a range of a listed object.

    Raises:
        DatasetChanged: The object was replaced or deleted after it was listed.
        StorageError: The range could not be fetched.
    """
    strong = None if entry.etag is None or entry.etag.startswith("W/") else entry.etag
    what = "an object changed while it was being adopted; adopt again"
    try:
        result = await engine.fetch(entry.key, start, end, if_match=strong, object_size=entry.size)
    except (ObjectChanged, NotFound) as error:
        raise DatasetChanged(what, url=error.url, key=entry.key, expected=error.expected, got=error.got) from error
    if entry.etag is not None and result.meta.etag not in (None, entry.etag):
        raise DatasetChanged(what, url=engine.store.url, key=entry.key, expected=entry.etag, got=result.meta.etag)
    return result.data.toreadonly()


class StoreObjects:
    """Small objects of a source, by key; see `SmallObjects`."""

    def __init__(self, entries: dict[str, ObjectEntry], engine: FetchEngine, loop: Runner) -> None:
        self._entries = entries
        self._engine = engine
        self._loop = loop

    def get(self, key: str, *, max_bytes: int) -> bytes | None:
        """Returns an object, or None if there is none of this key."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.size > max_bytes:
            raise FormatError("the object is too large", key=key, expected=f"<= {max_bytes} bytes", got=entry.size)
        if not entry.size:
            return b""
        return bytes(self._loop.run(fetch_unchanged(self._engine, entry, 0, entry.size)))
