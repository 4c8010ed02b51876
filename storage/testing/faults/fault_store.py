"""A store that fails on purpose, by script or at random; it wraps any other store."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from concurrent_loader.storage.errors import ConnectionFailed, ServerError, StorageError, Throttled, TruncatedBody
from concurrent_loader.storage.stores.body_stream import PIECE_BYTES, OpenRange, Pieces
from concurrent_loader.storage.stores.objects import GetResult, ObjectMeta, check_etag
from concurrent_loader.storage.stores.store import Store

__all__ = [
    "Call",
    "ChangeEtag",
    "Cut",
    "Fail",
    "Fault",
    "FaultStore",
    "FlipBit",
    "Stall",
    "Truncate",
    "Wait",
    "in_order",
    "seeded",
]


@dataclass(frozen=True, slots=True)
class Call:
    """One call that reached the store.

    Attributes:
        operation: ``"get"``, ``"put"``, ``"head"``, ``"list"`` or ``"delete"``; ranges are gets.
        key: Key of the object, or prefix of a listing.
        number: Number of the call among all calls of this store, from 0.
        start: First byte of a range.
        end: One past the last byte of a range.
        fresh: Whether the call came through `FaultStore.on_fresh_connections`.
    """

    operation: str
    key: str
    number: int
    start: int | None = None
    end: int | None = None
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Fail:
    """Raises a storage error instead of calling the inner store, or with ``after`` once the inner store has written.

    ``Fail(ConnectionFailed, after=True)`` simulates a connection that breaks after the object was written.
    """

    error: type[StorageError]
    after: bool = False


@dataclass(frozen=True, slots=True)
class Truncate:
    """Returns only the first bytes of what was read; a negative number drops bytes at the end."""

    num_bytes: int


@dataclass(frozen=True, slots=True)
class FlipBit:
    """Flips one bit of what was read; ``bit`` counts from the start and wraps around."""

    bit: int


@dataclass(frozen=True, slots=True)
class ChangeEtag:
    """Simulates a replaced object: ``if_match`` fails, or the ETag differs."""

    etag: str = '"changed"'


@dataclass(frozen=True, slots=True)
class Wait:
    """Awaits something before the call, such as an event or an injected sleep."""

    until: Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Cut:
    """Breaks a streamed body with an error after some bytes; other reads fail without any bytes."""

    after_bytes: int
    error: type[StorageError] = TruncatedBody


@dataclass(frozen=True, slots=True)
class Stall:
    """Pauses a body after some bytes until an awaitable completes, for example an event that is never set."""

    after_bytes: int
    until: Callable[[], Awaitable[object]]


Fault = Fail | Truncate | FlipBit | ChangeEtag | Wait | Cut | Stall
Script = Callable[[Call], Sequence[Fault]]


def in_order(faults: Iterable[Fault | None], *, operation: str = "get") -> Script:
    """Returns a script that gives the n-th call of an operation the n-th fault; None, and later calls, succeed."""
    remaining = iter(list(faults))

    def script(call: Call) -> Sequence[Fault]:
        fault = next(remaining, None) if call.operation == operation else None
        return () if fault is None else (fault,)

    return script


def seeded(
    seed: int, *, fail: float = 0.0, truncate: float = 0.0, flip: float = 0.0, errors: Sequence[type[StorageError]] = ()
) -> Script:
    """Returns a script of faults at given rates, a pure function of seed and call number; only reads get bad data."""
    kinds = tuple(errors) or (ConnectionFailed, ServerError, Throttled)

    def script(call: Call) -> Sequence[Fault]:
        draw = random.Random(f"{seed}/{call.number}")  # noqa: S311
        faults: list[Fault] = []
        if draw.random() < fail:
            faults.append(Fail(draw.choice(kinds)))
        if call.operation == "get":
            if draw.random() < truncate:
                faults.append(Truncate(-1 - draw.randrange(64)))
            if draw.random() < flip:
                faults.append(FlipBit(draw.randrange(1 << 40)))
        return faults

    return script


class FaultStore(Store):
    """Adds faults to any store.

    Args:
        inner: Store that handles the calls; closed together with this store.
        script: Function that returns the faults of a call; see `in_order` and `seeded`.
        piece_bytes: Largest piece of a streamed range.

    Attributes:
        calls: Calls so far, in order of arrival.
    """

    def __init__(self, inner: Store, script: Script, *, piece_bytes: int = PIECE_BYTES) -> None:
        super().__init__(inner.url)
        self._inner = inner
        self._script = script
        self._piece_bytes = piece_bytes
        self._is_fresh = False
        self._fresh: FaultStore | None = None
        self.calls: list[Call] = []

    @property
    def endpoint(self) -> str:
        return self._inner.endpoint

    def on_fresh_connections(self) -> Store:
        if self._fresh is None:
            self._fresh = FaultStore(self._inner.on_fresh_connections(), self._script, piece_bytes=self._piece_bytes)
            self._fresh.calls = self.calls
            self._fresh._is_fresh = True
        return self._fresh

    async def _get(self, key: str, span: tuple[int, int] | None, if_match: str | None) -> GetResult:
        start, end = span or (None, None)
        call, faults = self._arrive("get", key, start, end)
        await self._before(call, faults)
        inner_match = None if _change(faults) else if_match
        if start is None or end is None:
            result = await self._inner.get(key, if_match=inner_match)
        else:
            result = await self._inner.get_range(key, start, end, if_match=inner_match)
        meta = self._seen(result.meta, faults, if_match)
        data = result.data
        for fault in faults:
            if isinstance(fault, Stall):
                await fault.until()
            elif isinstance(fault, Cut):
                raise self._error(call, fault.error)
            data = _damaged(data, fault)
        self._after(call, faults)
        return GetResult(data, meta)

    async def _stream(
        self, key: str, span: tuple[int, int] | None, if_match: str | None, piece_bytes: int
    ) -> tuple[ObjectMeta, Pieces]:
        start, end = span or (None, None)
        call, faults = self._arrive("get", key, start, end)
        await self._before(call, faults)
        inner_match = None if _change(faults) else if_match
        opened = await self._inner.open_range(key, start or 0, end, if_match=inner_match, piece_bytes=piece_bytes)
        try:
            meta = self._seen(opened.meta, faults, if_match)
        except BaseException:
            await opened.aclose()
            raise
        return meta, self._pieces(call, faults, opened, min(piece_bytes, self._piece_bytes))

    async def _pieces(
        self, call: Call, faults: Sequence[Fault], opened: OpenRange, piece_bytes: int
    ) -> AsyncGenerator[memoryview, None]:
        async with aclosing(opened):
            whole = memoryview(b"".join([bytes(piece) async for piece in opened]))
        for fault in faults:
            whole = _damaged(whole, fault)
        breaks = sorted((f for f in faults if isinstance(f, Cut | Stall)), key=lambda fault: fault.after_bytes)
        position = 0
        for fault in breaks:
            for start in range(position, fault.after_bytes, piece_bytes):
                yield whole[start : min(start + piece_bytes, fault.after_bytes)]
            position = max(position, fault.after_bytes)
            if isinstance(fault, Cut):
                raise self._error(call, fault.error)
            await fault.until()
        for start in range(position, len(whole), piece_bytes):
            yield whole[start : start + piece_bytes]
        self._after(call, faults)

    def _seen(self, meta: ObjectMeta, faults: Sequence[Fault], if_match: str | None) -> ObjectMeta:
        changed = _change(faults)
        if changed is None:
            return meta
        meta = replace(meta, etag=changed.etag)
        check_etag(meta, if_match, url=self.url)
        return meta

    async def _put(self, key: str, data: memoryview, *, if_absent: bool) -> ObjectMeta:
        call, faults = self._arrive("put", key)
        await self._before(call, faults)
        meta = await (self._inner.put_if_absent(key, data) if if_absent else self._inner.put(key, data))
        self._after(call, faults)
        return meta

    async def _head(self, key: str) -> ObjectMeta:
        call, faults = self._arrive("head", key)
        await self._before(call, faults)
        meta = await self._inner.head(key)
        for fault in faults:
            if isinstance(fault, ChangeEtag):
                meta = replace(meta, etag=fault.etag)
        self._after(call, faults)
        return meta

    async def _list(self, prefix: str) -> AsyncIterator[ObjectMeta | StorageError]:
        call, faults = self._arrive("list", prefix)
        await self._before(call, faults)
        problems: list[StorageError] = []
        async for meta in self._inner.list(prefix, on_error=problems.append):
            while problems:
                yield problems.pop(0)
            yield meta
        for problem in problems:
            yield problem
        self._after(call, faults)

    async def _delete(self, key: str) -> None:
        call, faults = self._arrive("delete", key)
        await self._before(call, faults)
        await self._inner.delete(key)
        self._after(call, faults)

    async def _close(self) -> None:
        if self._fresh is not None:
            await self._fresh.close()
        await self._inner.close()

    def _arrive(
        self, operation: str, key: str, start: int | None = None, end: int | None = None
    ) -> tuple[Call, Sequence[Fault]]:
        call = Call(operation, key, len(self.calls), start, end, self._is_fresh)
        self.calls.append(call)
        return call, self._script(call)

    async def _before(self, call: Call, faults: Sequence[Fault]) -> None:
        for fault in faults:
            if isinstance(fault, Wait):
                await fault.until()
            elif isinstance(fault, Fail) and not fault.after:
                raise self._error(call, fault.error)

    def _after(self, call: Call, faults: Sequence[Fault]) -> None:
        for fault in faults:
            if isinstance(fault, Fail) and fault.after:
                raise self._error(call, fault.error)

    def _error(self, call: Call, error: type[StorageError]) -> StorageError:
        return error("injected", url=self.url, key=call.key, start=call.start, end=call.end)


def _change(faults: Sequence[Fault]) -> ChangeEtag | None:
    return next((fault for fault in faults if isinstance(fault, ChangeEtag)), None)


def _damaged(data: memoryview, fault: Fault) -> memoryview:
    match fault:
        case Truncate(num_bytes):
            return data[:num_bytes]
        case FlipBit(bit) if len(data):
            copy = bytearray(data)
            copy[bit // 8 % len(copy)] ^= 1 << bit % 8
            return memoryview(copy).toreadonly()
        case _:
            return data
