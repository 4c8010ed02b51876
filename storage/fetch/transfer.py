"""One range on its way: attempts that go on where the last one broke off, until all bytes are there and right."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import xxhash

from storage.errors import (
    DeadlineExceeded,
    DigestMismatch,
    InvalidRange,
    ObjectChanged,
    ProtocolViolation,
    StorageError,
    StoreError,
    Throttled,
)
from storage.fetch.asking import Asker
from storage.fetch.deadlines import Age, StallWatch, attempt_timeout_s, for_size
from storage.fetch.retry import RetryPolicy, wants_new_connection
from storage.fetch.stats import Counters
from storage.secrets import presentable
from storage.stores.pieces import PIECE_BYTES, OpenRange
from storage.stores.protocol import ObjectMeta, Store

__all__ = ["Lane", "Transfer", "Wish", "Write"]

# Takes (position in the object, piece) of a range that arrives piece by piece.
Write = Callable[[int, memoryview], Awaitable[None]]

# What is no larger comes as one piece in any case, so the cheaper request will do: at first.
_SMALL_BYTES = PIECE_BYTES
# After a body broke off: what comes before it breaks again is lost up to this much only.
_CAREFUL_PIECE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wanted; see `FetchEngine.fetch`. Without ``end`` it is the whole object, however long."""

    key: str
    start: int
    end: int | None
    if_match: str | None = None
    digest: int | None = None
    object_size: int | None = None


class Lane(Protocol):
    """What a transfer needs of its engine."""

    store: Store
    policy: RetryPolicy
    counters: Counters
    asker: Asker
    clock: Callable[[], float]

    async def enter(self, num_bytes: int, age: Age, deadline_s: float) -> int:
        """Waits for a place in flight, until the deadline."""

    def leave(self, place: int, num_bytes: int, *, received: int, answer_s: float) -> None:
        """Gives it back."""

    def delay_s(self, error: StorageError, policy: RetryPolicy, *, failures: int, elapsed_s: float) -> float | None:
        """Seconds to pause after a failed attempt, or None to give up; counts it."""

    def elapsed_s(self, age: Age) -> float:
        """How much of its deadline a range has used up."""

    def heard(self) -> None:
        """Something has come from the store."""

    async def pause(self, seconds: float) -> None:
        """Waits."""


