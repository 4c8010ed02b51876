"""The proxy's side towards the real server: connections that are kept, answers as a head and pieces of a body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from storage.testing.http_heads import AnswerHead, RequestHead

__all__ = ["LIMIT_BYTES", "Upstream", "UpstreamAnswer"]

LIMIT_BYTES = 1 << 18  # of a head, and of a piece of a body
_MAX_IDLE = 256
_NO_BODY = (204, 304)

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class UpstreamAnswer:
    """A head, and the connection that its body comes on.

    Attributes:
        head: With Content-Length, whatever the server used.
        num_bytes: Of the body that follows.
        collected: A body that had to be read already, because its length was not announced.
        connection: To read from, and to give back or to close.
    """

    head: AnswerHead
    num_bytes: int
    collected: bytes | None
    connection: Connection

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body.

        Raises:
            asyncio.IncompleteReadError: The server ends it early.
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
    """Asks one server, on kept connections where there are any; usable from one event loop.

    Args:
        host: Of the server.
        port: Of the server.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._idle: list[Connection] = []

    async def ask(self, head: RequestHead, body: asyncio.StreamReader) -> UpstreamAnswer:
        """Sends a request and reads the answer's head.

        A kept connection that turns out closed is replaced by a new one, once. Requests with a body always go out on a
        new one: they could not be repeated.

        Raises:
            OSError: The server is not there, or hangs up.
            asyncio.IncompleteReadError: It hangs up inside the head.
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
        """Keeps the connection of an answer whose body has been read to its end."""
        if answer.head.keeps_connection and len(self._idle) < _MAX_IDLE:
            self._idle.append(answer.connection)
        else:
            answer.connection[1].close()

    async def close(self) -> None:
        """Closes what is kept."""
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
