"""Records what a loader delivers: appends a line per step to a log, just before the consumer gets the batch.

A written line outlives a killed process. Lines that follow another one within `HOLD_S` are held and written together,
because hashing and writing cost a tenth of that for many lines at once. Before a state is saved all lines are written
and flushed to the drive. So a state never names a step that the log does not have.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.batch.batch import Batch
from concurrent_loader.datasets.protocol import LoadableDataset
from concurrent_loader.errors import LoaderError
from concurrent_loader.order.options import PlanOptions
from concurrent_loader.recorder.log_format import (
    FIRST_HEAD,
    Begin,
    End,
    Line,
    Repair,
    Session,
    Step,
    next_head,
    parse_line,
)
from concurrent_loader.recorder.order_file import encode_order, write_order
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["FlightRecorder", "RecordedIteration", "log_name", "start_record", "write_held"]

_TAIL_BYTES = 1 << 16
HOLD_S = 0.05  # how long lines are held; a killed process may lose the lines of that time


def log_name(rank: int) -> str:
    """Returns the name of a rank's log."""
    return f"rank-{rank:05d}.log"


class FlightRecorder:
    """Writes the log of one rank. `concurrent_loader.NativeDataLoader` makes it for ``recorder="runs/7"``.

    Nothing is created before the first batch.

    Args:
        folder: Folder of the run, which all ranks and all later processes of the run share.
        rank: Rank of this process.
        world_size: Number of ranks.

    Attributes:
        head: Head of the hash chain at the loader's position, for its state; None before the first batch of a run.

    Thread-safety: For the consumer's thread only.

    Example:
        >>> from concurrent_loader import NativeDataLoader, ShardDataset
        >>> from concurrent_loader.recorder import prove
        >>> loader = NativeDataLoader(ShardDataset("photos"), batch_size=8, shuffle=True, recorder="runs/7")
        >>> for batch in loader: pass
        >>> prove("runs/7").epochs[0].num_delivered
        20
    """

    def __init__(self, folder: str | os.PathLike[str], rank: int, world_size: int) -> None:
        self._folder = Path(folder).expanduser().absolute()
        self._rank, self._world_size = rank, world_size
        self.head: str | None = None
        self._parent = "new"  # of the next iteration
        self._moved = False  # whether the newest iteration has appended lines since `head` was set
        self._log: _Log | None = None
        self._current: RecordedIteration | None = None  # iteration of the log's last line
        self._newest: RecordedIteration | None = None

    def restored(self, head: str | None) -> None:
        """Notes that the loader has restored a state, with its head."""
        self.head, self._parent, self._moved = head, head or "none", False

    def iteration(self, dataset: LoadableDataset, options: PlanOptions, epoch: int, step: int) -> RecordedIteration:
        """Returns the record of an iteration that begins now."""
        self._newest = RecordedIteration(self, dataset, options, epoch, step, self._parent)
        self._parent = "new"
        return self._newest

    def saved_head(self) -> str | None:
        """Returns the head for a state, and flushes the log to the drive."""
        if self._log is not None:
            self._settle(self._log)
            self._log.flush()
        return self.head

    def _settle(self, log: _Log) -> None:
        """Writes the held lines, and notes the head of the newest iteration."""
        log.write()
        if self._moved:
            self.head, self._moved = log.head, False

    def append(self, iteration: RecordedIteration, line: Line, *numbers: Any, num_padded: int = 0) -> None:
        """Appends a line of an iteration.

        Raises:
            LoaderError: The line cannot be written.
            ConfigurationError: Another process writes the log, or the file is not a log.
        """
        if self._log is None or self._log.pid != os.getpid():
            self._log = _Log(self._folder / log_name(self._rank), Session(self._rank, self._world_size, time.time()))
            self._current, self._moved = None, False
            weakref.finalize(self, self._log.close)
        if self._current is not iteration:
            self._settle(self._log)
            self._log.append(iteration.begin(self._folder))
            self._current = iteration
        self._log.append(line, *numbers, num_padded=num_padded)
        self._moved |= iteration is self._newest


def start_record(
    recorder: FlightRecorder | None, dataset: LoadableDataset, options: PlanOptions, epoch: int, step: int
) -> RecordedIteration | None:
    """Returns the record of an iteration that begins now; None without a recorder."""
    return None if recorder is None else recorder.iteration(dataset, options, epoch, step)


