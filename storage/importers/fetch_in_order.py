"""Fetches many small files ahead, makes samples from them on threads, and yields these in order."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar, cast

from concurrent_loader.storage.errors import ConfigurationError, InvalidRange, NotFound, ObjectChanged
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.importers.protocol import ImportedSample, ImportProblem
from concurrent_loader.storage.map_concurrently import map_concurrently
from concurrent_loader.storage.sizes import format_size
from concurrent_loader.storage.stores.backends.local import LocalStore

__all__ = ["MAX_FILE_BYTES", "WantedFile", "fetch_in_order"]

MAX_FILE_BYTES = 512 << 20
_GROUP_FILES = 8
_GROUP_BYTES = 1 << 20
_LOCAL_FILES = 64  # of one group: tiny files of the local drive cost less than a hand-over between threads
_LOCAL_BYTES = 512 << 10
_LOCAL_GROUPS = 4  # per thread, in memory


class WantedFile(Protocol):
    """A file to fetch."""

    @property
    def key(self) -> str:
        """Key of the object."""
        ...

    @property
    def size(self) -> int:
        """Size of the object in bytes."""
        ...


File = TypeVar("File", bound=WantedFile)
Item = ImportedSample | ImportProblem


async def fetch_in_order(
    engine: FetchEngine,
    files: Iterable[File | ImportProblem],
    make: Callable[[File, bytes], Item],
    *,
    in_flight: int,
    max_bytes: int,
    num_threads: int | None = None,
) -> AsyncGenerator[Item, None]:
    """Yields one item for each file in order; fetches ahead in a bounded window. A given problem is yielded as it is.

    Args:
        engine: Engine of the files' store.
        files: Files in order.
        make: Function that makes the item from the bytes of a file; called on threads.
        in_flight: Upper bound of files fetched at once. Twice as many are in memory, because some are decoded while
            others are fetched. Of the local drive, four groups per thread are in memory.
        max_bytes: Upper bound of the bytes of fetched files; a single larger file is fetched alone.
        num_threads: Number of threads that make items; one per core by default. With one, files of the local drive are
            read and made on the event loop's thread, so give this importer a loop of its own.

    Cancellation: Closing the generator cancels the running fetches and waits for them.
    """
    num_threads = num_threads or os.cpu_count() or 1
    is_local = isinstance(engine.store, LocalStore)
    group_files = _LOCAL_FILES if is_local else min(_GROUP_FILES, max(1, in_flight // 4))
    group_bytes = min(_LOCAL_BYTES if is_local else _GROUP_BYTES, max_bytes // 4)
    max_files = _LOCAL_GROUPS * num_threads * group_files if is_local else 2 * in_flight
    window = _Window(engine, make, max_files=max_files, max_bytes=max_bytes)
    if is_local and num_threads == 1:
        for group in _groups(files, max_files=group_files, max_bytes=group_bytes):
            for item in await window.make(group):
                yield item
        return
    with ThreadPoolExecutor(num_threads, "import-verify") as threads:
        try:
            for group in _groups(files, max_files=group_files, max_bytes=group_bytes):
                num_bytes = sum(0 if isinstance(file, ImportProblem) else file.size for file in group)
                num_files = group_files if is_local else len(group)
                while not window.has_room(num_files, num_bytes):
                    for item in await window.take():
                        yield item
                window.start(group, num_files, num_bytes, threads)
            while not window.is_empty:
                for item in await window.take():
                    yield item
        finally:
            await window.close()


class _Window(Generic[File]):
    """The groups of files that are fetched ahead, in order. A group is one task, because each hand-over costs time."""

    def __init__(
        self, engine: FetchEngine, make: Callable[[File, bytes], Item], *, max_files: int, max_bytes: int
    ) -> None:
        self._engine = engine
        self._make = make
        self._max_files = max_files
        self._max_bytes = max_bytes
        self._running: deque[tuple[asyncio.Task[list[Item]], int, int]] = deque()
        self._num_files = 0
        self._num_bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self._running

    def has_room(self, num_files: int, num_bytes: int) -> bool:
        fits = self._num_files + num_files <= self._max_files and self._num_bytes + num_bytes <= self._max_bytes
        return fits or not self._running

    def start(
        self, group: list[File | ImportProblem], num_files: int, num_bytes: int, threads: ThreadPoolExecutor
    ) -> None:
        self._running.append((asyncio.create_task(self._import(group, threads)), num_files, num_bytes))
        self._num_files += num_files
        self._num_bytes += num_bytes

    async def take(self) -> list[Item]:
        """Returns the items of the oldest group."""
        items = await self._running[0][0]
        _, num_files, num_bytes = self._running.popleft()
        self._num_files -= num_files
        self._num_bytes -= num_bytes
        return items

    async def make(self, group: list[File | ImportProblem]) -> list[Item]:
        """Returns the items of a group, made on the calling thread: cheaper than a hand-over to another one."""
        return await self._import(group, None)

    async def close(self) -> None:
        """Cancels what is running, and waits for it."""
        tasks = [task for task, _, _ in self._running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _import(self, group: list[File | ImportProblem], threads: ThreadPoolExecutor | None) -> list[Item]:
        loop = asyncio.get_running_loop()
        found: list[bytes | ImportProblem | None] = [None] * len(group)
        items: list[Item | None] = [None] * len(group)
        if isinstance(self._engine.store, LocalStore):
            # Read and made by one thread: a second hand-over would cost more than reading a small file.
            if threads is None:
                items = self._make_local(self._engine.store, group)
            else:
                items = await loop.run_in_executor(threads, self._make_local, self._engine.store, group)
        missing = [place for place, item in enumerate(items) if item is None]
        if missing:

            async def fetch(place: int) -> None:
                found[place] = await self._fetch(group[place])

            await map_concurrently(fetch, missing)
            await loop.run_in_executor(threads, self._make_fetched, group, found, items)
        return cast("list[Item]", items)

    async def _fetch(self, file: File | ImportProblem) -> bytes | ImportProblem:
        if isinstance(file, ImportProblem):
            return file
        if file.size > MAX_FILE_BYTES:
            return ImportProblem(name=file.key, reason=f"larger than {format_size(MAX_FILE_BYTES)}")
        try:
            result = await self._engine.fetch(file.key, 0, file.size, object_size=file.size)
        except (NotFound, ObjectChanged, InvalidRange) as error:
            return ImportProblem(name=file.key, reason=f"it was removed or replaced meanwhile: {error.what}")
        except ConfigurationError as error:
            return ImportProblem(name=file.key, reason=error.what)
        return bytes(result.data)

    def _make_local(self, store: LocalStore, group: list[File | ImportProblem]) -> list[Item | None]:
        """Reads files of the local drive and makes items; None for a file whose error the engine shall report."""
        items: list[Item | None] = [file if isinstance(file, ImportProblem) else None for file in group]
        wanted = [
            (place, file)
            for place, file in enumerate(group)
            if not isinstance(file, ImportProblem) and file.size <= MAX_FILE_BYTES
        ]
        found = store.read_together([(file.key, file.size) for _, file in wanted])
        for (place, file), data in zip(wanted, found, strict=True):
            if data is not None and len(data) == file.size:
                items[place] = self._make(file, data)
        return items

    def _make_fetched(
        self, group: list[File | ImportProblem], found: list[bytes | ImportProblem | None], items: list[Item | None]
    ) -> None:
        for place, data in enumerate(found):
            if data is not None:
                items[place] = data if isinstance(data, ImportProblem) else self._make(cast("File", group[place]), data)


def _groups(
    files: Iterable[File | ImportProblem], *, max_files: int, max_bytes: int
) -> Iterator[list[File | ImportProblem]]:
    """Yields runs of consecutive files: at most ``max_files``, and ``max_bytes`` or a single larger file."""
    group: list[File | ImportProblem] = []
    num_bytes = 0
    for file in files:
        size = 0 if isinstance(file, ImportProblem) else file.size
        if group and (len(group) >= max_files or num_bytes + size > max_bytes):
            yield group
            group, num_bytes = [], 0
        group.append(file)
        num_bytes += size
    if group:
        yield group
