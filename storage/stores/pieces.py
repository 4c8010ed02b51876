"""A range that arrives piece by piece: what a store hands to the fetch engine once the answer's headers are there."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol, Self

from storage.errors import ProtocolViolation, StorageError, TruncatedBody
from storage.secrets import presentable

if TYPE_CHECKING:
    from storage.stores.protocol import ObjectMeta

__all__ = ["PIECE_BYTES", "OpenRange", "Pieces"]

# Large enough to make few trips through Python, small enough to stay in the processor's cache until it is written:
# 8 MiB ranges into files cost 1.0 CPU s a GB so, 1.4 in one piece, 1.2 in pieces of 256 KiB.
PIECE_BYTES = 1 << 20


class Pieces(Protocol):
    """A backend's body: pieces in order, and a way to let go of the connection. An async generator is one."""

    def __anext__(self) -> Awaitable[memoryview]: ...

    def aclose(self) -> Awaitable[None]: ...


class OpenRange:
    """An answer whose headers have come and whose body follows, never a byte more or fewer than was asked for.

    Iterate over it to get the pieces; a piece must not be kept beyond the next one. `aclose` gives the connection back,
    whether or not the body was read.

    Attributes:
        meta: Of the whole object.
        end: One past the last byte that will come.
    """

    def __init__(self, meta: ObjectMeta, pieces: Pieces, *, url: str, start: int, end: int) -> None:
        self.meta = meta
        self.end = end
        self._pieces = pieces
        self._url = url
        self._start = start
        self._position = start

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> memoryview:
        """Returns the next piece.

        Raises:
            TruncatedBody: The body ended early.
            ProtocolViolation: It is longer than the range; no byte beyond the range is handed out.
            StorageError: What the backend says; neither it nor its causes show a secret.
        """
        try:
            piece = await anext(self._pieces)
        except StopAsyncIteration:
            self._check(self._position, TruncatedBody)
            raise
        except StorageError as error:
            presentable(error)
            raise
        if self._position + len(piece) > self.end:
            self._check(self._position + len(piece), ProtocolViolation)
        self._position += len(piece)
        return piece

    async def aclose(self) -> None:
        """Lets go of the connection. Idempotent."""
        await self._pieces.aclose()

    def _check(self, position: int, error: type[TruncatedBody | ProtocolViolation]) -> None:
        if position != self.end:
            raise error(
                "the body is not as long as the range",
                url=self._url,
                key=self.meta.key,
                start=self._start,
                end=self.end,
                expected=self.end - self._start,
                got=position - self._start,
            )
