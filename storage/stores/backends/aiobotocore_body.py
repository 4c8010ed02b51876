"""The body of a response as aiobotocore reads it, in pieces worth handing on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

__all__ = ["BodyPieces"]


class BodyPieces:
    """Pieces of a streaming body; see `concurrent_loader.storage.stores.body_stream.Pieces`.

    Args:
        body: aiobotocore's.
        translated: Makes a context in which the client's errors become `concurrent_loader.storage.errors`.
        check_length: Raises unless so many bytes are what was announced.
        piece_bytes: Roughly, of a piece.
    """

    def __init__(
        self,
        body: Any,
        *,
        translated: Callable[[], AbstractContextManager[None]],
        check_length: Callable[[int], None],
        piece_bytes: int,
    ) -> None:
        self._body = body
        self._translate_errors = translated
        self._check_length = check_length
        self._piece_bytes = piece_bytes
        self._num_bytes = 0
        self._failure: Exception | None = None

    async def __anext__(self) -> memoryview:
        # aiohttp hands out what a socket had, 64 KiB or so: gathered, because every piece costs its taker a trip.
        gathered: list[bytes] = []
        missing = self._piece_bytes
        with self._translate_errors():
            if self._failure is not None:
                raise self._failure
            while missing > 0:
                try:
                    chunk = await self._body.read(missing)
                except Exception as error:
                    if not gathered:
                        raise
                    self._failure = error  # what came before it is good, and is not asked for again
                    break
                if not chunk:
                    break
                gathered.append(chunk)
                missing -= len(chunk)
        if not gathered:
            self._check_length(self._num_bytes)
            raise StopAsyncIteration
        piece = gathered[0] if len(gathered) == 1 else b"".join(gathered)
        self._num_bytes += len(piece)
        return memoryview(piece)

    async def aclose(self) -> None:
        """Gives the connection back, or closes it where bytes are left: an unread body would occupy it for ever."""
        self._body.close()
