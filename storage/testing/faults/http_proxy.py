"""An HTTP proxy in front of a real S3 server, which corrupts, delays and breaks responses by script.

Requests reach the server as sent, including the Host header, so that signatures stay valid. Faults affect only the
responses, or replace them. `concurrent_loader.storage.testing.faults.toxiproxy` does the same for plain TCP.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.testing.faults.http_heads import Body, RequestHead, error_document, plan_answer
from concurrent_loader.storage.testing.faults.http_upstream import LIMIT_BYTES, Upstream, UpstreamAnswer
from concurrent_loader.storage.testing.faults.wire_faults import (
    Close,
    Delay,
    Dribble,
    Fault,
    Flip,
    Refuse,
    Request,
    Reset,
    Script,
    Silence,
    unharmed,
)
from concurrent_loader.storage.testing.servers.local_s3 import LocalS3

__all__ = ["Exchange", "HttpFaults", "http_faults"]

_MAX_EXCHANGES = 100_000
_HANG_UP = struct.pack("ii", 1, 0)  # SO_LINGER with zero time: close() sends RST


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its response so far.

    Attributes:
        request: Request as it arrived.
        faults: Faults that took effect; a cut beyond the body's end does not.
        status: Status sent to the client; None without a response.
        num_bytes: Number of bytes of the body sent to the client.
    """

    request: Request
    faults: tuple[Fault, ...]
    status: int | None
    num_bytes: int


@dataclass(slots=True)
class _Record:
    """An exchange in progress, written only on the proxy's thread."""

    request: Request
    counts: Counter[str]
    faults: list[Fault] = field(default_factory=list)
    status: int | None = None
    num_bytes: int = 0

    def happened(self, *faults: Fault) -> None:
        self.faults.extend(faults)
        self.counts.update(type(fault).__name__ for fault in faults)


class HttpFaults:
    """A proxy in front of one server, created by `http_faults`.

    Thread-safety: Any thread may set `script`, and read all attributes.

    Attributes:
        script: Function that returns the faults of a request; may be replaced at any time.
        endpoint_url: URL to which clients connect instead of the server.
        upstream_url: URL of the server.

    Example:
        >>> from concurrent_loader.storage.testing import http_faults
        >>> with http_faults("http://127.0.0.1:9") as proxy:
        ...     proxy.num_requests
        0
    """

    def __init__(self, upstream_url: str, script: Script) -> None:
        parts = urlsplit(upstream_url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ConfigurationError("the proxy supports only http:// URLs", url=upstream_url)
        self.script = script
        self.upstream_url = upstream_url
        self.endpoint_url = ""
        self._upstream = Upstream(parts.hostname, parts.port or 80)
        self._records: deque[_Record] = deque(maxlen=_MAX_EXCHANGES)
        self._counts: Counter[str] = Counter()
        self._num_requests = 0
        self._num_connections = 0
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"HttpFaults({self.endpoint_url!r} -> {self.upstream_url!r})"

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Latest 100,000 exchanges, in order of arrival."""
        records = self._records.copy()
        return tuple(Exchange(one.request, tuple(one.faults), one.status, one.num_bytes) for one in records)

    @property
    def num_requests(self) -> int:
        """Number of requests so far."""
        return self._num_requests

    @property
    def counts(self) -> dict[str, int]:
        """Number of times that each fault took effect, by class name."""
        return dict(self._counts)

    def forget(self) -> None:
        """Clears `exchanges` and `counts`, for example after a test's preparations."""
        self._records.clear()
        self._counts.clear()

    # -- the server ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listens on a free loopback port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Client(self), "127.0.0.1", 0, backlog=1024)
        self.endpoint_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Stops listening, and resets open connections."""
        if self._server is not None:
            self._server.close()
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await self._upstream.close()
        if self._server is not None:
            await self._server.wait_closed()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> asyncio.Task[None]:
        """Starts to serve a client's connection; called by the protocol."""
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer, self._num_connections))
        self._num_connections += 1
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        return task

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        """Serves requests one after another until one side closes; task and connection end together."""
        try:
            keep = True
            while keep:
                head = RequestHead.parse(await reader.readuntil(b"\r\n\r\n"))
                keep = await self._answer(head, reader, writer, connection)
            writer.close()
        except (OSError, EOFError, asyncio.LimitOverrunError, ValueError):
            # The server or the client is gone, or the client does not speak HTTP: close the connection.
            _hang_up(writer)
        except BaseException:
            _hang_up(writer)
            raise

    async def _answer(
        self, head: RequestHead, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int
    ) -> bool:
        """Answers one request; returns whether the connection can serve another."""
        request = Request(
            self._num_requests, connection, head.method, head.path, head.query, head.range, head.if_match
        )  # fmt: skip
        self._num_requests += 1
        record = _Record(request, self._counts)
        self._records.append(record)
        faults = self.script(request)
        if head.expects_continue:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        for fault in faults:
            match fault:
                case Delay(delay_s):
                    record.happened(fault)
                    await asyncio.sleep(delay_s)
                case Silence(None):
                    record.happened(fault)
                    await asyncio.Event().wait()  # ends when the client hangs up
                case Reset(None):
                    record.happened(fault)
                    _hang_up(writer)
                    return False
                case Refuse():
                    record.happened(fault)
                    await reader.readexactly(head.num_body_bytes)
                    answer, body = error_document(fault)
                    record.status = answer.status
                    writer.write(answer.to_client(close=False) + (b"" if head.method == "HEAD" else body))
                    await writer.drain()
                    return True
                case _:
                    continue
        upstream = await self._upstream.ask(head, reader)
        try:
            keep = await _relay(upstream, faults, writer, record)
        except BaseException:
            upstream.connection[1].transport.abort()
            raise
        if keep is None:
            upstream.connection[1].transport.abort()
            return False
        self._upstream.give_back(upstream)
        return keep


