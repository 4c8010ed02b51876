"""Fetches one range: each attempt resumes where the last one broke off, until all bytes have arrived and match."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import xxhash

from concurrent_loader.storage.errors import (
    DeadlineExceeded,
    DigestMismatch,
    InvalidRange,
    ObjectChanged,
    ProtocolViolation,
    StorageError,
    StoreError,
)
from concurrent_loader.storage.fetch.deadlines import CallDeadline, StallWatch, attempt_timeout_s, for_size
from concurrent_loader.storage.fetch.request_sender import RequestSender
from concurrent_loader.storage.fetch.retry import RetryPolicy, call_with_retries, wants_new_connection
from concurrent_loader.storage.fetch.stats import Counters
from concurrent_loader.storage.span_recorder import active
from concurrent_loader.storage.stores.body_stream import PIECE_BYTES, OpenRange
from concurrent_loader.storage.stores.objects import ObjectMeta
from concurrent_loader.storage.stores.store import Store

__all__ = ["RangeRequest", "Transfer", "TransferContext", "Write"]

# Awaited with (position in the object, piece) for a range that arrives piece by piece.
Write = Callable[[int, memoryview], Awaitable[None]]

# A range of at most one piece gains nothing from streaming, so the first attempt uses the cheaper request.
_SMALL_BYTES = PIECE_BYTES
# Piece size after a body broke off, so that the next break loses at most this many bytes.
_CAREFUL_PIECE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """A range to fetch; see `FetchEngine.fetch`. Without ``end`` it is the whole object."""

    key: str
    start: int
    end: int | None
    if_match: str | None = None
    digest: int | None = None
    object_size: int | None = None


class TransferContext(Protocol):
    """The part of an engine that a transfer uses."""

    store: Store
    policy: RetryPolicy
    counters: Counters
    sender: RequestSender
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]

    async def enter(self, num_bytes: int, deadline: CallDeadline, deadline_s: float) -> int:
        """Waits for a place in flight, until the deadline."""

    def leave(self, place: int, num_bytes: int, *, received: int, answer_s: float) -> None:
        """Releases a place."""

    def delay_after(
        self,
        error: StorageError,
        policy: RetryPolicy,
        *,
        key: str | None,
        attempts: int,
        failures: int,
        elapsed_s: float,
    ) -> float:
        """Returns the seconds to pause after a failed attempt, or raises the error to give up."""

    def elapsed_s(self, deadline: CallDeadline) -> float:
        """Returns the seconds charged against a call's deadline."""

    def record_activity(self) -> None:
        """Records that the store has sent something."""


