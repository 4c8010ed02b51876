"""Pools the connections to one server: bounded in number, reused, and without redirects."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from concurrent_loader.storage.errors import (
    ConfigurationError,
    DeadlineExceeded,
    StoreClosed,
)
from concurrent_loader.storage.stores.connection_errors import connection_error
from concurrent_loader.storage.stores.http.connection import HttpConnection
from concurrent_loader.storage.stores.http.response import HttpResponse

__all__ = ["HttpPool"]


class HttpPool:
    """Pool of connections to one server, for one event loop.

    Args:
        url: Any URL of the server.
        tls: Coroutine function that returns the SSL context for ``https://``.
        connect_s: Timeout for a new connection, in seconds.
        max_connections: Maximum number of connections, including idle ones. Further requests wait in FIFO order.
        keep_alive: Whether to reuse connections.
    """

    def __init__(
        self,
        url: str,
        *,
        tls: Callable[[], Awaitable[ssl.SSLContext]],
        connect_s: float,
        max_connections: int,
        keep_alive: bool = True,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._url = url
        self._tls = tls
        self._connect_s = connect_s
        self._keep_alive = keep_alive
        self._is_closed = False
        self._num_free_slots = max_connections
        self._idle: list[HttpConnection] = []
        self._waiting: deque[asyncio.Future[HttpConnection | None]] = deque()
        self._connections: set[HttpConnection] = set()

    async def send(
        self,
        head: Callable[[], bytes],
        body: memoryview | None = None,
        *,
        expect_continue: bool = False,
        no_body: bool = False,
        idempotent: bool = True,
    ) -> HttpResponse:
        """Sends a request and returns the response once its head has arrived.

        Args:
            head: Function that returns the request's head. It is called once a connection is available. Its result may
                hold a session token and is never stored in a variable.
            body: Body of the request, if any.
            expect_continue: Whether the head has ``Expect: 100-continue``.
            no_body: Whether the response has no body, as for HEAD.
            idempotent: Whether the request may be sent twice. A server may have closed an idle connection, which only
                the next request shows; an idempotent request is then sent again over a new connection. A request
                that is not idempotent always uses a new connection.

        Raises:
            ConfigurationError: The host name in the URL is invalid.
            ConnectionFailed: No connection could be made, or it ended before the response.
            DeadlineExceeded: Connecting took longer than ``connect_s``, or the server was silent for 120 s.
            ProtocolViolation: The response is not valid HTTP.

        Cancellation: Closes the connection.
        """
        try:
            connection, was_kept = await self._acquire(fresh=not idempotent)
            try:
                return await self._exchange(connection, head, body, expect_continue, no_body)
            except (OSError, EOFError):
                if not was_kept or connection.num_buffered:
                    raise
            connection, _ = await self._acquire(fresh=True)
            return await self._exchange(connection, head, body, expect_continue, no_body)
        except (OSError, EOFError) as error:
            raise connection_error(error, server=self._url) from error

    async def close(self) -> None:
        """Closes all connections, including those in use."""
        if asyncio.get_running_loop() is not self.loop:
            if self.loop.is_running():
                self.loop.call_soon_threadsafe(self.abandon)
            else:
                self.abandon()
            return
        lost = [connection.lost for connection in self._connections]
        self.abandon()
        if lost:
            await asyncio.wait(lost)

    def abandon(self) -> None:
        """Drops all connections without waiting. The event loop may be closed."""
        self._is_closed = True
        for connection in list(self._connections):
            with contextlib.suppress(RuntimeError):  # the loop is closed
                connection.abort()

    async def _exchange(
        self,
        connection: HttpConnection,
        head: Callable[[], bytes],
        body: memoryview | None,
        expect_continue: bool,
        no_body: bool,
    ) -> HttpResponse:
        try:
            is_sent = await connection.send(head, body, expect_continue=expect_continue)
            found = await connection.read_head()
        except BaseException:
            self._release(connection, keep=False)
            raise
        if not is_sent:
            found = found._replace(keep_alive=False)
        return HttpResponse(found, connection, self._release, no_body=no_body)

    # -- slots -----------------------------------------------------------------------------------------------------

    async def _acquire(self, *, fresh: bool) -> tuple[HttpConnection, bool]:
        """Returns a connection, and whether it was reused."""
        while self._idle and not fresh:
            connection = self._idle.pop()
            if connection.is_idle:
                return connection, True
            self._drop(connection)
        if self._num_free_slots == 0 and self._idle:
            self._drop(self._idle.pop(0))
        if self._num_free_slots > 0:
            self._num_free_slots -= 1
        else:
            waiter: asyncio.Future[HttpConnection | None] = self.loop.create_future()
            self._waiting.append(waiter)
            try:
                handed = await waiter
            except asyncio.CancelledError:
                if waiter.cancelled():
                    with contextlib.suppress(ValueError):
                        self._waiting.remove(waiter)
                else:
                    self._pass_on(waiter.result())
                raise
            if handed is not None:
                if handed.is_idle and not fresh:
                    return handed, True
                handed.abort()
        try:
            return await self._connect(), False
        except BaseException:
            self._pass_on(None)
            raise

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosed("this store is closed; open it again")

    async def _connect(self) -> HttpConnection:
        self._check_open()
        parts = urlsplit(self._url)
        tls = await self._tls() if parts.scheme == "https" else None
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await self.loop.create_connection(
                    lambda: HttpConnection(self._lost),
                    str(parts.hostname),
                    parts.port or (80 if tls is None else 443),
                    ssl=tls,
                )
        except UnicodeError as error:  # a label is empty or longer than 63 characters
            raise ConfigurationError("the host name is invalid", got=parts.hostname) from error
        except TimeoutError as error:
            raise DeadlineExceeded(f"no connection within {self._connect_s:.3g} s") from error
        try:
            self._check_open()
        except StoreClosed:
            connection.abort()
            raise
        if not connection.has_ended:
            self._connections.add(connection)
        return connection

    def _release(self, connection: HttpConnection, keep: bool) -> None:
        """Returns a connection to the pool, or closes it."""
        if keep and self._keep_alive and connection.is_idle:
            connection.rest()
            self._pass_on(connection)
        else:
            self._drop(connection)

    def _drop(self, connection: HttpConnection) -> None:
        connection.abort()
        self._pass_on(None)

    def _pass_on(self, connection: HttpConnection | None) -> None:
        """Passes a connection, or its free slot, to the next waiting request."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        if connection is None:
            self._num_free_slots += 1
        else:
            self._idle.append(connection)

    def _lost(self, connection: HttpConnection) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
            self._num_free_slots += 1
