"""How bytes are brought: many ranges in flight, each insisted on, checked and counted; between store and cache."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import xxhash

from storage.errors import DeadlineExceeded, DigestMismatch, InvalidRange, ObjectChanged, StorageError, Throttled
from storage.fetch.limits import InFlightGate
from storage.fetch.retry import RetryPolicy, attempt_timeout_s, retry_delay_s
from storage.sizes import Size, parse_size
from storage.stores.protocol import GetResult, ObjectMeta, Store, Write

__all__ = ["FetchEngine", "FetchStats"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FetchStats:
    """What the engine has done so far; a snapshot.

    Attributes:
        num_gets: GETs sent, failed and repeated ones included; lists, heads and puts are not counted.
        num_bytes: Bytes that arrived, wasted ones included.
        num_retries: Requests that repeated a failed one.
        num_throttled: Answers that asked for fewer requests.
        num_refetched: Ranges fetched again because their digest did not match.
        in_flight: Requests under way at this moment.
        wait_s: Seconds that requests spent between being sent and being whole, summed over all.
    """

    num_gets: int = 0
    num_bytes: int = 0
    num_retries: int = 0
    num_throttled: int = 0
    num_refetched: int = 0
    in_flight: int = 0
    wait_s: float = 0.0


_NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class _Brought:
    """A range that has arrived; its bytes only if somebody keeps them."""

    meta: ObjectMeta
    num_bytes: int
    digest: int | None
    data: memoryview = _NOTHING


class FetchEngine:
    """Brings ranges of objects from one store, with retries, deadlines, digests and bounds.

    Args:
        store: Where the bytes live. The engine does not close it.
        in_flight: Requests at once.
        bytes_in_flight: Announced bytes at once; a larger single request runs alone.
        retry: When to insist and when to give up.
        clock: Monotonic seconds.
        sleep: Awaitable pause.
        dice: Uniform numbers in [0, 1).

    Cancellation: At any await; the place in flight is given back and the connection released.
    """

    def __init__(
        self,
        store: Store,
        *,
        in_flight: int = 32,
        bytes_in_flight: Size = "128MiB",
        retry: RetryPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self.store = store
        self._gate = InFlightGate(max_requests=in_flight, max_bytes=parse_size(bytes_in_flight, name="bytes_in_flight"))
        self._retry = retry or RetryPolicy()
        self._clock = clock
        self._sleep = sleep
        self._dice = dice
        self._stats = FetchStats()

    @property
    def stats(self) -> FetchStats:
        """Counters so far."""
        return replace(self._stats, in_flight=self._gate.num_requests)

    async def fetch(
        self,
        key: str,
        start: int,
        end: int,
        *,
        if_match: str | None = None,
        digest: int | None = None,
        object_size: int | None = None,
    ) -> GetResult:
        """Brings one range.

        Args:
            key: The object.
            start: First byte.
            end: One past the last byte.
            if_match: The ETag that the object must have.
            digest: xxh3_64 of the range. On a mismatch it is fetched once more, then `DigestMismatch` is raised.
            object_size: What the whole object must measure, or `ObjectChanged` is raised.

        Raises:
            StorageError: The last attempt's, with ``attempts`` filled in.
        """

        async def bring() -> _Brought:
            result = await self.store.get_range(key, start, end, if_match=if_match)
            computed = None if digest is None else xxhash.xxh3_64_intdigest(result.data)
            return _Brought(result.meta, len(result.data), computed, result.data)

        brought = await self._verified(bring, key, start, end, digest, object_size)
        return GetResult(brought.data, brought.meta)

    async def fetch_into(
        self,
        key: str,
        start: int,
        end: int,
        write: Write,
        *,
        if_match: str | None = None,
        digest: int | None = None,
        object_size: int | None = None,
    ) -> ObjectMeta:
        """Brings one range and hands it on piece by piece, without holding it.

        Args:
            key: The object.
            start: First byte.
            end: One past the last byte.
            write: Awaited with (position in the object, piece). After a failed attempt the pieces come again from the
                start of the range, so what was written is to be trusted only when this method returns. What ``write``
                raises goes through unchanged.
            if_match: As for `fetch`.
            digest: As for `fetch`.
            object_size: As for `fetch`.

        Raises:
            StorageError: As for `fetch`.
        """

        async def bring() -> _Brought:
            hashed = xxhash.xxh3_64()

            async def take(position: int, piece: memoryview) -> None:
                if digest is not None:
                    hashed.update(piece)
                await write(position, piece)

            meta = await self.store.get_range_into(key, start, end, take, if_match=if_match)
            return _Brought(meta, end - start, None if digest is None else hashed.intdigest())

        return (await self._verified(bring, key, start, end, digest, object_size)).meta

    async def _verified(
        self,
        bring: Callable[[], Awaitable[_Brought]],
        key: str,
        start: int,
        end: int,
        digest: int | None,
        object_size: int | None,
    ) -> _Brought:
        """Brings a range, a second time if its digest disagrees."""
        brought = await self._sized(bring, key, start, end, object_size)
        if brought.digest == digest:
            return brought
        self._stats = replace(self._stats, num_refetched=self._stats.num_refetched + 1)
        brought = await self._sized(bring, key, start, end, object_size)
        if brought.digest == digest:
            return brought
        raise DigestMismatch(
            "the bytes are not those that the manifest pins, fetched twice",
            url=self.store.url, key=key, start=start, end=end, expected=f"{digest:016x}", got=f"{brought.digest:016x}",
            attempts=2,
        )  # fmt: skip

    async def _sized(
        self, bring: Callable[[], Awaitable[_Brought]], key: str, start: int, end: int, object_size: int | None
    ) -> _Brought:
        """Brings a range of an object that must have a certain size."""
        try:
            brought = await self._insist(bring, key, start, end, num_bytes=end - start)
        except InvalidRange as error:
            if object_size is None:
                raise
            raise self._replaced(key, object_size, error.got) from error
        if object_size is not None and brought.meta.size != object_size:
            raise self._replaced(key, object_size, brought.meta.size)
        return brought

    def _replaced(self, key: str, expected: int, got: object) -> ObjectChanged:
        return ObjectChanged(
            "the object was replaced: its size differs", url=self.store.url, key=key, expected=expected, got=got
        )

    async def fetch_object(self, key: str) -> GetResult:
        """Brings a whole object whose size is not known beforehand (a manifest, say)."""

        async def bring() -> _Brought:
            result = await self.store.get(key)
            return _Brought(result.meta, len(result.data), None, result.data)

        brought = await self._insist(bring, key, 0, None, num_bytes=0)
        return GetResult(brought.data, brought.meta)

    async def insist(self, call: Callable[[], Awaitable[T]], key: str) -> T:
        """Makes any other call on the store (head, put, the pages of a list) under the same policy."""
        return await self._insist(call, key, None, None, num_bytes=None)

    async def _insist(
        self, call: Callable[[], Awaitable[T]], key: str, start: int | None, end: int | None, *, num_bytes: int | None
    ) -> T:
        """Calls until it succeeds or the policy gives up; ``num_bytes`` are announced, None for what is no GET."""
        began = self._clock()
        attempts = 0
        while True:
            attempts += 1
            try:
                async with self._gate.admit(num_bytes or 0):
                    return await self._attempt(call, num_bytes, self._clock() - began)
            except StorageError as error:
                if isinstance(error, Throttled):
                    self._stats = replace(self._stats, num_throttled=self._stats.num_throttled + 1)
                delay_s = retry_delay_s(
                    self._retry, error, attempts=attempts, elapsed_s=self._clock() - began, dice=self._dice()
                )
                if delay_s is None:
                    raise error.locate(
                        url=self.store.url, key=key, start=start, end=end, attempts=attempts
                    ) from error.__cause__
            self._stats = replace(self._stats, num_retries=self._stats.num_retries + 1)
            await self._sleep(delay_s)

    async def _attempt(self, call: Callable[[], Awaitable[T]], num_bytes: int | None, elapsed_s: float) -> T:
        allowed_s = attempt_timeout_s(self._retry, num_bytes=num_bytes or 0, elapsed_s=elapsed_s)
        began = self._clock()
        received = 0
        try:
            async with asyncio.timeout(allowed_s):
                result = await call()
        except TimeoutError as error:
            raise DeadlineExceeded(f"no complete answer within {allowed_s:.3g} s") from error
        else:
            received = result.num_bytes if isinstance(result, _Brought) else 0
            return result
        finally:
            stats = self._stats
            self._stats = replace(
                stats,
                num_gets=stats.num_gets + (1 if num_bytes is not None else 0),
                num_bytes=stats.num_bytes + received,
                wait_s=stats.wait_s + self._clock() - began,
            )