class Transfer:
    """Brings one range, in attempts.

    Args:
        lane: The engine.
        wish: What.
        write: Takes the pieces; None to keep them in `data`.
        accept: Told once what an object is whose end is not known; it may raise.

    Attributes:
        data: All bytes, after `run`, if nobody took them.
    """

    def __init__(
        self, lane: Lane, wish: Wish, write: Write | None, accept: Callable[[ObjectMeta], None] | None = None
    ) -> None:
        self._lane = lane
        self._wish = wish
        self._write = write
        self._accept = accept
        self._end = wish.end
        self._position = wish.start
        self._hash = xxhash.xxh3_64() if wish.digest is not None else None
        self._meta: ObjectMeta | None = None
        self.data = memoryview(b"")
        self._policy = lane.policy if wish.end is None else for_size(lane.policy, wish.end - wish.start)
        self._age = Age(lane.clock())
        self._attempts = 0
        self._failures = 0
        self._has_failed = False
        self._wrong_digest: int | None = None
        self._is_taking = False
        self._doubted: StorageError | None = None
        self._store = lane.store

    async def run(self) -> ObjectMeta:
        """Brings it.

        Raises:
            StorageError: The last attempt's, with ``attempts`` filled in.
        """
        while True:
            place, num_bytes = await self._enter()
            before = self._position
            self._attempts += 1
            try:
                await self._attempt(place, num_bytes)
            except StorageError as error:
                if self._is_taking:
                    raise
                if not self._is_complete(error):
                    await self._lane.pause(self._after(error, is_progress=self._position > before))
                    continue
            if self._is_right():
                assert self._meta is not None
                self._lane.heard()
                return self._meta
            self._start_over()

    # -- one attempt -----------------------------------------------------------------------------------------------

    async def _enter(self) -> tuple[int, int]:
        """Waits for a place in flight; returns it, and how many bytes it is for."""
        lane, wish = self._lane, self._wish
        num_bytes = 0 if self._end is None else self._end - self._position
        try:
            return await lane.enter(num_bytes, self._age, self._policy.deadline_s), num_bytes
        except DeadlineExceeded as error:
            error.start, error.end = wish.start, self._end
            raise error.locate(url=lane.store.url, key=wish.key, attempts=self._attempts) from error.__cause__

    async def _attempt(self, place: int, num_bytes: int) -> None:
        lane = self._lane
        began_s = lane.clock()
        before = self._position
        if before > self._wish.start:
            lane.counters.num_resumed += 1
        try:
            # The first attempt at little is one cheap request. A further one is a stream: it keeps what it gets.
            if self._end is not None and num_bytes <= _SMALL_BYTES and not self._has_failed:
                await self._at_once(num_bytes)
            else:
                await self._piece_by_piece(num_bytes)
        finally:
            answer_s = lane.clock() - began_s
            lane.leave(place, num_bytes, received=self._position - before, answer_s=answer_s)

    async def _at_once(self, num_bytes: int) -> None:
        wish, store, start, end = self._wish, self._store, self._position, self._end
        assert end is not None
        within_s = attempt_timeout_s(self._policy, num_bytes=num_bytes, elapsed_s=self._elapsed_s())
        result = await self._lane.asker.whole(
            lambda: store.get_range(wish.key, start, end, if_match=wish.if_match), within_s=within_s
        )
        self._check(result.meta)
        if self._write is None:
            self._count(result.data)
            self.data = result.data
        else:
            await self._take(result.data)

    async def _piece_by_piece(self, num_bytes: int) -> None:
        wish, store, start, end = self._wish, self._store, self._position, self._end
        piece_bytes = _CAREFUL_PIECE_BYTES if self._has_failed else PIECE_BYTES
        if_match = wish.if_match if self._meta is None else _strong(self._meta.etag) or wish.if_match
        within_s = attempt_timeout_s(
            self._policy, num_bytes=0 if store.streams else num_bytes, elapsed_s=self._elapsed_s()
        )
        opened = await self._lane.asker.opened(
            lambda: store.open_range(wish.key, start, end, if_match=if_match, piece_bytes=piece_bytes),
            within_s=within_s,
        )
        async with aclosing(opened):
            self._check(opened.meta)
            if self._end is None:
                if self._accept is not None:
                    self._is_taking = True  # what it raises is not the store's failure
                    self._accept(opened.meta)
                    self._is_taking = False
                self._end = opened.end
                self._policy = for_size(self._policy, opened.end)
            if self._write is None and start == wish.start:
                # numpy's memory is neither cleared first nor touched in small pages: 8 MiB ranges cost
                # half the processor time that they cost in a bytearray.
                self.data = self._memory(self._end - start)
            watch = StallWatch(self._policy, piece_bytes=piece_bytes)
            while (piece := await self._next(opened, watch)) is not None:
                await self._take(piece)

    def _memory(self, num_bytes: int) -> memoryview:
        try:
            return np.empty(num_bytes, np.uint8).data
        except MemoryError as error:
            raise StoreError("a range does not fit into memory", got=f"{num_bytes} bytes") from error

    async def _next(self, opened: OpenRange, watch: StallWatch) -> memoryview | None:
        began_s = self._lane.clock()
        within_s = min(watch.allowed_s, max(0.0, self._policy.deadline_s - self._elapsed_s()))
        try:
            async with asyncio.timeout(within_s):
                piece = await anext(opened, None)
        except TimeoutError as error:
            raise DeadlineExceeded(f"the body stalled: no piece of it within {within_s:.3g} s") from error
        if piece is not None:
            watch.count(self._lane.clock() - began_s, len(piece))
        return piece

    async def _take(self, piece: memoryview) -> None:
        """Hands a piece on; what the taker raises is not the store's failure."""
        position = self._position
        self._count(piece)
        if self._write is None:
            offset = position - self._wish.start
            self.data[offset : offset + len(piece)] = piece
            return
        self._is_taking = True
        await self._write(position, piece)
        self._is_taking = False

    def _count(self, piece: memoryview) -> None:
        if self._hash is not None:
            self._hash.update(piece)
        self._position += len(piece)
        self._lane.counters.num_bytes += len(piece)
        self._lane.counters.meter.add(self._lane.clock(), len(piece))
        self._lane.heard()

    def _check(self, meta: ObjectMeta) -> None:
        """Makes sure that all pieces are of one object, and that of the size that the caller knows."""
        wanted, known = self._wish.object_size, self._meta
        if wanted is not None and meta.size != wanted:
            raise self._doubt("the object was replaced: its size differs", wanted, meta.size)
        if known is None:
            self._meta = meta
        elif known.etag != meta.etag:
            raise self._replaced("the object was replaced while it was read", known.etag, meta.etag)
        elif known.size != meta.size:
            raise self._doubt("the object was replaced while it was read", known.size, meta.size)
        self._doubted = None

    # -- between attempts ------------------------------------------------------------------------------------------

    def _elapsed_s(self) -> float:
        return self._lane.elapsed_s(self._age)

    def _after(self, error: StorageError, *, is_progress: bool) -> float:
        """Decides after a failed attempt: returns the pause, or raises."""
        lane, wish = self._lane, self._wish
        if isinstance(error, InvalidRange) and wish.object_size is not None:
            what = "the object was replaced: its size differs"
            doubt = self._doubt(what, wish.object_size, error.got)
            doubt.__cause__, error = error, doubt
        self._failures = 0 if is_progress else self._failures + 1
        self._has_failed = True
        if isinstance(error, Throttled):
            lane.counters.num_throttled += 1
        delay_s = lane.delay_s(error, self._policy, failures=self._failures, elapsed_s=self._elapsed_s())
        if delay_s is None:
            # The range that was asked for, not the part of it that was still missing.
            error.start, error.end = wish.start, self._end
            presentable(error)  # a deadline of ours has below it what the client was doing when it was cut off
            raise error.locate(url=lane.store.url, key=wish.key, attempts=self._attempts) from error.__cause__
        lane.counters.num_retries += 1
        self._store = lane.store.on_fresh_connections() if wants_new_connection(error) else lane.store
        return delay_s

    def _is_complete(self, error: StorageError) -> bool:
        """Whether nothing is missing although the attempt failed: the connection broke behind the last byte."""
        if self._meta is None or self._position != self._end:
            return False
        if isinstance(error, ProtocolViolation) and self._hash is None:
            # The body goes on behind its end, and nothing says that what came of it is right.
            self._position = self._wish.start
            return False
        return True

    def _is_right(self) -> bool:
        return self._hash is None or self._hash.intdigest() == self._wish.digest

    def _start_over(self) -> None:
        """Wrong bytes: once more from the start, over a new connection; the second time it is an error."""
        wish, counters = self._wish, self._lane.counters
        assert self._hash is not None
        counters.wasted_bytes += self._position - wish.start
        got = self._hash.intdigest()
        if self._wrong_digest is not None:
            raise self._mismatch(got, is_steady=got == self._wrong_digest)
        counters.num_refetched += 1
        self._wrong_digest = got
        self._hash.reset()
        self._position = wish.start
        self._failures = 0
        self._has_failed = False
        self._store = self._lane.store.on_fresh_connections()

    def _mismatch(self, got: int, *, is_steady: bool) -> DigestMismatch:
        """Two connections that damage bytes in the same way are no accident: the object is like that."""
        modified = None if self._meta is None else self._meta.last_modified
        since = f", last written {modified.isoformat()}" if is_steady and modified is not None else ""
        error = DigestMismatch(
            f"the bytes are not those that the manifest pins, {'twice the same' if is_steady else 'fetched twice'}",
            url=self._lane.store.url, key=self._wish.key, start=self._wish.start, end=self._end,
            expected=f"{self._wish.digest:016x}", got=f"{got:016x}{since}", attempts=self._attempts,
        )  # fmt: skip
        error.is_steady = is_steady
        return error

    def _doubt(self, what: str, expected: object, got: object) -> StorageError:
        """Returns what an answer that names another object means: once a fault of that answer, twice in a row a fact.

        What is asked again goes over a new connection, like after any `ProtocolViolation`.
        """
        error = self._replaced(what, expected, got)
        if self._doubted is not None:
            return error
        self._doubted = error
        return ProtocolViolation(what, expected=expected, got=got)

    def _replaced(self, what: str, expected: object, got: object) -> ObjectChanged:
        return ObjectChanged(
            what, url=self._lane.store.url, key=self._wish.key, start=self._wish.start, end=self._end,
            expected=expected, got=got, attempts=self._attempts,
        )  # fmt: skip


def _strong(etag: str | None) -> str | None:
    """An ETag that If-Match can name: a weak one never matches (RFC 9110, 13.1.1)."""
    return None if etag is None or etag.startswith("W/") else etag
