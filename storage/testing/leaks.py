"""What a block of code leaves behind: threads, open descriptors, asyncio tasks that nobody waits for."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["no_leaks"]

_DEADLINE_S = 5.0
_POLL_S = 0.01
_DESCRIPTORS = Path("/proc/self/fd")
# Threads of an event loop's default executor end with their loop, which a test does not own.
_LOOP_THREADS = "asyncio_"
# Devices are opened once and kept by libraries; event queues of native runtimes never close. A loop that leaks shows by
# its socket pair.
_KEPT = ("anon_inode:", "/dev/")


@contextmanager
def no_leaks(*, deadline_s: float = _DEADLINE_S) -> Iterator[None]:
    """Fails if the block leaves more threads, descriptors or pending tasks than it found.

    Use what makes something once per process (a native runtime, a cached client) once before the block. Descriptors are
    looked at on Linux only.

    Args:
        deadline_s: How long things that are ending already may take to end.

    Raises:
        AssertionError: Naming all that is left; not raised over an exception of the block itself.
    """
    threads = weakref.WeakSet(threading.enumerate())
    descriptors = _descriptors()
    tasks = weakref.WeakSet(_pending_tasks())
    yield
    deadline = time.monotonic() + deadline_s
    gc.collect()
    while _new_threads(threads) or _descriptors() - descriptors:
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    left = [f"thread {thread.name!r}" for thread in _new_threads(threads)]
    left += [f"descriptor {target}" for target in (_descriptors() - descriptors).elements()]
    left += [f"task {task.get_name()!r} in {task.get_coro()!r}" for task in _pending_tasks() if task not in tasks]
    if left:
        raise AssertionError(f"left behind: {', '.join(left)}")


def _new_threads(known: weakref.WeakSet[threading.Thread]) -> list[threading.Thread]:
    return [
        thread for thread in threading.enumerate() if thread not in known and not thread.name.startswith(_LOOP_THREADS)
    ]


def _descriptors() -> Counter[str]:
    """How often each file, pipe and socket is open; the last two have a number of their own."""
    if not _DESCRIPTORS.exists():
        return Counter()
    found: Counter[str] = Counter()
    for number in os.listdir(_DESCRIPTORS):  # noqa: PTH208 -- the listing itself holds one of them open
        try:
            target = os.readlink(_DESCRIPTORS / number)  # noqa: PTH115 -- most of these are no paths
        except FileNotFoundError:
            continue
        if not target.startswith((*_KEPT, "/proc/")):
            found[target] += 1
    return found


def _pending_tasks() -> list[asyncio.Task[object]]:
    """Of every event loop in the process: asyncio itself can only be asked about one that is known."""
    current = _current_task()
    # By type(), as isinstance() would wake lazy proxies among all the objects there are.
    tasks = [thing for thing in gc.get_objects() if issubclass(type(thing), asyncio.Task)]
    return [task for task in tasks if not task.done() and not task.get_loop().is_closed() and task is not current]


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
