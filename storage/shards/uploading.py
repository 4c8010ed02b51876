"""How the writer's bytes reach the store: insisting where another attempt can help, and never writing a key twice."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from storage.errors import AlreadyExists, DeadlineExceeded, InvalidRange, NotFound, StorageError
from storage.fetch.deadlines import attempt_timeout_s
from storage.fetch.retry import RetryPolicy, retry_delay_s
from storage.stores.protocol import Buffer, Store

__all__ = ["Uploader"]

_PIECE_BYTES = 8 << 20
_LOOKS = 3  # attempts to read back what may have been written


@dataclass(frozen=True, kw_only=True)
class Uploader:
    """Writes objects that must not exist yet.

    Attributes:
        store: Where to.
        retry: When to insist. Its deadline is meant for ranges of a few MiB; a larger object may take as much longer
            as its bytes justify.
        clock: Monotonic seconds.
        sleep: Awaitable pause.
        dice: Uniform numbers in [0, 1).
    """

    store: Store
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    dice: Callable[[], float] = random.random

    async def put_once(self, key: str, data: Buffer) -> None:
        """Writes an object under a new key.

        An attempt that failed may have written it all the same (its answer was lost): an object that a further
        attempt, or a last look after all attempts, finds there with exactly these bytes counts as ours.

        Raises:
            AlreadyExists: Somebody else's object is there.
            StorageError: The last attempt's, with ``attempts`` filled in. The object is not there, or the store could
                not be asked; the message says which.
        """

        async def put(attempt: int) -> None:
            try:
                await self.store.put_if_absent(key, data)
            except AlreadyExists:
                if attempt == 1 or not await self._is_there(key, memoryview(data)):
                    raise

        await self._insist(put, key, data)

    async def put_content_addressed(self, key: str, data: Buffer) -> None:
        """Writes an object whose key is made from its bytes: one that is there already stays if it has these bytes.

        Not replacing it keeps its ETag, which readers of older snapshots may hold on to. What has other bytes has
        decayed, or is a stump that some other tool left behind: it contradicts every manifest, and writing the data
        set again is how it is mended.

        Raises:
            StorageError: The last attempt's, with ``attempts`` filled in.
        """

        async def put(_attempt: int) -> None:
            try:
                await self.store.put_if_absent(key, data)
            except AlreadyExists:
                if not await self._is_there(key, memoryview(data)):
                    await self.store.put(key, data)

        await self._insist(put, key, data)

    async def _is_there(self, key: str, data: memoryview) -> bool:
        """Whether an object has exactly these bytes; they are read piece by piece."""
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

    async def _insist(self, put: Callable[[int], Awaitable[None]], key: str, data: Buffer) -> None:
        num_bytes = len(data)
        policy = replace(self.retry, deadline_s=self.retry.deadline_s + num_bytes / self.retry.min_bytes_per_s)
        began = self.clock()
        attempts = 0
        while True:
            attempts += 1
            allowed_s = attempt_timeout_s(policy, num_bytes=num_bytes, elapsed_s=self.clock() - began)
            try:
                return await _within(allowed_s, put(attempts))
            except StorageError as error:
                elapsed_s = self.clock() - began
                delay_s = retry_delay_s(policy, error, attempts=attempts, elapsed_s=elapsed_s, dice=self.dice())
                if delay_s is None:
                    if error.retryable and await self._was_written(policy, error, key, memoryview(data)):
                        return None
                    raise error.locate(url=self.store.url, key=key, attempts=attempts) from error.__cause__
            await self.sleep(delay_s)

    async def _was_written(self, policy: RetryPolicy, error: StorageError, key: str, data: memoryview) -> bool:
        """Looks whether an upload of which every answer was an error has arrived; if that fails, says so in the error.

        It has a deadline of its own, because that of the upload may have passed.
        """
        policy = replace(policy, max_attempts=min(policy.max_attempts, _LOOKS))
        began = self.clock()
        attempts = 0
        while True:
            attempts += 1
            allowed_s = attempt_timeout_s(policy, num_bytes=len(data), elapsed_s=self.clock() - began)
            try:
                async with asyncio.timeout(allowed_s):
                    return await self._is_there(key, data)
            except TimeoutError:
                failure: StorageError = DeadlineExceeded("the object was not read in time")
            except StorageError as unread:
                failure = unread
            elapsed_s = self.clock() - began
            delay_s = retry_delay_s(policy, failure, attempts=attempts, elapsed_s=elapsed_s, dice=self.dice())
            if delay_s is None:
                error.what += f"; whether the object was written is unknown, because reading it failed: {failure.what}"
                return False
            await self.sleep(delay_s)


async def _within(allowed_s: float, put: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(allowed_s):
            await put
    except TimeoutError as error:
        raise DeadlineExceeded(f"the upload was not done within {allowed_s:.3g} s") from error
