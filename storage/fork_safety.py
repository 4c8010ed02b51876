"""Makes objects with threads and connections safe to fork: the child leaves the parent's alone and creates its own.

A forked child has copies of all objects but no threads, and it shares every socket and epoll set with its parent.
Closing such a copy, even by garbage collection, would remove the parent's connections from the shared epoll set, or end
its TLS sessions. And a lock that another thread held during the fork stays locked in the child.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Protocol

__all__ = ["Forkable", "leak_reference", "register_fork_handler"]


class Forkable(Protocol):
    """An object with work to do in a forked child, before anything else runs there."""

    def after_fork_in_child(self) -> None:
        """Replaces locks and leaks the parent's resources; must neither block nor send anything."""


_registered: weakref.WeakSet[Forkable] = weakref.WeakSet()


def register_fork_handler(target: Forkable) -> None:
    """Registers an object whose `after_fork_in_child` is called in every forked child, as long as it lives."""
    _registered.add(target)


def leak_reference(target: object) -> None:
    """Leaks an object and everything that it refers to, so that neither is ever destroyed, even at exit."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(target))


def _run_handlers() -> None:
    for target in list(_registered):
        target.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_run_handlers)
