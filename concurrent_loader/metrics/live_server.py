"""Answers `concurrent-loader top`: a Unix socket for each process that iterates over a loader.

A thread of its own serves the socket, because a loop that is stuck is what people want to look at, and because the
drop-in has no loop. It sleeps until somebody connects, and wakes every two seconds to note the counters, so that an
answer can say where the last 30 s went. Thread and socket exist while an iteration runs. If they cannot be made, the
training goes on without them.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from concurrent_loader.metrics.live_socket import VERSION, listen, runtime_folder, sweep
from concurrent_loader.metrics.running import Iterations, Listener, Place, RunningIteration, iterations
from concurrent_loader.stats.loader_stats import LoaderStats
from concurrent_loader.stats.pipeline_status import PipelineStatus
from concurrent_loader.storage.errors import StorageError
from concurrent_loader.storage.fork_safety import register_fork_handler
from concurrent_loader.storage.printable import printable
from concurrent_loader.storage.redaction import redact

__all__ = ["LiveServer", "answer", "describe", "server", "track", "untrack"]

_log = logging.getLogger(__name__)

WINDOW_S = 30.0
_NOTE_S = 2.0
_SEND_S = 1.0
_PAUSE_S = 0.1  # a connection that cannot be accepted stays ready
_JOIN_S = 1.0  # an epoch does not wait for somebody who reads slowly


class History:
    """The counters of one iteration over the last 30 s.

    Args:
        iteration: Iteration to note the counters of.
        clock: Function that returns monotonic seconds.
    """

    def __init__(self, iteration: RunningIteration, clock: Callable[[], float] = time.monotonic) -> None:
        self._iteration = iteration
        self._clock = clock
        self._notes: deque[tuple[float, dict[str, float]]] = deque()
        self._lock = threading.Lock()
        self.note()

    def note(self) -> tuple[float, dict[str, float]]:
        """Notes the counters as they are now."""
        now_s, stats = self._clock(), self._iteration.loader.stats
        counters = _counters(stats, self._iteration)
        with self._lock:
            self._notes.append((now_s, counters))
            while len(self._notes) > 1 and now_s - self._notes[1][0] >= WINDOW_S:
                self._notes.popleft()
        return now_s, counters

    def window(self) -> dict[str, float]:
        """Returns what was added since the oldest note, at most about 30 s ago, and ``seconds``, the time since."""
        now_s, counters = self.note()
        with self._lock:
            then_s, before = self._notes[0]
        return {"seconds": now_s - then_s, **{name: max(0.0, counters[name] - before[name]) for name in counters}}


def _counters(stats: LoaderStats, iteration: RunningIteration) -> dict[str, float]:
    """Returns the counters whose changes are shown. Time that is not counted yet counts for its probable cause."""
    names = [name for name in LoaderStats.__slots__ if name.endswith("_s") and name != "first_batch_s"]
    found = {name: float(getattr(stats, name)) for name in names}
    found |= {"num_batches": stats.num_batches, "num_samples": stats.num_samples}
    found |= {"num_bytes": stats.fetch.num_bytes, "num_gets": stats.fetch.num_gets}
    category, seconds = iteration.pending()
    if category:
        batch = iteration.status().batch if category == "wait" else None
        found["total_s"] += seconds
        found[f"{category}_s"] += seconds
        if category == "wait":
            found[f"wait_{batch.cause if batch else 'other'}_s"] += seconds
    return found


def answer(histories: dict[RunningIteration, History]) -> dict[str, Any]:
    """Returns what a process tells about its loaders: plain values for JSON, without secrets."""
    loaders = [describe(each, history) for each, history in histories.items() if each.loader is not None]
    program = " ".join(Path(part).name for part in sys.argv[:1])
    told = {"version": VERSION, "pid": os.getpid(), "program": program, "time_s": time.time(), "loaders": loaders}
    safe: dict[str, Any] = _safe(told)
    return safe


def describe(iteration: RunningIteration, history: History) -> dict[str, Any]:
    """Returns what is told about one loader."""
    loader, status = iteration.loader, iteration.status()
    return {
        "loader": type(loader).__name__,
        "dataset": _dataset_name(loader),
        "rank": getattr(loader, "rank", 0),
        "world_size": getattr(loader, "world_size", 1),
        **asdict(iteration.place()),
        "state": iteration.pending()[0],
        "window": history.window(),
        "stages": {**asdict(status), "buffer_share": status.buffer_share},
        "stats": loader.stats.to_dict(),
    }


def _dataset_name(loader: Any) -> str:
    dataset = getattr(loader, "dataset", None)
    url = getattr(dataset, "url", None)
    return f"{type(dataset).__name__} {url}" if isinstance(url, str) else type(dataset).__name__


def _safe(value: Any) -> Any:
    match value:
        case str():
            return printable(redact(value))
        case dict():
            return {name: _safe(each) for name, each in value.items()}
        case list() | tuple():
            return [_safe(each) for each in value]
        case _:
            return value


class LiveServer(Listener):
    """Serves the socket of this process while iterations run.

    Args:
        running: Iterations of this process.
        folder: Folder for the socket; None for the user's runtime folder.
    """

    def __init__(self, running: Iterations, folder: Path | None = None) -> None:
        self._running = running
        self._folder = folder
        self._lock = threading.RLock()
        self._histories: dict[RunningIteration, History] = {}
        self._socket: socket.socket | None = None
        self._path: Path | None = None
        self._thread: threading.Thread | None = None
        self._has_swept = False
        running.listeners.append(self)
        register_fork_handler(self)

    def after_fork_in_child(self) -> None:
        """Closes the child's copy of the socket, whose file belongs to the parent."""
        self._lock = threading.RLock()
        inherited, self._socket = self._socket, None
        self._path, self._thread, self._histories = None, None, {}
        if inherited is not None:
            inherited.close()

    def began(self, iteration: RunningIteration) -> None:
        """Starts the thread for the first iteration."""
        try:
            with self._lock:
                self._histories[iteration] = History(iteration)
                if self._thread is None:
                    self._start()
        except (OSError, RuntimeError, StorageError) as error:  # no folder, no descriptor, no thread
            _log.debug("`concurrent-loader top` will not see this process: %s", error)

    def ended(self, iteration: RunningIteration) -> None:
        """Ends the thread after the last iteration."""
        with self._lock:
            self._histories.pop(iteration, None)
            if self._histories:
                return
            thread = self._stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_S)

    def history(self, iteration: RunningIteration) -> History:
        """Returns the counters of an iteration over the last 30 s."""
        with self._lock:
            return self._histories.get(iteration) or History(iteration)

    def close(self) -> None:
        """Removes the socket, at the end of the process."""
        with self._lock:
            self._stop()

    def _start(self) -> None:
        self._socket, self._path = listen(runtime_folder() if self._folder is None else self._folder)
        thread = threading.Thread(target=self._serve, args=(self._socket,), name="loader-top", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._stop()
            raise
        self._thread = thread

    def _stop(self) -> threading.Thread | None:
        listening, self._socket = self._socket, None
        thread, self._thread = self._thread, None
        if listening is not None and self._path is not None:
            with suppress(OSError):  # somebody has cleaned the folder
                self._path.unlink()
            with suppress(OSError):  # it was closed already
                listening.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes it
            if thread is None:
                listening.close()
        return thread

    def _serve(self, listening: socket.socket) -> None:
        path = self._path
        if not self._has_swept and path is not None:
            self._has_swept = True
            sweep(path.parent)
        # A timeout of the socket itself would not do: after `shutdown`, `accept` with a timeout would spin.
        listening.setblocking(False)
        poll = select.poll()
        poll.register(listening, select.POLLIN)
        next_s = time.monotonic() + _NOTE_S
        with listening:
            while listening is self._socket:
                is_ready = poll.poll(max(0.0, next_s - time.monotonic()) * 1000)
                if listening is not self._socket:
                    return
                if is_ready:
                    try:
                        self._reply(listening.accept()[0])
                    except OSError:  # the other side is gone, or this process has no descriptor left
                        time.sleep(_PAUSE_S)
                else:
                    next_s = time.monotonic() + _NOTE_S
                    self._note()

    def _note(self) -> None:
        for history in list(self._histories.values()):
            try:
                history.note()
            except (AttributeError, RuntimeError, StorageError) as error:
                _log.debug("the counters of a loader that is ending cannot be read: %s", error)

    def _reply(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(_SEND_S)
            try:
                connection.sendall(json.dumps(answer(dict(self._histories))).encode())
            except (AttributeError, OSError, RuntimeError, StorageError) as error:
                _log.debug("`concurrent-loader top` got no answer: %s", error)


server = LiveServer(iterations)
atexit.register(server.close)


def track(
    loader: Any,
    *,
    place: Callable[[], Place],
    status: Callable[[], PipelineStatus] = PipelineStatus,
    pending: Callable[[], tuple[str, float]],
) -> RunningIteration:
    """Makes an iteration known to metrics and to `concurrent-loader top`, until `untrack`. Raises nothing.

    Args:
        loader: Loader, which is not kept alive.
        place: Function that returns the position.
        status: Function that returns the fill levels; default all zero.
        pending: Function that returns what the present moment counts for, and the seconds not yet counted.
    """
    return iterations.begin(RunningIteration(loader, place=place, status=status, pending=pending))


def untrack(iteration: RunningIteration) -> None:
    """Ends what `track` began. Idempotent."""
    iterations.end(iteration)
