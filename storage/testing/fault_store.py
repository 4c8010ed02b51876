"""A store that fails on purpose: between any store and the code under test, faults by script or by seed."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from storage.errors import ConnectionFailed, ServerError, StorageError, Throttled
from storage.stores.protocol import GetResult, ObjectMeta, Store, check_match

__all__ = ["Call", "ChangeEtag", "Fail", "Fault", "FaultStore", "FlipBit", "Truncate", "Wait", "in_order", "seeded"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call that reached the store.

    Attributes:
        operation: ``"get"``, ``"put"``, ``"head"``, ``"list"`` or ``"delete"``; ranges are gets.
        key: Or a list's prefix.
        number: Of the call among all that this store saw, from 0.
        start: First byte of a range.
        end: One past its last.
    """

    operation: str
    key: str
    number: int
    start: int | None = None
    end: int | None = None


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


Fault = Fail | Truncate | FlipBit | ChangeEtag | Wait
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

    Attributes:
        calls: Every call so far, in order of arrival.
    """

    def __init__(self, inner: Store, script: Script) -> None:
        super().__init__(inner.url)
        self._inner = inner
        self._script = script
        self.calls: list[Call] = []

    async def _get(self, key: str, span: tuple[int, int] | None, if_match: str | None) -> GetResult:
        start, end = span or (None, None)
        call, faults = self._arrive("get", key, start, end)
        await self._before(call, faults)
        changed = next((fault for fault in faults if isinstance(fault, ChangeEtag)), None)
        inner_match = None if changed else if_match
        if start is None or end is None:
            result = await self._inner.get(key, if_match=inner_match)
        else:
            result = await self._inner.get_range(key, start, end, if_match=inner_match)
        if changed is not None:
            result = replace(result, meta=replace(result.meta, etag=changed.etag))
            check_match(result.meta, if_match, url=self.url)
        for fault in faults:
            result = replace(result, data=_damaged(result.data, fault))
        self._after(call, faults)
        return result

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

    async def _list(self, prefix: str) -> AsyncIterator[ObjectMeta]:
        call, faults = self._arrive("list", prefix)
        await self._before(call, faults)
        async for meta in self._inner.list(prefix):
            yield meta
        self._after(call, faults)

    async def _delete(self, key: str) -> None:
        call, faults = self._arrive("delete", key)
        await self._before(call, faults)
        await self._inner.delete(key)
        self._after(call, faults)

    async def _close(self) -> None:
        await self._inner.close()

    def _arrive(
        self, operation: str, key: str, start: int | None = None, end: int | None = None
    ) -> tuple[Call, Sequence[Fault]]:
        call = Call(operation, key, len(self.calls), start, end)
        self.calls.append(call)
        return call, self._script(call)

    async def _before(self, call: Call, faults: Sequence[Fault]) -> None:
        for fault in faults:
            if isinstance(fault, Wait):
                await fault.until()
            elif isinstance(fault, Fail) and not fault.after:
                raise self._error(call, fault)

    def _after(self, call: Call, faults: Sequence[Fault]) -> None:
        for fault in faults:
            if isinstance(fault, Fail) and fault.after:
                raise self._error(call, fault)

    def _error(self, call: Call, fault: Fail) -> StorageError:
        return fault.error("injected", url=self.url, key=call.key, start=call.start, end=call.end)


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
