"""Writes the parts of an import on this machine, in this process and in others."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
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
from concurrent_loader.storage.redaction import redact
from concurrent_loader.storage.stores.backends.open_store import open_store
from concurrent_loader.storage.stores.store import Store

__all__ = ["PartTarget", "write_parts"]

_ALWAYS = nullcontext()
_AHEAD = 16  # runs per process that are not yielded yet, so that a slow one does not stop the others
_GIVEN = 3  # runs that another process has at a time: this process is busy with a part before it gives the next
_MAX_RUN = 8  # parts in a row for another process; fewer towards the end, so that all processes end together
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


@dataclass(slots=True)
class _Run:
    """Parts in a row that another process writes, or a part of this process, which has made it or failed to."""

    parts: list[IngestPart]
    written: Future[list[WrittenPart]]
    is_own: bool
    made: MadePart | None = None


def write_parts(
    parts: Iterable[IngestPart],
    target: PartTarget,
    on_progress: Callable[[IngestProgress], None],
    *,
    num_workers: int = 1,
) -> Generator[WrittenPart, None, None]:
    """Writes parts in this process and in others, and yields their results in order.

    This process makes parts on the calling thread, from the start, while the others import what they need; and it makes
    the next part while the last uploads of one end. A part of another process that was killed is written again. Closing
    the generator cancels uploads and ends the processes at once; the finished parts have records.

    Args:
        parts: Parts to write.
        target: Where the parts go.
        on_progress: Callback for progress of this process since the last result, called on the calling thread.
        num_workers: Number of processes, of which this is one.

    Raises:
        CorruptData: A file cannot be imported (``on_error="fail"``).
        StorageError: The store failed, or processes die again and again without finishing a part. The error of the
            earliest part is raised.
    """
    waiting, running = deque(parts), deque[_Run]()
    own: deque[_Run] = deque()  # of `running`, made here
    others = _OtherProcesses(target, min(num_workers, len(waiting)) - 1)

    def report(now: IngestProgress) -> None:
        for run in own:
            now = now + run.made.progress if run.made is not None else now
        on_progress(now)

    with ThreadPoolExecutor(1, "import-part") as threads:
        try:
            while waiting or running:
                others.hand_out(waiting, running)
                ending = [run.written for run in own if not run.written.done()]
                if running and (running[0].written.done() or not waiting):
                    written = others.result(running[0])
                    if written is not None:
                        # After the wait, because an interrupted wait cancels what is in the queues.
                        if running.popleft().is_own:
                            own.popleft()
                        yield from written
                elif len(ending) > 1 or len(running) >= _AHEAD * num_workers:
                    wait([*ending[:1], running[0].written], return_when=FIRST_COMPLETED)
                else:
                    own.append(_make_here(waiting, target, report, threads))
                    running.append(own[-1])
        finally:
            for run in own:
                if run.made is not None:
                    run.made.cancel()
            others.close()


def _make_here(
    waiting: deque[IngestPart],
    target: PartTarget,
    report: Callable[[IngestProgress], None],
    threads: ThreadPoolExecutor,
) -> _Run:
    """Makes the next part. After an error no more parts are begun, and the error waits for its turn."""
    part = waiting.popleft()
    try:
        made = target.make(part, report)
    except Exception as error:  # noqa: BLE001 - raised after the results of the parts before it
        waiting.clear()
        failed: Future[list[WrittenPart]] = Future()
        failed.set_exception(error)
        return _Run([part], failed, is_own=True)
    return _Run([part], threads.submit(lambda: [made.finish()]), is_own=True, made=made)


class _OtherProcesses:
    """The processes beside this one, which are replaced when they are killed."""

    def __init__(self, target: PartTarget, number: int) -> None:
        self._target = target
        self._number = number
        self._pool = _Pool(number) if number > 0 else None
        self._crashes = 0

    def hand_out(self, waiting: deque[IngestPart], running: deque[_Run]) -> None:
        """Gives the processes something to do, and again what was lost with one of them."""
        while self._pool is not None:
            try:
                for run in running:
                    if _is_lost(run):
                        run.written = self._pool.submit(self._target, run.parts)
                while waiting and self._needs_more(waiting, running):
                    number = max(1, min(_MAX_RUN, len(waiting) // (4 * (self._number + 1))))
                    parts = list(itertools.islice(waiting, number))
                    running.append(_Run(parts, self._pool.submit(self._target, parts), is_own=False))
                    for _ in parts:
                        waiting.popleft()
            except BrokenProcessPool as error:
                self._crashes += 1
                if self._crashes > _MAX_CRASHES:
                    raise StorageError(
                        "worker processes end unexpectedly, perhaps for lack of memory: pass fewer workers; the parts "
                        "that are written are kept, and another run continues with them"
                    ) from error
                self._pool.close()
                self._pool = _Pool(self._number)
            else:
                return

    def result(self, run: _Run) -> list[WrittenPart] | None:
        """Waits for the result of a run; returns None if its process was killed."""
        try:
            written = run.written.result()
        except BrokenProcessPool:
            if run.is_own:  # the source has processes of its own
                raise
            return None
        if not run.is_own:
            self._crashes = 0
        return written

    def close(self) -> None:
        """Ends the processes, in the middle of a part if need be."""
        if self._pool is not None:
            self._pool.close()

    def _needs_more(self, waiting: deque[IngestPart], running: deque[_Run]) -> bool:
        num_given = sum(not (run.is_own or run.written.done()) for run in running)
        # Fewer towards the end, so that all processes end together.
        return num_given < self._number * min(_GIVEN, 1 + len(waiting) // (self._number + 1))


def _is_lost(run: _Run) -> bool:
    written = run.written
    return (
        not run.is_own
        and written.done()
        and (written.cancelled() or isinstance(written.exception(), BrokenProcessPool))
    )


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
        return self._executor.submit(_write_run, target, run)

    def close(self) -> None:
        """Ends the processes, in the middle of a part if need be."""
        self._alive.close()
        self._executor.shutdown(cancel_futures=True)
        self._reader.close()


def _write_run(target: PartTarget, run: list[IngestPart]) -> list[WrittenPart]:
    """Writes parts in a worker process. An error that the parent could not unpickle would look like a killed worker."""
    try:
        return target.write_run(run)
    except Exception as error:  # noqa: BLE001 - of any kind
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
        except Exception:  # noqa: BLE001 - whatever the error's own class raises
            made = StorageError(redact(f"a worker process raised {type(error).__qualname__}: {error}"))
            made.add_note(redact("".join(traceback.format_exception(error))))
        else:
            raise
        raise made from None


def _begin(alive: Connection) -> None:
    """Begins a worker process: Ctrl-C is the affair of the parent, whose end closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(alive,), name="import-parent-watch", daemon=True).start()


def _watch(alive: Connection) -> None:
    try:
        alive.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)
