"""The proxy's side towards the real server: persistent connections, responses as a head and pieces of a body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from concurrent_loader.storage.testing.faults.http_heads import AnswerHead, RequestHead

__all__ = ["LIMIT_BYTES", "Upstream", "UpstreamAnswer"]

LIMIT_BYTES = 1 << 18  # upper bound of a head, and of a piece of a body
_MAX_IDLE = 256
_NO_BODY = (204, 304)

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class UpstreamAnswer:
    """A response whose body has not been read yet.

    Attributes:
        head: Head with Content-Length, even if the server did not send one.
        num_bytes: Length of the body.
        collected: Body that was read already because its length was not announced; None otherwise.
        connection: Connection of the body, to release or to close.
    """

    head: AnswerHead
    num_bytes: int
    collected: bytes | None
    connection: Connection

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yields the pieces of the body.

        Raises:
            asyncio.IncompleteReadError: The server ended the body early.
        """
        if self.collected is not None:
            yield self.collected
            return
        reader, left = self.connection[0], self.num_bytes
        while left:
            piece = await reader.read(min(left, LIMIT_BYTES))
            if not piece:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(piece)
            yield piece


class Upstream:
    """Sends requests to one server over persistent connections; usable from one event loop.

    Args:
        host: Host of the server.
        port: Port of the server.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._idle: list[Connection] = []

    async def ask(self, head: RequestHead, body: asyncio.StreamReader) -> UpstreamAnswer:
        """Sends a request and reads the head of the response.

        If a persistent connection is closed, the request is repeated once over a new one. Requests with a body always
        use a new connection, because they cannot be repeated.

        Raises:
            OSError: The server is unreachable, or closed the connection.
            asyncio.IncompleteReadError: The server closed the connection inside the head.
        """
        while self._idle and not head.num_body_bytes:
            connection = self._idle.pop()
            try:
                return await self._ask(connection, head, body)
            except (OSError, asyncio.IncompleteReadError):
                continue
        opened = await asyncio.open_connection(self._host, self._port, limit=LIMIT_BYTES)
        return await self._ask(opened, head, body)

    async def _ask(self, connection: Connection, head: RequestHead, body: asyncio.StreamReader) -> UpstreamAnswer:
        reader, writer = connection
        try:
            writer.write(head.to_server())
            left = head.num_body_bytes
            while left:
                piece = await body.read(min(left, LIMIT_BYTES))
                if not piece:
                    raise asyncio.IncompleteReadError(b"", left)
                left -= len(piece)
                writer.write(piece)
                await writer.drain()
            answer = AnswerHead.parse(await reader.readuntil(b"\r\n\r\n"))
            if head.method == "HEAD" or answer.status in _NO_BODY:
                return UpstreamAnswer(answer, 0, None, connection)
            if answer.chunked:
                whole = await _collect(reader)
                answer = answer.having(transfer_encoding=None, content_length=str(len(whole)))
                return UpstreamAnswer(answer, len(whole), whole, connection)
            return UpstreamAnswer(answer, answer.content_length or 0, None, connection)
        except BaseException:
            writer.transport.abort()
            raise

    def give_back(self, answer: UpstreamAnswer) -> None:
        """Keeps the connection of a response whose body was read to its end."""
        if answer.head.keeps_connection and len(self._idle) < _MAX_IDLE:
            self._idle.append(answer.connection)
        else:
            answer.connection[1].close()

    async def close(self) -> None:
        """Closes the persistent connections."""
        writers = [writer for _, writer in self._idle]
        self._idle.clear()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


async def _collect(reader: asyncio.StreamReader) -> bytes:
    whole = bytearray()
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        whole += await reader.readexactly(size)
        await reader.readexactly(2)
        if size == 0:
            return bytes(whole)
