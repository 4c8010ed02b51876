"""Keeps the footers of adopted Parquet files, so that each is fetched once and not for each of its row groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from concurrent_loader.storage.shards.format.parquet_file import FOOTER_GUESS_BYTES, ParquetFooter, footer_bytes
from concurrent_loader.storage.shards.manifest.source_ranges import SourceFile

__all__ = ["Fetch", "FooterCache"]

Fetch = Callable[[int, int], Awaitable[memoryview]]
"""Fetches a range of the file."""

_MAX_FOOTERS = 256
_MAX_BYTES = 32 << 20


class FooterCache:
    """The footers that were used last: at most 256, and 32 MiB if there is more than one.

    Usable from one event loop.
    """

    def __init__(self) -> None:
        self._footers: dict[SourceFile, asyncio.Task[ParquetFooter]] = {}
        self._sizes: dict[SourceFile, int] = {}

    async def get(self, file: SourceFile, fetch: Fetch) -> ParquetFooter:
        """Returns the footer of a file.

        Args:
            file: The file.
            fetch: Function that fetches a range of the file.

        Raises:
            FormatError: The footer is damaged.
            StorageError: The footer could not be fetched.
        """
        task = self._footers.pop(file, None)
        if task is None:
            task = asyncio.create_task(self._load(file, fetch))
        self._footers[file] = task  # the newest is the last
        self._evict()
        try:
            return await asyncio.shield(task)
        except BaseException:
            if task.done() and self._footers.get(file) is task:
                self._forget(file)
            raise

    async def close(self) -> None:
        """Cancels requests that are still running. Idempotent."""
        footers, self._footers = self._footers, {}
        self._sizes.clear()
        for task in footers.values():
            task.cancel()
        await asyncio.gather(*footers.values(), return_exceptions=True)

    async def _load(self, file: SourceFile, fetch: Fetch) -> ParquetFooter:
        start = max(0, file.size - FOOTER_GUESS_BYTES)
        last = await fetch(start, file.size)
        num_bytes = footer_bytes(last, file.size)
        if num_bytes > len(last):
            last = await fetch(file.size - num_bytes, file.size)
        footer = await asyncio.to_thread(ParquetFooter, last[len(last) - num_bytes :], file.size)
        self._sizes[file] = num_bytes
        return footer

    def _evict(self) -> None:
        while len(self._footers) > 1 and (len(self._footers) > _MAX_FOOTERS or sum(self._sizes.values()) > _MAX_BYTES):
            self._forget(next(iter(self._footers)))

    def _forget(self, file: SourceFile) -> None:
        self._footers.pop(file, None)
        self._sizes.pop(file, None)
