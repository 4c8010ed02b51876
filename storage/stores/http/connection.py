"""One HTTP/1.1 connection, which receives bodies directly into their destination.

asyncio's streams collect a body in a growing buffer and copy it out again. An `asyncio.BufferedProtocol` chooses the
memory for the next bytes, which saves that copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from concurrent_loader.storage.errors import DeadlineExceeded, ProtocolViolation
from concurrent_loader.storage.stores.http.head import MAX_HEAD_BYTES, ResponseHead, parse_head

__all__ = ["HttpConnection"]

# Limit between two arrivals of bytes, for callers without a deadline. `concurrent_loader.storage.fetch` is stricter.
_SILENCE_TIMEOUT_S = 120.0
# Time to wait for "100 Continue". A server that does not support it never sends one.
_CONTINUE_TIMEOUT_S = 1.0
_MAX_INTERIM = 8  # 1xx responses before the final one
_WRITE_BYTES = 256 << 10
_JOIN_BYTES = 64 << 10  # largest body that is sent together with its head, in one system call
_INTERIM = b"HTTP/1.1 1"


class HttpConnection(asyncio.BufferedProtocol):
    """Connection that is used by one task at a time.

    Bytes are received into a buffer of `MAX_HEAD_BYTES`, or into the memory passed to `read_into`. When both are
    full, reading pauses, and the server has to wait.

    Args:
        on_lost: Callback that receives the connection when it has ended.
    """

    def __init__(self, on_lost: Callable[[HttpConnection], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(MAX_HEAD_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0  # offset of the first unread byte in the buffer
        self._filled = 0
        self._sink: memoryview | None = None
        self._sink_filled = 0
        self._pauses = False
        self._is_paused = False
        self._is_write_paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_activity_s = 0.0
        self._has_ended = False
        self._error: BaseException | None = None
        self.lost = self._loop.create_future()
        """Done when the connection has ended."""

    # -- for asyncio -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the memory for the next bytes."""
        if self._sink is not None:
            return self._sink[self._sink_filled :]
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Counts received bytes, and wakes the task once it can continue."""
        self._last_activity_s = self._loop.time()
        if self._sink is None:
            self._filled += nbytes
            if self._filled == MAX_HEAD_BYTES:
                self._pause()
        else:
            self._sink_filled += nbytes
            if self._sink_filled < len(self._sink):
                return
            self._sink = None
            if self._pauses:
                self._pause()
        self._wake()

    def eof_received(self) -> None:
        """Ends the connection; received bytes remain readable."""
        self._has_ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the connection."""
        self._has_ended = True
        self._error = self._error or exc
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.lost.done():
            self.lost.set_result(None)
        self._on_lost(self)
        self._wake()

    def pause_writing(self) -> None:
        """Makes the task wait until buffered bytes were sent."""
        self._is_write_paused = True

    def resume_writing(self) -> None:
        """Lets the task continue to write."""
        self._is_write_paused = False
        self._last_activity_s = self._loop.time()
        self._wake()

    # -- for the task that uses the connection ---------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether the next request can be sent: the connection is open, and no unsolicited bytes arrived."""
        return not self._has_ended and self._start == self._filled

    @property
    def has_ended(self) -> bool:
        """Whether no more bytes will come."""
        return self._has_ended

    @property
    def num_buffered(self) -> int:
        """Number of received bytes that were not read yet."""
        return self._filled - self._start

    def rest(self) -> None:
        """Resumes reading without a task, so that the end of an idle connection is noticed."""
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """Closes the connection at once. Idempotent."""
        self._has_ended = True
        if self._transport is not None:
            self._transport.abort()

    async def send(self, head: Callable[[], bytes], body: memoryview | None, *, expect_continue: bool) -> bool:
        """Sends a request.

        Args:
            head: Function that returns the request's head. The head may hold a session token and is never stored in a
                variable.
            body: Body of the request, if any.
            expect_continue: Whether the head has ``Expect: 100-continue``.

        Returns:
            Whether the whole body was sent; False if the response arrived first.

        Raises:
            OSError, EOFError: The connection ended.
        """
        transport = self._open_transport()
        if body is None or (len(body) <= _JOIN_BYTES and not expect_continue):
            transport.write(head() if body is None else b"".join((head(), body)))
            return True
        transport.write(head())
        if expect_continue and await self._has_early_response(_CONTINUE_TIMEOUT_S):
            return False
        for start in range(0, len(body), _WRITE_BYTES):
            if await self._has_early_response(None):
                return False
            self._open_transport().write(body[start : start + _WRITE_BYTES])
        return True

    async def read_head(self) -> ResponseHead:
        """Reads the head of the response; skips 1xx responses.

        Raises:
            OSError, EOFError: The connection ended first.
            ProtocolViolation: The head is not valid HTTP, or is longer than `MAX_HEAD_BYTES`.
            DeadlineExceeded: The server was silent for 120 s.
        """
        for _ in range(_MAX_INTERIM):
            head = parse_head(await self._read_until(b"\r\n\r\n"))
            if head.status >= 200:
                return head
            if head.status == 101:
                break
        raise ProtocolViolation("the server sent too many 1xx responses, or switched protocols", got=head.status)

    async def read_line(self) -> bytes:
        """Reads a line that ends with CR LF; raises the same errors as `read_head`."""
        return await self._read_until(b"\r\n")

    def take(self, num_bytes: int) -> bytes:
        """Removes and returns buffered bytes."""
        data = bytes(self._view[self._start : self._start + num_bytes])
        self._consume(num_bytes)
        return data

    async def read_some(self) -> bytes:
        """Returns the next received bytes, as soon as there are any; no bytes at the end of the connection.

        Raises:
            OSError: The connection broke.
            DeadlineExceeded: The server was silent for 120 s.
        """
        while self._start == self._filled and not self._has_ended:
            await self._wait()
        if self._start == self._filled and self._error is not None:
            raise self._error
        return self.take(self.num_buffered)

    async def read_into(self, view: memoryview, *, pauses: bool = False) -> int:
        """Fills ``view`` with the next bytes.

        Args:
            view: Memory for the next bytes.
            pauses: Whether reading pauses after the view is full, until the next call.

        Returns:
            Number of bytes received; fewer than the view holds if the connection ended.

        Raises:
            DeadlineExceeded: The server was silent for 120 s.
        """
        num_ready = min(self.num_buffered, len(view))
        view[:num_ready] = self._view[self._start : self._start + num_ready]
        self._consume(num_ready)
        if num_ready == len(view):
            return num_ready
        self._sink, self._sink_filled, self._pauses = view, num_ready, pauses
        try:
            while self._sink is not None and not self._has_ended:
                await self._wait()
        finally:
            self._sink = None
        return self._sink_filled

    # -- internal--------------------------------------------------------------------------------------------------

    def _open_transport(self) -> asyncio.Transport:
        if self._has_ended or self._transport is None:
            raise self._error or EOFError
        return self._transport

    async def _has_early_response(self, within_s: float | None) -> bool:
        """Waits until more of the body may be sent. Returns whether a final response has begun; skips 1xx responses.

        Args:
            within_s: Time to wait for ``100 Continue``, in seconds; None to wait for room in the send buffer.
        """
        is_asked = within_s is None
        late = self._loop.call_later(within_s, self._wake) if within_s is not None else None
        try:
            while True:
                begun = bytes(self._view[self._start : self._filled][: len(_INTERIM)])
                if begun == _INTERIM:
                    await self._read_until(b"\r\n\r\n")
                    is_asked = True
                elif begun and (self._has_ended or not _INTERIM.startswith(begun)):
                    return True
                elif self._has_ended:
                    raise self._error or EOFError
                elif begun or not is_asked or self._is_write_paused:
                    await self._wait()
                    is_asked = is_asked or self.num_buffered == 0  # the wait is over
                else:
                    return False
        finally:
            if late is not None:
                late.cancel()

    async def _read_until(self, end: bytes) -> bytes:
        searched = self._start
        while (found := self._buffer.find(end, searched, self._filled)) < 0:
            searched = max(self._start, self._filled - len(end) + 1)
            if self._has_ended:
                raise self._error or EOFError
            if self._filled == MAX_HEAD_BYTES:
                if self._start == 0:
                    raise ProtocolViolation("the response's head is too long", expected=MAX_HEAD_BYTES)
                self._buffer[: self.num_buffered] = bytes(self._view[self._start : self._filled])
                searched -= self._start
                self._start, self._filled = 0, self.num_buffered
            await self._wait()
        return self.take(found + len(end) - self._start)

    def _consume(self, num_bytes: int) -> None:
        self._start += num_bytes
        if self._start == self._filled:
            self._start = self._filled = 0

    async def _wait(self) -> None:
        """Waits for the next event on the connection."""
        if self._sink is not None or self._filled < MAX_HEAD_BYTES:
            self.rest()
        self._last_activity_s = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(_SILENCE_TIMEOUT_S, self._check_silence)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _check_silence(self) -> None:
        """Ends a wait without activity. One timer serves all waits; rescheduling it is cheaper than cancelling."""
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        left_s = self._last_activity_s + _SILENCE_TIMEOUT_S - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._check_silence)
        else:
            self._waiter.set_exception(DeadlineExceeded("the store did not answer in time"))

    def _pause(self) -> None:
        if not self._is_paused and not self._has_ended and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
