"""Writes the parts of an import on this machine: one after another in this process, or in several processes."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from concurrent_loader.storage.errors import StorageError
from concurrent_loader.storage.importers.ingest_plan import IngestPart, WrittenPart
from concurrent_loader.storage.importers.item_run import IngestProgress
from concurrent_loader.storage.importers.made_part import MadePart, make_part
from concurrent_loader.storage.stores.backends.open_store import open_store
from concurrent_loader.storage.stores.store import Store

__all__ = ["PartTarget", "write_in_processes", "write_in_turn"]

_ALWAYS = nullcontext()
_AHEAD = 4  # runs of parts per process that wait or run, so that a slow one does not stop the others
_MAX_RUN = 8  # parts in a row for one process; fewer towards the end, so that all processes end together
_MAX_CRASHES = 5  # in a row, without a finished part between them


@dataclass(frozen=True, slots=True)
class PartTarget:
    """Where the parts go.

    Attributes:
        url: URL of the dataset.
        client: Client library of its store.
        storage_options: Options of its store.
        uploads_in_flight: Upper bound of concurrent uploads of a part. A process ends one part while it makes the next.
        resume: Whether parts that are written already are left as they are.
    """

    url: str | os.PathLike[str]
    client: str = "auto"
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)
    uploads_in_flight: int = 4
    resume: bool = True

    def open(self) -> Store:
        """Opens the store of the dataset."""
        return open_store(self.url, client=self.client, **self.storage_options)

    def write(
        self,
        part: IngestPart,
        on_progress: Callable[[IngestProgress], None] | None = None,
        *,
        making: AbstractContextManager[object] = _ALWAYS,
    ) -> WrittenPart:
        """Writes a part in this process, unless it is written already; see `write_part`."""
        return self.make(part, on_progress, making=making).finish()

    def make(
        self,
        part: IngestPart,
        on_progress: Callable[[IngestProgress], None] | None = None,
        *,
        making: AbstractContextManager[object] = _ALWAYS,
    ) -> MadePart:
        """Makes the samples of a part in this process; see `make_part`."""
        return make_part(
            part, self.url, uploads_in_flight=self.uploads_in_flight, client=self.client,
            storage_options=self.storage_options, resume=self.resume, on_progress=on_progress, making=making,
        )  # fmt: skip

    def write_run(self, parts: Sequence[IngestPart]) -> list[WrittenPart]:
        """Writes some parts in this process. While the last uploads of one end, the samples of the next are made."""
        making = threading.Lock()
        with ThreadPoolExecutor(min(2, len(parts)), "import-part") as threads:
            return list(threads.map(partial(self.write, making=making), parts))


def write_in_turn(
    parts: Iterable[IngestPart], target: PartTarget, on_progress: Callable[[IngestProgress], None]
) -> Generator[WrittenPart, None, None]:
    """Writes parts in this process, and yields their results in order.

    The next part is made on the calling thread while the last uploads of a part end. Closing the generator cancels
    uploads.

    Args:
        parts: Parts to write.
        target: Where the parts go.
        on_progress: Callback for progress since the last result, called on the calling thread.

    Raises:
        CorruptData: A file cannot be imported (``on_error="fail"``).
        StorageError: The store failed. The error of the earliest part is raised.
    """
    ending: deque[tuple[MadePart, Future[WrittenPart]]] = deque()

    def report(now: IngestProgress) -> None:
        for made, _ in ending:
            now = now + made.progress
        on_progress(now)

    with ThreadPoolExecutor(1, "import-part") as threads:
        try:
            for part in parts:
                try:
                    made = target.make(part, report)
                except Exception:
                    for _, end in ending:
                        end.result()
                    raise
                ending.append((made, threads.submit(made.finish)))
                while len(ending) > 1:
                    yield _oldest(ending)
            while ending:
                yield _oldest(ending)
        finally:
            for made, _ in ending:
                made.cancel()


def _oldest(ending: deque[tuple[MadePart, Future[WrittenPart]]]) -> WrittenPart:
    written = ending[0][1].result()
    ending.popleft()  # after the wait, because an interrupted wait cancels what is in the queue
    return written


def write_in_processes(
    parts: Iterable[IngestPart], target: PartTarget, *, num_workers: int
) -> Generator[WrittenPart, None, None]:
    """Yields the results of the parts in their order.

    A part of a process that was killed is written again by another one. Closing the generator ends the processes at
    once; the finished parts have records.

    Raises:
        StorageError: Processes die again and again without finishing a part; or the error of a part.
    """
    waiting = deque(parts)
    running: deque[tuple[list[IngestPart], Future[list[WrittenPart]]]] = deque()
    crashes = 0
    pool = _Pool(min(num_workers, max(1, len(waiting))))
    try:
        while waiting or running:
            try:
                while waiting and len(running) < _AHEAD * num_workers:
                    run = list(itertools.islice(waiting, max(1, min(_MAX_RUN, len(waiting) // (4 * num_workers)))))
                    running.append((run, pool.submit(target, run)))
                    for _ in run:
                        waiting.popleft()
                written = running[0][1].result()
            except BrokenProcessPool as error:
                crashes += 1
                if crashes > _MAX_CRASHES:
                    raise StorageError(
                        "worker processes end unexpectedly, perhaps for lack of memory: pass fewer workers; the parts "
                        "that are written are kept, and another run continues with them"
                    ) from error
                pool.close()
                waiting.extendleft(part for run, _ in reversed(running) for part in reversed(run))
                running.clear()
                pool = _Pool(min(num_workers, len(waiting)))
                continue
            crashes = 0
            running.popleft()
            yield from written
    finally:
        pool.close()


class _Pool:
    """Processes that end when the pool is closed, and when this process ends in whatever way."""

    def __init__(self, num_workers: int) -> None:
        # Not fork: the event loop and the connections of this process are of no use in a child.
        context = multiprocessing.get_context("spawn")
        self._reader, self._alive = context.Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(
            num_workers, mp_context=context, initializer=_begin, initargs=(self._reader,)
        )

    def submit(self, target: PartTarget, run: list[IngestPart]) -> Future[list[WrittenPart]]:
        """Starts a run of parts."""
        return self._executor.submit(target.write_run, run)

    def close(self) -> None:
        """Ends the processes, in the middle of a part if need be."""
        self._alive.close()
        self._executor.shutdown(cancel_futures=True)
        self._reader.close()


def _begin(alive: Connection) -> None:
    """Begins a worker process: Ctrl-C is the affair of the parent, whose end closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(alive,), name="import-parent-watch", daemon=True).start()


def _watch(alive: Connection) -> None:
    try:
        alive.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)
