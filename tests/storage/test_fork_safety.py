from __future__ import annotations

import os
import threading
import warnings
import weakref

import pytest

from concurrent_loader.storage.fork_safety import leak_reference, register_fork_handler


class Told:
    def __init__(self):
        self.lock = threading.Lock()
        self.num_calls = 0
        register_fork_handler(self)

    def after_fork_in_child(self):
        self.lock = threading.Lock()
        self.num_calls += 1


def in_child(check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os._exit(0 if check() else 1)
        except BaseException:  # noqa: BLE001
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.processes
def test_the_child_is_told_and_the_parent_is_not():
    told = Told()
    with told.lock:
        assert in_child(lambda: told.num_calls == 1 and told.lock.acquire(blocking=False)) == 0
    assert told.num_calls == 0


def test_being_told_keeps_nothing_alive():
    told = weakref.ref(Told())
    assert told() is None


def test_what_is_kept_is_never_collected():
    kept = Told()
    watch = weakref.ref(kept)
    leak_reference(kept)
    del kept
    assert watch() is not None
