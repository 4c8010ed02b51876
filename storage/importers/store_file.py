"""Reads an object of a store like a file, on the thread of an importer."""

from __future__ import annotations

import io
from collections import OrderedDict
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.importers.loop_calls import LoopCalls
from concurrent_loader.storage.stores.objects import GetResult

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["StoreFile"]

_PIECE_BYTES = 2 << 20
_MAX_PIECES = 16


class StoreFile(io.RawIOBase):
    """An object as a read-only file that can seek.

    The object is fetched in pieces of 2 MiB, of which 16 are kept. After two pieces in sequence, the next ones are
    fetched ahead. All pieces must belong to the same version of the object.

    Args:
        engine: Engine of the store.
        calls: Calls on the engine's event loop.
        key: Key of the object.
        size: Size of the object in bytes.
        etag: Version of the object, or None if the store has none.

    Raises:
        ObjectChanged: While reading: the object was replaced.
    """

    def __init__(self, engine: FetchEngine, calls: LoopCalls, key: str, *, size: int, etag: str | None) -> None:
        super().__init__()
        self._engine = engine
        self._calls = calls
        self._key = key
        self._size = size
        self._etag = etag
        self._position = 0
        self._last_piece = -2
        self._pieces: OrderedDict[int, Future[GetResult]] = OrderedDict()

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def tell(self) -> int:
        """Returns the position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Moves the position, and returns it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"a position must not be negative: {start + offset}")
        self._position = start + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Reads at most one piece into a buffer, and returns the number of bytes; 0 at the end."""
        target = memoryview(buffer).cast("B")
        if self._position >= self._size or not len(target):
            return 0
        piece, start = divmod(self._position, _PIECE_BYTES)
        is_sequential = piece in (self._last_piece, self._last_piece + 1)
        last = min(self._position + len(target), self._size) - 1
        ahead = _MAX_PIECES // 2 if is_sequential and self._last_piece >= 0 else 0
        self._last_piece = piece
        for number in range(piece, min(max(last // _PIECE_BYTES, piece + ahead), piece + _MAX_PIECES // 2) + 1):
            self._start(number)
        data = self._calls.wait(self._pieces[piece]).data[start : start + len(target)]
        target[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        """Cancels running fetches. Idempotent."""
        for future in self._pieces.values():
            future.cancel()
        self._pieces.clear()
        super().close()

    def _start(self, number: int) -> None:
        if number in self._pieces:
            self._pieces.move_to_end(number)
            return
        start = number * _PIECE_BYTES
        if start >= self._size:
            return
        fetch: Any = self._engine.fetch(
            self._key, start, min(start + _PIECE_BYTES, self._size), if_match=self._etag, object_size=self._size
        )
        self._pieces[number] = self._calls.submit(fetch)
        while len(self._pieces) > _MAX_PIECES:
            self._pieces.popitem(last=False)[1].cancel()