class Transfer:
    """Fetches one range, in as many attempts as needed.

    Args:
        context: Engine that runs the transfer.
        request: Range to fetch.
        write: Callback for the pieces; None to collect them in `data`.
        accept: Callback for the metadata of an object of unknown size, called once; it may raise.

    Attributes:
        data: All bytes, after `run`, unless ``write`` took them.
    """

    def __init__(
        self,
        context: TransferContext,
        request: RangeRequest,
        write: Write | None,
        accept: Callable[[ObjectMeta], None] | None = None,
    ) -> None:
        self._context = context
        self._request = request
        self._write = write
        self._accept = accept
        self._end = request.end
        self._position = request.start
        self._hash = xxhash.xxh3_64() if request.digest is not None else None
        self._meta: ObjectMeta | None = None
        self.data = memoryview(b"")
        self._policy = context.policy if request.end is None else for_size(context.policy, request.end - request.start)
        self._deadline = CallDeadline(context.clock())
        self._attempts = 0
        self._failures = 0
        self._attempt_start = self._position
        self._has_failed = False
        self._wrong_digest: int | None = None
        self._in_callback = False
        self._suspicion: StorageError | None = None
        self._store = context.store
        self._place = 0
        self._announced_bytes = 0

    async def run(self) -> ObjectMeta:
        """Fetches the range.

        Raises:
            StorageError: Error of the last attempt, with ``attempts`` filled in.
        """
        while True:
            meta = await call_with_retries(
                self._attempt, self._delay_after, sleep=self._context.sleep, admit=self._admit
            )
            if self._digest_matches():
                self._context.record_activity()
                return meta
            self._start_over()

    # -- one attempt -----------------------------------------------------------------------------------------------

    async def _admit(self) -> None:
        """Waits for a place in flight for the missing bytes."""
        context, request = self._context, self._request
        self._announced_bytes = 0 if self._end is None else self._end - self._position
        try:
            self._place = await context.enter(self._announced_bytes, self._deadline, self._policy.deadline_s)
        except DeadlineExceeded as error:
            error.start, error.end = request.start, self._end
            raise error.locate(url=context.store.url, key=request.key, attempts=self._attempts) from error.__cause__

    async def _attempt(self) -> ObjectMeta:
        """Fetches the missing bytes; succeeds if all bytes have arrived, even if the connection then broke."""
        context, num_bytes = self._context, self._announced_bytes
        self._attempts += 1
        began_s = context.clock()
        before = self._attempt_start = self._position
        if before > self._request.start:
            context.counters.num_resumed += 1
        try:
            try:
                # The first attempt at a small range is one cheap request. Later ones stream, to keep partial bodies.
                # An empty range cannot be streamed.
                if self._end is not None and (num_bytes == 0 or (num_bytes <= _SMALL_BYTES and not self._has_failed)):
                    await self._fetch_whole(num_bytes)
                else:
                    await self._fetch_stream(num_bytes)
            finally:
                answer_s = context.clock() - began_s
                received = self._position - before
                context.leave(self._place, num_bytes, received=received, answer_s=answer_s)
                if (recorder := active()) is not None:
                    key, attempt = self._request.key, self._attempts
                    recorder.add(
                        "request", key, began_s, began_s + answer_s, start=before, bytes=received, attempt=attempt
                    )
        except StorageError as error:
            if self._in_callback or not self._is_complete(error):
                raise
        assert self._meta is not None
        return self._meta

    async def _fetch_whole(self, num_bytes: int) -> None:
        request, store, start, end = self._request, self._store, self._position, self._end
        assert end is not None
        within_s = attempt_timeout_s(self._policy, num_bytes=num_bytes, elapsed_s=self._elapsed_s())
        result = await self._context.sender.get(
            lambda: store.get_range(request.key, start, end, if_match=request.if_match), within_s=within_s
        )
        self._check(result.meta)
        if self._write is None:
            self._count(result.data)
            self.data = result.data
        else:
            await self._deliver(result.data)

    async def _fetch_stream(self, num_bytes: int) -> None:
        request, store, start, end = self._request, self._store, self._position, self._end
        piece_bytes = _CAREFUL_PIECE_BYTES if self._has_failed else PIECE_BYTES
        if_match = request.if_match if self._meta is None else _strong(self._meta.etag) or request.if_match
        within_s = attempt_timeout_s(
            self._policy, num_bytes=0 if store.streams else num_bytes, elapsed_s=self._elapsed_s()
        )
        opened = await self._context.sender.open_stream(
            lambda: store.open_range(request.key, start, end, if_match=if_match, piece_bytes=piece_bytes),
            within_s=within_s,
        )
        async with aclosing(opened):
            self._check(opened.meta)
            if self._end is None:
                if self._accept is not None:
                    self._in_callback = True  # errors of the callback are not failures of the store
                    self._accept(opened.meta)
                    self._in_callback = False
                self._end = opened.end
                self._policy = for_size(self._policy, opened.end)
            if self._write is None and start == request.start:
                # numpy neither clears new memory nor touches it in small pages: an 8 MiB range costs half the
                # processor time of a bytearray.
                self.data = self._memory(self._end - start)
            watch = StallWatch(self._policy, piece_bytes=piece_bytes)
            while (piece := await self._next(opened, watch, piece_bytes)) is not None:
                await self._deliver(piece)

    def _memory(self, num_bytes: int) -> memoryview:
        try:
            return np.empty(num_bytes, np.uint8).data
        except MemoryError as error:
            raise StoreError("a range does not fit into memory", got=f"{num_bytes} bytes") from error

    async def _next(self, opened: OpenRange, watch: StallWatch, piece_bytes: int) -> memoryview | None:
        began_s = self._context.clock()
        within_s = min(watch.allowed_s, max(0.0, self._policy.deadline_s - self._elapsed_s()))
        try:
            async with asyncio.timeout(within_s):
                if self._write is None:
                    offset = self._position - self._request.start
                    piece = await opened.next_into(self.data[offset : offset + piece_bytes])
                else:
                    piece = await anext(opened, None)
        except TimeoutError as error:
            raise DeadlineExceeded(f"the body stalled: no piece of it arrived within {within_s:.3g} s") from error
        if piece is not None:
            watch.count(self._context.clock() - began_s, len(piece))
        return piece

    async def _deliver(self, piece: memoryview) -> None:
        """Passes a piece on; errors of the callback are not failures of the store."""
        position = self._position
        self._count(piece)
        if self._write is None:
            if piece.obj is not self.data.obj:  # otherwise the store received the piece in its place
                offset = position - self._request.start
                self.data[offset : offset + len(piece)] = piece
            return
        self._in_callback = True
        await self._write(position, piece)
        self._in_callback = False

    def _count(self, piece: memoryview) -> None:
        if self._hash is not None:
            self._hash.update(piece)
        self._position += len(piece)
        self._context.counters.num_bytes += len(piece)
        self._context.counters.meter.add(self._context.clock(), len(piece))
        self._context.record_activity()

    def _check(self, meta: ObjectMeta) -> None:
        """Checks that all pieces belong to one object, of the expected size."""
        wanted, known = self._request.object_size, self._meta
        if wanted is not None and meta.size != wanted:
            raise self._suspect("the object was replaced: its size differs", wanted, meta.size)
        if known is None:
            self._meta = meta
        elif known.etag != meta.etag:
            raise self._replaced("the object was replaced while it was read", known.etag, meta.etag)
        elif known.size != meta.size:
            raise self._suspect("the object was replaced while it was read", known.size, meta.size)
        self._suspicion = None

    # -- between attempts ------------------------------------------------------------------------------------------

    def _elapsed_s(self) -> float:
        return self._context.elapsed_s(self._deadline)

    def _delay_after(self, error: StorageError) -> float:
        """Returns the seconds to pause after a failed attempt, or raises to give up."""
        context, request = self._context, self._request
        if self._in_callback:
            raise error
        if isinstance(error, InvalidRange) and request.object_size is not None:
            what = "the object was replaced: its size differs"
            suspicion = self._suspect(what, request.object_size, error.got)
            suspicion.__cause__, error = error, suspicion
        self._failures = 0 if self._position > self._attempt_start else self._failures + 1
        self._has_failed = True
        error.start, error.end = request.start, self._end  # the requested range, not its missing part
        delay_s = context.delay_after(
            error, self._policy, key=request.key, attempts=self._attempts, failures=self._failures,
            elapsed_s=self._elapsed_s(),
        )  # fmt: skip
        self._store = context.store.on_fresh_connections() if wants_new_connection(error) else context.store
        return delay_s

    def _is_complete(self, error: StorageError) -> bool:
        """Returns whether all bytes arrived before the attempt failed: the connection broke after the last byte."""
        if self._meta is None or self._position != self._end:
            return False
        if isinstance(error, ProtocolViolation) and self._hash is None:
            # The body continues beyond its end, and no digest shows whether the bytes so far are right.
            self._position = self._request.start
            return False
        return True

    def _digest_matches(self) -> bool:
        return self._hash is None or self._hash.intdigest() == self._request.digest

    def _start_over(self) -> None:
        """Starts again over a new connection, after a digest mismatch; a second mismatch is an error."""
        request, counters = self._request, self._context.counters
        assert self._hash is not None
        counters.wasted_bytes += self._position - request.start
        got = self._hash.intdigest()
        if self._wrong_digest is not None:
            raise self._mismatch(got, is_steady=got == self._wrong_digest)
        counters.num_refetched += 1
        self._wrong_digest = got
        self._hash.reset()
        self._position = request.start
        self._failures = 0
        self._has_failed = False
        self._store = self._context.store.on_fresh_connections()

    def _mismatch(self, got: int, *, is_steady: bool) -> DigestMismatch:
        """Returns the error; the same wrong bytes over two connections mean that the object itself is damaged."""
        modified = None if self._meta is None else self._meta.last_modified
        since = f", last written {modified.isoformat()}" if is_steady and modified is not None else ""
        error = DigestMismatch(
            f"the bytes differ from what the manifest pins, {'both times alike' if is_steady else 'fetched twice'}",
            url=self._context.store.url, key=self._request.key, start=self._request.start, end=self._end,
            expected=f"{self._request.digest:016x}", got=f"{got:016x}{since}", attempts=self._attempts,
        )  # fmt: skip
        error.is_steady = is_steady
        return error

    def _suspect(self, what: str, expected: object, got: object) -> StorageError:
        """Returns the error for a response that names another object.

        The first such response counts as a faulty response and is retried over a new connection, as after any
        `ProtocolViolation`. Two in a row mean that the object was replaced.
        """
        error = self._replaced(what, expected, got)
        if self._suspicion is not None:
            return error
        self._suspicion = error
        return ProtocolViolation(what, expected=expected, got=got)

    def _replaced(self, what: str, expected: object, got: object) -> ObjectChanged:
        return ObjectChanged(
            what, url=self._context.store.url, key=self._request.key, start=self._request.start, end=self._end,
            expected=expected, got=got, attempts=self._attempts,
        )  # fmt: skip


def _strong(etag: str | None) -> str | None:
    """Returns an ETag for If-Match; None for a weak ETag, which never matches (RFC 9110, 13.1.1)."""
    return None if etag is None or etag.startswith("W/") else etag
