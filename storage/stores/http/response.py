"""A response whose head has arrived; reads the body into memory of the announced length."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from concurrent_loader.storage.errors import ProtocolViolation, StoreError, TruncatedBody
from concurrent_loader.storage.stores.http.connection import HttpConnection
from concurrent_loader.storage.stores.http.head import ResponseHead, parse_length

__all__ = ["HttpResponse"]


class HttpResponse:
    """Response whose head has arrived. Reading the whole body, or `close`, releases the connection.

    Attributes:
        status: HTTP status.
        headers: Header values by lower-case name.
        length: Announced length of the body in bytes; None if the server does not announce it.
    """

    def __init__(
        self,
        head: ResponseHead,
        connection: HttpConnection,
        release: Callable[[HttpConnection, bool], None],
        *,
        no_body: bool,
    ) -> None:
        self.status = head.status
        self.headers: Mapping[str, str] = head.headers
        self.length = head.length
        self._num_left = head.length or 0
        self._memory = memoryview(b"")
        self._head = head
        self._connection: HttpConnection | None = connection
        self._release = release
        if no_body or head.status in (204, 304) or (head.length == 0 and not head.is_chunked):
            self._end(keep=head.keep_alive)

    def close(self) -> None:
        """Closes the connection unless the whole body was read. Idempotent."""
        self._end(keep=False)

    async def read(self) -> memoryview:
        """Reads a body of announced length.

        Raises:
            TruncatedBody: The body is shorter than announced.
            StoreError: The body does not fit in memory.
            DeadlineExceeded: The server was silent for 120 s.

        Cancellation: Closes the connection.
        """
        num_bytes, connection = self.length, self._connection
        assert num_bytes is not None
        if connection is None:
            return memoryview(b"")
        try:
            if num_bytes <= connection.num_buffered:
                data = memoryview(connection.take(num_bytes))
            else:
                data = _memory(num_bytes)
                await self._fill(connection, data)
        except BaseException:
            self.close()
            raise
        self._end(keep=self._head.keep_alive)
        return data

    async def read_at_most(self, limit: int) -> bytes | None:
        """Reads a body with or without an announced length. Returns None if it is longer than ``limit`` bytes.

        Raises:
            TruncatedBody, ProtocolViolation, DeadlineExceeded: As for `read`; also malformed chunks.

        Cancellation: Closes the connection.
        """
        connection = self._connection
        if connection is None:
            return b""
        if self.length is not None:
            return None if self.length > limit else bytes(await self.read())
        try:
            body, has_end = await (_read_chunks if self._head.is_chunked else _read_all)(connection, limit)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError | EOFError):
                raise TruncatedBody("the body ended early") from error
            raise
        self._end(keep=has_end and self._head.keep_alive)
        return body

    async def read_piece(self, piece_bytes: int) -> memoryview | None:
        """Reads the next piece of a body of announced length. Between calls, TCP backpressure stops the server.

        Returns:
            A piece of ``piece_bytes``, or a shorter one at the end of the body or connection; None after the end of the
            body. The next call overwrites the piece.

        Raises:
            TruncatedBody, StoreError, DeadlineExceeded: As for `read`.

        Cancellation: Closes the connection.
        """
        num_bytes = min(self._num_left, piece_bytes)
        if len(self._memory) < num_bytes:
            self._memory = _memory(num_bytes)
        num_bytes = await self.read_into(self._memory[:num_bytes])
        return self._memory[:num_bytes] if num_bytes else None

    async def read_into(self, view: memoryview) -> int:
        """Receives the next bytes of a body of announced length into ``view``. See `read_piece`.

        Returns:
            Number of bytes received: fewer than the view holds if the connection ended, 0 at the end of the body.
        """
        connection, left = self._connection, self._num_left
        if left == 0:
            return 0
        if connection is None:
            raise TruncatedBody("the body ended early")
        view = view[:left]
        try:
            num_bytes = await connection.read_into(view, pauses=len(view) < left)
        except BaseException:
            self.close()
            raise
        self._num_left = left - num_bytes
        if num_bytes < len(view):
            self.close()
            if num_bytes == 0:
                raise TruncatedBody("the body ended early")
        elif self._num_left == 0:
            self._end(keep=self._head.keep_alive)
        return num_bytes

    async def _fill(self, connection: HttpConnection, view: memoryview) -> None:
        if (num_bytes := await connection.read_into(view)) < len(view):
            raise TruncatedBody("the body is not as long as announced", expected=len(view), got=num_bytes)

    def _end(self, *, keep: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._release(connection, keep)


def _memory(num_bytes: int) -> memoryview:
    # numpy does not clear the memory first.
    try:
        return np.empty(num_bytes, np.uint8).data
    except (MemoryError, ValueError) as error:
        raise StoreError("the body does not fit in memory", got=f"{num_bytes} bytes") from error


async def _read_all(connection: HttpConnection, limit: int) -> tuple[bytes | None, bool]:
    """Reads a body that ends with the connection; returns it, and False, because the connection cannot be reused."""
    body = bytearray()
    while chunk := await connection.read_some():
        body += chunk
        if len(body) > limit:
            return None, False
    return bytes(body), False


async def _read_chunks(connection: HttpConnection, limit: int) -> tuple[bytes | None, bool]:
    """Reads a chunked body; returns it, and whether its end was read."""
    body = bytearray()
    while True:
        line = await connection.read_line()
        num_bytes = parse_length(line.partition(b";")[0].strip().decode("latin-1"), 16)
        if num_bytes == 0:
            # Trailers are not read; the connection is then closed.
            return bytes(body), await connection.read_line() == b"\r\n"
        if len(body) + num_bytes > limit:
            return None, False
        chunk = memoryview(bytearray(num_bytes + 2))
        if await connection.read_into(chunk) < len(chunk):
            raise EOFError
        if bytes(chunk[-2:]) != b"\r\n":
            raise ProtocolViolation("a chunk of the body is longer than its announced length")
        body += chunk[:-2]
