"""Uploads objects with retries where they can help. Only `Uploader.put` replaces what another writer has written."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from concurrent_loader.storage.errors import AlreadyExists, InvalidRange, NotFound, StorageError
from concurrent_loader.storage.fetch.deadlines import attempt_timeout_s, run_with_timeout
from concurrent_loader.storage.fetch.retry import RetryPolicy, call_with_retries, retry_delay_s
from concurrent_loader.storage.stores.objects import Buffer
from concurrent_loader.storage.stores.store import Store

__all__ = ["RECENT", "Uploader"]

T = TypeVar("T")

RECENT = timedelta(hours=1)
"""Age until which an object that is there already need not be written again; shorter than any grace period."""

_PIECE_BYTES = 8 << 20
_MAX_READ_BACKS = 3  # attempts to read back an object that may have been written


@dataclass(frozen=True, kw_only=True)
class Uploader:
    """Writes objects: under new keys, under keys derived from their bytes, or replacing others.

    Attributes:
        store: Store to write to.
        retry: Retry policy. Its deadline allows for a few MiB; a larger object gets more time, in proportion.
        clock: Source of monotonic seconds.
        sleep: Awaitable pause.
        rng: Source of random numbers, uniform in [0, 1).
        replaced: Keys of content-addressed objects that were there and were written again.
    """

    store: Store
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    rng: Callable[[], float] = random.random
    replaced: set[str] = field(default_factory=set)

    async def put_once(self, key: str, data: Buffer) -> None:
        """Writes an object under a new key.

        A failed attempt may have written the object although its response was lost. So an object with exactly these
        bytes, found by a retry or by a final check, counts as written by this call.

        Raises:
            AlreadyExists: The key holds an object of another writer.
            StorageError: Error of the last attempt, with ``attempts`` filled in. The object is absent, or the store
                could not be asked; the message says which.
        """

        async def put(attempt: int) -> None:
            try:
                await self.store.put_if_absent(key, data)
            except AlreadyExists:
                if attempt == 1 or not await self._is_there(key, memoryview(data)):
                    raise

        await self._upload(put, key, data)

    async def put_content_addressed(self, key: str, data: Buffer) -> None:
        """Writes an object whose key is derived from its bytes, unless the key already holds these bytes.

        An intact, recent object stays, because readers of older snapshots may rely on its ETag. One that is older than
        an hour is written again with the same bytes: if no snapshot refers to it, garbage collection may delete it,
        unless it is recent. An object with other bytes is corrupt or truncated and contradicts every manifest, so it is
        replaced: writing a dataset again repairs it.

        Raises:
            StorageError: Error of the last attempt, with ``attempts`` filled in.
        """

        async def put(_attempt: int) -> None:
            try:
                await self.store.put_if_absent(key, data)
            except AlreadyExists:
                if not await self._is_there(key, memoryview(data)) or not await self._is_recent(key):
                    await self.store.put(key, data)
                    self.replaced.add(key)

        await self._upload(put, key, data)

    async def put(self, key: str, data: Buffer) -> None:
        """Writes an object, and replaces an existing one.

        Raises:
            StorageError: Error of the last attempt, with ``attempts`` filled in.
        """

        async def put(_attempt: int) -> None:
            await self.store.put(key, data)

        await self._upload(put, key, data)

    async def _is_there(self, key: str, data: memoryview) -> bool:
        """Returns whether an object has exactly these bytes; reads it piece by piece."""
        try:
            if not data:
                return (await self.store.head(key)).size == 0
            for start in range(0, len(data), _PIECE_BYTES):
                piece = data[start : start + _PIECE_BYTES]
                found = await self.store.get_range(key, start, start + len(piece))
                if found.meta.size != len(data) or found.data != piece:
                    return False
        except (NotFound, InvalidRange):
            return False
        return True

    async def _is_recent(self, key: str) -> bool:
        modified = (await self.store.head(key)).last_modified
        return modified is None or datetime.now(UTC) - modified < RECENT

    async def confirm_replaced(self) -> None:
        """Checks that all objects that were replaced exist, before a manifest refers to them.

        Garbage collection may have decided to delete an object just before it was written again.

        Raises:
            NotFound: An object is missing; write it again.
        """
        for key in sorted(self.replaced):

            async def look(_attempt: int, key: str = key) -> None:
                await self.store.head(key)

            try:
                await self._retry(look, self.retry, key, 0, "no response")
            except NotFound as error:
                raise NotFound(
                    "garbage collection deleted an object just after it was uploaded; nothing was committed: write the "
                    "samples again",
                    url=self.store.url, key=key,
                ) from error  # fmt: skip
        self.replaced.clear()

    async def _upload(self, put: Callable[[int], Awaitable[None]], key: str, data: Buffer) -> None:
        """Makes attempts, each called with its number; a final check tells whether the object arrived after all."""
        num_bytes = len(data)
        policy = replace(self.retry, deadline_s=self.retry.deadline_s + num_bytes / self.retry.min_bytes_per_s)
        try:
            await self._retry(put, policy, key, num_bytes, "the upload did not finish")
        except StorageError as error:
            if not error.retryable or not await self._was_written(policy, error, key, memoryview(data)):
                raise

    async def _was_written(self, policy: RetryPolicy, error: StorageError, key: str, data: memoryview) -> bool:
        """Checks whether an upload arrived although every response was an error; notes a failed check in the error.

        The check has its own deadline, because that of the upload may have passed.
        """
        policy = replace(policy, max_attempts=min(policy.max_attempts, _MAX_READ_BACKS))
        try:
            return await self._retry(
                lambda _attempt: self._is_there(key, data), policy, key, len(data), "the object could not be read"
            )
        except StorageError as failure:
            error.what += f"; whether the object was written is unknown, because reading it failed: {failure.what}"
            return False

    async def _retry(
        self, call: Callable[[int], Awaitable[T]], policy: RetryPolicy, key: str, num_bytes: int, late: str
    ) -> T:
        began_s = self.clock()
        attempts = 0

        async def attempt() -> T:
            nonlocal attempts
            attempts += 1
            allowed_s = attempt_timeout_s(policy, num_bytes=num_bytes, elapsed_s=self.clock() - began_s)
            return await run_with_timeout(allowed_s, lambda: call(attempts), late)

        def delay_after(error: StorageError) -> float:
            elapsed_s = self.clock() - began_s
            delay_s = retry_delay_s(policy, error, attempts=attempts, elapsed_s=elapsed_s, jitter=self.rng())
            if delay_s is None:
                raise error.locate(url=self.store.url, key=key, attempts=attempts) from error.__cause__
            return delay_s

        return await call_with_retries(attempt, delay_after, sleep=self.sleep)