class _Client(asyncio.StreamReaderProtocol):
    """A client's connection, whose serving task ends when the client hangs up."""

    def __init__(self, proxy: HttpFaults) -> None:
        self._proxy = proxy
        self._reader = asyncio.StreamReader(limit=LIMIT_BYTES)
        self._task: asyncio.Task[None] | None = None
        super().__init__(self._reader)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        loop = asyncio.get_running_loop()
        # The transports of a TCP server can read and write.
        writer = asyncio.StreamWriter(cast("asyncio.WriteTransport", transport), self, self._reader, loop)
        self._task = self._proxy.accept(self._reader, writer)

    def eof_received(self) -> bool:
        super().eof_received()
        self._end()
        return False  # HTTP clients never close only one direction

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._end()

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def _relay(
    upstream: UpstreamAnswer, faults: Sequence[Fault], writer: asyncio.StreamWriter, record: _Record
) -> bool | None:
    """Relays a response, with its faults.

    Returns:
        Whether the client's connection can serve another request; None if the response was cut, so that neither
        connection can be used again.
    """
    head, body, told = plan_answer(upstream.head, upstream.num_bytes, faults)
    record.happened(*told)
    flip, dribble, end, until = _plan_body(faults, len(body))
    lied = head.content_length is not None and head.content_length != len(body) and upstream.num_bytes > 0
    record.status = head.status
    pending = head.to_client(close=lied)
    if flip is not None or dribble is not None:
        record.happened(*(fault for fault in (flip, dribble) if fault is not None))
    async for piece in _pieces(upstream, body):
        clean = _flipped(piece, record.num_bytes, flip, len(body))
        if until is not None:
            clean = clean[: until - record.num_bytes]
        if dribble is None:
            record.num_bytes += len(clean)
            writer.write(pending + clean)
            await writer.drain()
        else:
            writer.write(pending)
            for start in range(0, len(clean), dribble.num_bytes):
                drop = clean[start : start + dribble.num_bytes]
                record.num_bytes += len(drop)
                writer.write(drop)
                await writer.drain()
                await asyncio.sleep(dribble.every_s)
        pending = b""
        if end is not None and record.num_bytes == until:
            record.happened(end)
            await _end(writer, end)
            return None
    if pending:
        writer.write(pending)
        await writer.drain()
    return not lied


def _plan_body(faults: Sequence[Fault], size: int) -> tuple[Flip | None, Dribble | None, Fault | None, int | None]:
    """Returns the faults of a body: inverted bytes, dribble, the fault that ends it, and its position."""
    flip = next((fault for fault in faults if isinstance(fault, Flip) and size), None)
    dribble = next((fault for fault in faults if isinstance(fault, Dribble) and size), None)
    for fault in faults:
        if isinstance(fault, Reset | Close | Silence) and fault.after_bytes is not None:
            until = fault.after_bytes if fault.after_bytes >= 0 else max(0, size + fault.after_bytes)
            if until < size:
                return flip, dribble, fault, until
    return flip, dribble, None, None


async def _pieces(upstream: UpstreamAnswer, body: Body) -> AsyncIterator[bytes]:
    for count in (body.before, None, body.after):
        if count is None:
            async for piece in upstream.pieces():
                yield piece
            continue
        while count:
            step = min(count, LIMIT_BYTES)
            count -= step
            yield bytes(step)


def _flipped(piece: bytes, position: int, flip: Flip | None, size: int) -> bytes:
    if flip is None:
        return piece
    places = [offset % size - position for offset in flip.offsets]
    if not any(0 <= place < len(piece) for place in places):
        return piece
    damaged = bytearray(piece)
    for place in places:
        if 0 <= place < len(piece):
            damaged[place] ^= 0xFF
    return bytes(damaged)


async def _end(writer: asyncio.StreamWriter, fault: Fault) -> None:
    match fault:
        case Reset():
            _hang_up(writer)
        case Silence():
            await asyncio.Event().wait()  # ends when the client hangs up
        case _:
            writer.close()


def _hang_up(writer: asyncio.StreamWriter) -> None:
    """Resets a connection, unless it is closed already."""
    connection = writer.get_extra_info("socket")
    if connection is not None and not writer.transport.is_closing():
        with suppress(OSError):  # the client closed it first
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _HANG_UP)
    writer.transport.abort()


@contextmanager
def http_faults(upstream: LocalS3 | str, script: Script = unharmed) -> Iterator[HttpFaults]:
    """Runs a faulty HTTP proxy in front of a server during the ``with`` block.

    The proxy has its own thread but shares the interpreter with the code under test. To measure time, use
    `http_faults_process`. `concurrent_loader.storage.testing.faults.wire_faults` has the faults and scripts.

    Args:
        upstream: Server, or its URL (http only).
        script: Function that returns the faults of a request, called on the proxy's thread; no faults by default.

    Raises:
        ConfigurationError: The URL is not an http URL.

    Example:
        >>> from concurrent_loader.storage.testing import http_faults, local_s3
        >>> with local_s3() as server, http_faults(server) as proxy:  # doctest: +SKIP
        ...     store = open_store("s3://bucket", **server.through(proxy).storage_options())
    """
    url = upstream.endpoint_url if isinstance(upstream, LocalS3) else upstream
    proxy = HttpFaults(url, script)
    with LoopThread(name="http-faults") as loop:
        loop.run(proxy.start())
        try:
            yield proxy
        finally:
            loop.run(proxy.stop())
