"""Fetches many small files ahead, makes samples from them on threads, and yields these in order."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from concurrent_loader.storage.errors import ConfigurationError, InvalidRange, NotFound, ObjectChanged
from concurrent_loader.storage.fetch import FetchEngine
from concurrent_loader.storage.importers.protocol import ImportedSample, ImportProblem
from concurrent_loader.storage.sizes import format_size

__all__ = ["MAX_FILE_BYTES", "WantedFile", "fetch_in_order"]

MAX_FILE_BYTES = 512 << 20


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
            others are fetched.
        max_bytes: Upper bound of the bytes of fetched files; a single larger file is fetched alone.
        num_threads: Number of threads that make items; one per core by default.

    Cancellation: Closing the generator cancels the running fetches and waits for them.
    """
    ahead: deque[tuple[asyncio.Task[Item] | ImportProblem, int]] = deque()
    ahead_bytes = 0
    with ThreadPoolExecutor(num_threads or os.cpu_count(), "import-verify") as threads:
        try:
            for file in files:
                size = 0 if isinstance(file, ImportProblem) else file.size
                while ahead and (len(ahead) >= 2 * in_flight or ahead_bytes + size > max_bytes):
                    task, done_bytes = ahead.popleft()
                    ahead_bytes -= done_bytes
                    yield task if isinstance(task, ImportProblem) else await task
                if isinstance(file, ImportProblem):
                    ahead.append((file, 0))
                else:
                    ahead.append((asyncio.create_task(_import(engine, file, make, threads)), size))
                ahead_bytes += size
            while ahead:
                task, _ = ahead.popleft()
                yield task if isinstance(task, ImportProblem) else await task
        finally:
            tasks = [task for task, _ in ahead if not isinstance(task, ImportProblem)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _import(
    engine: FetchEngine, file: File, make: Callable[[File, bytes], Item], threads: ThreadPoolExecutor
) -> Item:
    if file.size > MAX_FILE_BYTES:
        return ImportProblem(name=file.key, reason=f"larger than {format_size(MAX_FILE_BYTES)}")
    try:
        result = await engine.fetch(file.key, 0, file.size, object_size=file.size)
    except (NotFound, ObjectChanged, InvalidRange) as error:
        return ImportProblem(name=file.key, reason=f"it was removed or replaced meanwhile: {error.what}")
    except ConfigurationError as error:
        return ImportProblem(name=file.key, reason=error.what)
    return await asyncio.get_running_loop().run_in_executor(threads, make, file, bytes(result.data))
