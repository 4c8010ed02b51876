"""Detects resource leaks of a block of code: threads, open descriptors, pending asyncio tasks."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["no_leaks"]

_DEADLINE_S = 5.0
_POLL_S = 0.01
_BEFORE_COLLECTION_S = 0.5  # most threads and descriptors end by themselves, sooner than all objects are examined
_DESCRIPTORS = Path("/proc/self/fd")
# Threads of an event loop's default executor end with the loop, which a test does not own.
_LOOP_THREADS = "asyncio_"
# Devices are opened once and kept by libraries; event queues of native runtimes never close. A loop that leaks shows by
# its socket pair.
_KEPT = ("anon_inode:", "/dev/")
# The blocks that are open; the outermost freezes the objects that are older.
_blocks: list[None] = []


@contextmanager
def no_leaks(*, deadline_s: float = _DEADLINE_S) -> Iterator[None]:
    """Fails if the ``with`` block leaves new threads, descriptors or pending tasks.

    Code that allocates something once per process (a native runtime, a cached client) must run once before the block.
    Descriptors are checked only on Linux. Objects that `gc.freeze` has frozen are not frozen after the block.

    Args:
        deadline_s: Seconds that resources may take to end after the block.

    Raises:
        AssertionError: Something is left; the message names it. An exception of the block takes precedence.

    Example:
        >>> from concurrent_loader.storage.testing import no_leaks
        >>> with no_leaks():
        ...     open("photos.txt", "w").close()
    """
    threads = weakref.WeakSet(threading.enumerate())
    descriptors = _descriptors()

    def is_left() -> bool:
        return bool(_new_threads(threads) or _descriptors() - descriptors)

    # A process has millions of objects. Objects older than the block are frozen during the block, so that the garbage
    # collector examines only the block's own objects. To freeze costs nothing; to count what is frozen does.
    if not _blocks:
        gc.freeze()
    _blocks.append(None)
    try:
        tasks = weakref.WeakSet(_pending_tasks())
        yield
        gc.collect()
        new_tasks = weakref.WeakSet(task for task in _pending_tasks() if task not in tasks)
        deadline = time.monotonic() + deadline_s
        _wait_while(is_left, min(deadline, time.monotonic() + _BEFORE_COLLECTION_S))
    finally:
        _blocks.pop()
        if not _blocks:
            gc.unfreeze()
    if new_tasks or is_left():
        gc.collect()  # garbage may refer to older objects
        _wait_while(is_left, deadline)
    left = [f"thread {thread.name!r}" for thread in _new_threads(threads)]
    left += [f"descriptor {target}" for target in (_descriptors() - descriptors).elements()]
    left += [f"task {task.get_name()!r} in {task.get_coro()!r}" for task in new_tasks if _is_pending(task)]
    if left:
        raise AssertionError(f"left behind: {', '.join(left)}")


def _wait_while(condition: Callable[[], bool], deadline: float) -> None:
    while condition() and time.monotonic() <= deadline:
        time.sleep(_POLL_S)


def _new_threads(known: weakref.WeakSet[threading.Thread]) -> list[threading.Thread]:
    return [
        thread for thread in threading.enumerate() if thread not in known and not thread.name.startswith(_LOOP_THREADS)
    ]


def _descriptors() -> Counter[str]:
    """Counts the open descriptors of each file, pipe and socket."""
    if not _DESCRIPTORS.exists():
        return Counter()
    found: Counter[str] = Counter()
    for number in os.listdir(_DESCRIPTORS):  # noqa: PTH208 -- the listing itself holds one descriptor open
        try:
            target = os.readlink(_DESCRIPTORS / number)  # noqa: PTH115 -- most targets are not paths
        except FileNotFoundError:
            continue
        if not target.startswith((*_KEPT, "/proc/")):
            found[target] += 1
    return found


def _pending_tasks() -> list[asyncio.Task[object]]:
    """Returns the pending tasks of all event loops, frozen objects excepted; asyncio lists only those of one loop."""
    current = _current_task()
    # type() is used because isinstance() would wake lazy proxies among all objects.
    tasks = [thing for thing in gc.get_objects() if issubclass(type(thing), asyncio.Task)]
    return [task for task in tasks if _is_pending(task) and task is not current]


def _is_pending(task: asyncio.Task[object]) -> bool:
    return not task.done() and not task.get_loop().is_closed()


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
