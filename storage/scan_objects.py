"""Lists the objects of a store, of any number: only the time for the next page is limited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol, TypeVar, cast

from concurrent_loader.storage.errors import DeadlineExceeded, NotFound, StorageError
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.fetch.retry import call_with_retries
from concurrent_loader.storage.stores.objects import ObjectMeta

__all__ = ["ObjectVisitor", "list_metas", "scan_objects"]

_BEAT = 256  # objects between two checks of the clock; a page of S3 has 1,000


class ObjectVisitor(Protocol):
    """Receives the entries of a listing."""

    def add(self, meta: ObjectMeta) -> str | None:
        """Receives an object; may return a text after which the listing continues, if the store can skip."""

    def refuse(self, error: StorageError) -> None:
        """Receives the error of an entry that cannot be listed; may raise it."""


V = TypeVar("V", bound=ObjectVisitor)


async def scan_objects(engine: FetchEngine, prefix: str, begin: Callable[[], V]) -> V:
    """Passes the objects of a store to a visitor, in the order of their keys' bytes.

    Only the time for the next page is limited, not the whole listing. A failed listing starts again, with a new
    visitor, unless the policy's deadline has passed since the store sent something.

    Args:
        engine: Engine whose store is listed, under its retry policy.
        prefix: Start of the keys.
        begin: Function that makes a visitor.

    Returns:
        The visitor that received the whole listing.

    Raises:
        StorageError: It cannot be listed.
    """
    clock = asyncio.get_running_loop().time
    attempts, heard_s = 0, clock()

    def on_objects() -> None:
        nonlocal heard_s
        heard_s = clock()

    async def attempt() -> V:
        nonlocal attempts
        attempts += 1
        return await _scan_once(engine, prefix, begin(), on_objects)

    def delay_after(error: StorageError) -> float:
        return engine.delay_after(
            error, engine.policy, key=None, attempts=attempts, failures=attempts, elapsed_s=clock() - heard_s
        )

    return await call_with_retries(attempt, delay_after, sleep=engine.sleep)


async def _scan_once(engine: FetchEngine, prefix: str, visitor: V, on_objects: Callable[[], None]) -> V:
    clock = asyncio.get_running_loop().time
    policy = engine.policy
    page_s = policy.deadline_s if engine.store.lists_at_once else policy.first_byte_s + policy.stall_window_s
    seen = 0
    try:
        async with asyncio.timeout(page_s) as deadline:
            after: str | None = ""
            while after is not None:
                listed = engine.store.list(prefix, after=after, on_error=visitor.refuse)
                after = None
                async with aclosing(cast("AsyncGenerator[ObjectMeta, None]", listed)) as found:
                    async for meta in found:
                        seen += 1
                        if seen % _BEAT == 0:
                            deadline.reschedule(clock() + page_s)
                            on_objects()
                        skipped = visitor.add(meta)
                        if skipped is not None and engine.store.skips:
                            after = skipped
                            break
                deadline.reschedule(clock() + page_s)
    except TimeoutError as error:
        raise DeadlineExceeded(f"the next page of a listing did not come within {page_s:.3g} s") from error
    return visitor


async def list_metas(engine: FetchEngine, prefix: str) -> list[ObjectMeta]:
    """Returns the metadata of the objects whose keys start with a prefix, in the order of the keys' bytes.

    Broken symbolic links are left out. Time is limited, and failures are repeated, as for `scan_objects`.

    Args:
        engine: Engine whose store is listed, under its retry policy.
        prefix: Start of the keys.

    Raises:
        StorageError: It cannot be listed, or an entry cannot be read.
    """
    return (await scan_objects(engine, prefix, _Metas)).found


class _Metas:
    """Collects metadata."""

    def __init__(self) -> None:
        self.found: list[ObjectMeta] = []

    def add(self, meta: ObjectMeta) -> None:
        self.found.append(meta)

    def refuse(self, error: StorageError) -> None:
        if not isinstance(error, NotFound):
            raise error
