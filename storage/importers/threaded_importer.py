"""Runs importers of synchronous libraries on a thread of their own, and hands their samples to the event loop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from concurrent_loader.storage.importers.loop_calls import LoopCalls
from concurrent_loader.storage.importers.protocol import ImportedSample, ImportProblem, ImportScan
from concurrent_loader.storage.shards.manifest.manifest import Manifest

__all__ = ["Items", "ThreadedImporter"]

T = TypeVar("T")
Items = Generator[ImportedSample | ImportProblem, None, None]

_GROUP_ITEMS = 32
_GROUP_BYTES = 8 << 20


class ThreadedImporter(ABC):
    """An importer whose `_scan` and `_read` run on one thread, so that libraries need not be thread-safe.

    While a group of samples is written, the next one is read: at most 32 samples or 8 MiB each, or one larger sample.

    Cancellation: Cancels the fetches of the thread, and then waits for the running call of the library.
    """

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._calls: LoopCalls | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_executor": None, "_calls": None}

    @property
    @abstractmethod
    def url(self) -> str:
        """URL of the source, without credentials."""

    @abstractmethod
    def _scan(self, onto: Manifest | None) -> ImportScan:
        """Scans the source; on the thread."""

    @abstractmethod
    def _read(self) -> Items:
        """Yields the samples; on the thread."""

    def _close(self) -> None:
        """Releases the library's files; on the thread, if there was one. Default: nothing."""

    async def _close_store(self) -> None:
        """Closes the source's store; on the event loop. Default: nothing."""

    @property
    def calls(self) -> LoopCalls:
        """Calls from the thread to the event loop."""
        assert self._calls is not None
        return self._calls

    async def scan(self, onto: Manifest | None = None) -> ImportScan:
        """Scans the source.

        Args:
            onto: Snapshot to append to; None for a new dataset.
        """
        return await self._start(self._scan, onto)

    async def read(self) -> AsyncGenerator[ImportedSample | ImportProblem, None]:
        """Yields the samples in the order of the source."""
        items = self._read()
        reading = self._start(_next_group, items)
        try:
            while group := await asyncio.shield(reading):
                reading = self._start(_next_group, items)
                for item in group:
                    yield item
        finally:
            if not reading.done():
                self.calls.stop()
                await asyncio.wait({reading})
            if not reading.cancelled():
                reading.exception()  # read, so that asyncio does not report it as lost after a cancellation
            await self._start(items.close)

    async def close(self) -> None:
        """Stops the thread and releases the source. Idempotent."""
        executor, self._executor = self._executor, None
        if self._calls is not None:
            self._calls.stop()
        try:
            if executor is not None:
                try:
                    await asyncio.get_running_loop().run_in_executor(executor, self._close)
                finally:
                    await asyncio.to_thread(executor.shutdown)
        finally:
            await self._close_store()

    def _start(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "import-read")
        if self._calls is None:
            self._calls = LoopCalls(loop)
        return loop.run_in_executor(self._executor, function, *args)


def _next_group(items: Items) -> list[ImportedSample | ImportProblem]:
    group: list[ImportedSample | ImportProblem] = []
    num_bytes = 0
    for item in items:
        group.append(item)
        num_bytes += item.num_bytes if isinstance(item, ImportedSample) else 0
        if len(group) >= _GROUP_ITEMS or num_bytes >= _GROUP_BYTES:
            break
    return group