class RecordedIteration:
    """Records one iteration of a loader."""

    def __init__(
        self,
        recorder: FlightRecorder,
        dataset: LoadableDataset,
        options: PlanOptions,
        epoch: int,
        step: int,
        parent: str,
    ) -> None:
        self._recorder = recorder
        self._dataset, self._options = dataset, options
        self._epoch, self._step, self._parent = epoch, step, parent
        self._order: str | None = None

    def begin(self, folder: Path) -> Begin:
        """Returns the line for the beginning, or for the continuation after another iteration's lines."""
        if self._order is None:
            self._order = write_order(folder, encode_order(self._dataset, self._options, self._epoch))
        parent, self._parent = self._parent, "new"
        return Begin(self._epoch, self._step, self._order, parent)

    def deliver(self, batch: Any, failed: Sequence[int] | None) -> None:
        """Records a batch, just before it is delivered.

        Args:
            batch: The batch.
            failed: Numbers of the samples that were skipped or replaced; None for a batch as planned.
        """
        if not isinstance(batch, Batch) or not len(batch.sample_ids):
            self._recorder.append(self, Step(self._step, None))
        else:
            ids, sources, padded = batch.sample_ids.numpy(), batch.sources.numpy(), batch.num_padded
            count = len(ids) - padded
            if failed is not None:
                repair = Repair(list(failed), ids.tolist(), padded, sources.tolist())
                self._recorder.append(self, Step(self._step, count, repair))
            else:
                self._recorder.append(self, Step(self._step, count), ids, sources, num_padded=padded)
        self._step += 1

    def end(self) -> None:
        """Records the end of the epoch."""
        self._recorder.append(self, End(self._epoch))


class _Log:
    """An open log. Its file is locked, because lines of two processes would break the chain."""

    def __init__(self, path: Path, session: Session) -> None:
        self.pid = os.getpid()
        self._path = path
        self._closed = False
        self._held: list[tuple[Line, list[npt.NDArray[np.int64]], int]] = []
        self._written_at = -math.inf
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            older = _open_logs.get(path)
            if older is not None and older.pid == self.pid:
                older.close()  # of a loader that this process has replaced, perhaps not collected as garbage yet
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _taken(path) from None
            _open_logs[path] = self
            self.head, torn = self._read_tail()
            self.append(Session(session.rank, session.world_size, session.time, torn))
        except BaseException:
            self.close()
            raise

    def append(self, line: Line, *numbers: npt.NDArray[np.int64], num_padded: int = 0) -> None:
        """Appends a line. A line that cannot be written is not part of the log; lines that were held before it are."""
        if self._closed:
            raise _taken(self._path)
        self._held.append((line, [array.copy() for array in numbers], num_padded))
        if isinstance(line, Step) and time.monotonic() < self._written_at + HOLD_S:
            return
        try:
            self.write()
        except LoaderError:
            self._held.pop()
            raise

    def write(self) -> None:
        """Writes the held lines to the operating system."""
        if not self._held:
            return
        head, lines = self.head, []
        for line, numbers, num_padded in self._held:
            text = line.text()
            head = next_head(head, text, *numbers, num_padded=num_padded)
            lines.append(f"{text} {head}\n")
        data = "".join(lines).encode()
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                # The next line must not continue this one, if somebody catches the error and goes on.
                os.ftruncate(self._fd, self._end)
                raise OSError(f"{written} of {len(data)} bytes were written")
        except OSError as error:
            raise LoaderError(
                f"the flight recorder cannot write to {self._path}: {error}; free some space, or leave recorder= out",
                stage="recorder",
            ) from error
        self.head = head
        self._end += len(data)
        self._held.clear()
        self._written_at = time.monotonic()

    def flush(self) -> None:
        if not self._closed:
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Writes the held lines and closes the file, also when the recorder is collected as garbage or Python ends.

        The file is unlocked first: a forked child holds the lock, too, until its copy of the file is closed.
        """
        if self._closed:
            return
        try:
            if self.pid == os.getpid():
                self.write()
        finally:
            self._closed = True
            self._held.clear()
            if self.pid == os.getpid():
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)

    def _read_tail(self) -> tuple[str, int]:
        """Cuts off an incomplete last line; returns the head of the last complete one, and the bytes cut off."""
        size = os.fstat(self._fd).st_size
        data, start = b"", size
        while start and data.count(b"\n") < 2:
            step = min(start, _TAIL_BYTES)
            start -= step
            data = os.pread(self._fd, step, start) + data
        complete = data[: data.rfind(b"\n") + 1]
        torn = len(data) - len(complete)
        self._end = size - torn
        if torn:
            os.ftruncate(self._fd, self._end)
        if not complete:
            return FIRST_HEAD, torn
        last = complete[:-1].rpartition(b"\n")[2]
        try:
            return parse_line(last.decode("ascii"))[1], torn
        except ValueError as error:
            raise ConfigurationError(
                f"the file is not the log of a flight recorder, or is damaged ({error}); record to another folder",
                got=str(self._path),
            ) from error


def write_held(folder: Path) -> None:
    """Writes the lines that loaders of this process hold for the logs in a folder."""
    for path, log in list(_open_logs.items()):
        if path.parent == folder and log.pid == os.getpid():
            log.write()


_open_logs: weakref.WeakValueDictionary[Path, _Log] = weakref.WeakValueDictionary()


def _taken(path: Path) -> ConfigurationError:
    return ConfigurationError(
        "another loader records this rank in the same folder; give each run and each loader a folder of its own, and "
        "pass rank and world_size where there are several processes", got=str(path),
    )  # fmt: skip
