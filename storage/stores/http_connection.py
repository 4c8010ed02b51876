"""GET requests over asyncio's streams, for short answers of servers that are not trusted.

A listing needs no more of HTTP than this. aiohttp and botocore take half a second of CPU to load, which would double
the time to a dataset's first batch.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from storage.errors import ConfigurationError, DeadlineExceeded, ProtocolViolation, StorageError, TruncatedBody
from storage.stores.answers import MAX_ERROR_BYTES, MAX_PAGE_BYTES, connection_failed, too_long

__all__ = ["HttpAnswer", "HttpConnection"]

_ANSWER_S = 120.0
_STATUS = re.compile(rb"HTTP/1\.([01]) (\d{3})(?: .*)?")
_MAX_INTERIM = 8  # answers of 1xx before the one that counts
_READ_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer.

    Attributes:
        status: HTTP status.
        headers: Headers by name, in lower case.
        body: The whole body; empty where an error's is longer than `MAX_ERROR_BYTES`.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpConnection:
    """A connection to one server, made by the first request and kept for the next. No redirect is followed.

    Args:
        url: Any URL at the server.
        tls: Settings for ``https://``; None for ``http://``.
        connect_s: Seconds for making a connection.
        keep_alive: Whether a connection serves more than one request.
    """

    def __init__(self, url: str, *, tls: ssl.SSLContext | None, connect_s: float, keep_alive: bool = True) -> None:
        self._url = url
        self._tls = tls
        self._connect_s = connect_s
        self._keep_alive = keep_alive
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, request: Callable[[], bytes]) -> HttpAnswer:
        """Sends a request and reads its answer.

        Args:
            request: Function that returns the request's head. It is not called before there is a connection, and its
                result, which may hold a session token, is in no variable.

        Raises:
            ConfigurationError: The URL's host cannot be a host's name.
            ConnectionFailed: There is no connection, or it ended before the answer.
            DeadlineExceeded: There was no connection within ``connect_s``, or no whole answer within 120 s.
            TruncatedBody: The body is shorter than announced.
            ProtocolViolation: The answer is no HTTP, or a success that is longer than `MAX_PAGE_BYTES`.

        Cancellation: Closes the connection.
        """
        try:
            async with asyncio.timeout(_ANSWER_S):
                answer, can_keep = await self._get(request)
        except BaseException as error:
            self.close()
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded("the store did not answer in time") from error
            if isinstance(error, StorageError):
                raise
            if isinstance(error, OSError | EOFError):
                raise connection_failed(error, server=self._url) from error
            if isinstance(error, asyncio.LimitOverrunError | ValueError):
                raise ProtocolViolation("the answer is no HTTP", got=type(error).__name__) from error
            raise
        if not (can_keep and self._keep_alive):
            self.close()
        return answer

    def close(self) -> None:
        """Closes the connection, if there is one; the next request makes another."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def _get(self, request: Callable[[], bytes]) -> tuple[HttpAnswer, bool]:
        was_kept = self._streams is not None
        try:
            reader, version, status, headers = await self._ask(request)
        except (OSError, EOFError):
            if not was_kept:
                raise
            # Servers close connections that were idle; only the next request tells.
            self.close()
            reader, version, status, headers = await self._ask(request)
        is_error = status >= 300
        limit = MAX_ERROR_BYTES if is_error else MAX_PAGE_BYTES
        try:
            body, has_end = await _read_body(reader, status, headers, limit)
        except EOFError as error:
            raise TruncatedBody("the body ended early") from error
        if body is None and not is_error:
            raise too_long(limit)
        can_keep = has_end and version == 1 and "close" not in headers.get("connection", "").lower()
        return HttpAnswer(status, headers, body or b""), can_keep

    async def _ask(self, request: Callable[[], bytes]) -> tuple[asyncio.StreamReader, int, int, dict[str, str]]:
        if self._streams is None:
            parts = urlsplit(self._url)
            try:
                async with asyncio.timeout(self._connect_s):
                    self._streams = await asyncio.open_connection(
                        parts.hostname, parts.port or (80 if self._tls is None else 443), ssl=self._tls
                    )
            except UnicodeError as error:  # an empty label, or one of more than 63 characters
                raise ConfigurationError("the host's name is invalid", got=parts.hostname) from error
        reader, writer = self._streams
        writer.write(request())
        for _ in range(_MAX_INTERIM):
            head = await reader.readuntil(b"\r\n\r\n")
            first, *lines = head[:-4].split(b"\r\n")
            found = _STATUS.fullmatch(first)
            if found is None:
                raise ProtocolViolation("the answer is no HTTP/1.1")
            if (status := int(found[2])) >= 200:
                pairs = (line.decode("latin-1").partition(":") for line in lines)
                return reader, int(found[1]), status, {name.strip().lower(): value.strip() for name, _, value in pairs}
        raise ProtocolViolation("the answer does not begin", got=status)


async def _read_body(
    reader: asyncio.StreamReader, status: int, headers: Mapping[str, str], limit: int
) -> tuple[bytes | None, bool]:
    """Reads a body.

    Returns:
        The body, or None if it is longer than the limit; and whether its end shows without the connection's.
    """
    if status in (204, 304):
        return b"", True
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return await _read_chunks(reader, limit)
    if (announced := headers.get("content-length")) is not None:
        num_bytes = _number(announced, 10)
        return (None, False) if num_bytes > limit else (await reader.readexactly(num_bytes), True)
    body = bytearray()
    while chunk := await reader.read(_READ_BYTES):
        body += chunk
        if len(body) > limit:
            return None, False
    return bytes(body), False


async def _read_chunks(reader: asyncio.StreamReader, limit: int) -> tuple[bytes | None, bool]:
    body = bytearray()
    while True:
        line = await reader.readuntil(b"\r\n")
        num_bytes = _number(line.partition(b";")[0].strip().decode("latin-1"), 16)
        if num_bytes == 0:
            # Trailers are left unread, and the connection with them.
            return bytes(body), await reader.readexactly(2) == b"\r\n"
        if len(body) + num_bytes > limit:
            return None, False
        body += await reader.readexactly(num_bytes)
        if await reader.readexactly(2) != b"\r\n":
            raise ProtocolViolation("a chunk of the body is longer than announced")


def _number(text: str, base: int) -> int:
    """Reads digits alone: `int` also takes signs, spaces and underscores."""
    if re.fullmatch(r"[0-9]{1,18}" if base == 10 else r"[0-9A-Fa-f]{1,15}", text) is None:
        raise ProtocolViolation("the answer's length is no number", got=text[:40])
    return int(text, base)
