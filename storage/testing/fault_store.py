"""A store that fails on purpose: between any store and the code under test, faults by script or by seed."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from storage.errors import ConnectionFailed, ServerError, StorageError, Throttled, TruncatedBody
from storage.stores.pieces import PIECE_BYTES, OpenRange, Pieces
from storage.stores.protocol import GetResult, ObjectMeta, Store, check_match

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
        key: Or a list's prefix.
        number: Of the call among all that this store saw, from 0.
        start: First byte of a range.
        end: One past its last.
        fresh: Whether it came by way of `FaultStore.on_fresh_connections`.
    """

    operation: str
    key: str
    number: int
    start: int | None = None
    end: int | None = None
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Fail:
    """Raises an error of the tree instead of asking the inner store; ``after`` lets a write happen first.

    ``Fail(ConnectionFailed, after=True)`` is the connection that dies when the object is already there.
    """

    error: type[StorageError]
    after: bool = False


@dataclass(frozen=True, slots=True)
class Truncate:
    """Hands out only the first bytes of what was read, or, if negative, leaves out so many at the end."""

    num_bytes: int


@dataclass(frozen=True, slots=True)
class FlipBit:
    """Flips one bit of what was read; ``bit`` counts from its start and wraps around."""

    bit: int


@dataclass(frozen=True, slots=True)
class ChangeEtag:
    """The object is another one from the reader's point of view: ``if_match`` fails, or the ETag differs."""

    etag: str = '"changed"'


@dataclass(frozen=True, slots=True)
class Wait:
    """Awaits something first: an event that the test sets, an injected sleep."""

    until: Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Cut:
    """The body breaks with an error after so many bytes; a read that is not piece by piece fails without any."""

    after_bytes: int
    error: type[StorageError] = TruncatedBody


@dataclass(frozen=True, slots=True)
class Stall:
    """The body pauses after so many bytes until something happens: for ever, if it is an event that nobody sets."""

    after_bytes: int
    until: Callable[[], Awaitable[object]]


Fault = Fail | Truncate | FlipBit | ChangeEtag | Wait | Cut | Stall
Script = Callable[[Call], Sequence[Fault]]


def in_order(faults: Iterable[Fault | None], *, operation: str = "get") -> Script:
    """The first call of an operation gets the first fault, and so on; None and all later calls go well."""
    remaining = iter(list(faults))

    def script(call: Call) -> Sequence[Fault]:
        fault = next(remaining, None) if call.operation == operation else None
        return () if fault is None else (fault,)

    return script


def seeded(
    seed: int, *, fail: float = 0.0, truncate: float = 0.0, flip: float = 0.0, errors: Sequence[type[StorageError]] = ()
) -> Script:
    """Faults at given rates, as a pure function of seed and call number; only reads get bad data."""
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
    """Any store, with faults.

    Args:
        inner: Answers the calls that no fault takes over; closed together with this store.
        script: Says which faults a call meets; see `in_order` and `seeded`.
        piece_bytes: The largest piece that a range read piece by piece comes in.

    Attributes:
        calls: Every call so far, in order of arrival.
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
        check_match(meta, if_match, url=self.url)
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
