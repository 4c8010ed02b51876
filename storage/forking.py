"""What a fork does to objects with threads and connections: the child leaves the parent's alone, and makes its own.

A forked child has copies of all objects, but none of the threads, and it shares every socket and epoll set with its
parent. Ending such a copy (even by garbage collection) would take the parent's connections out of the shared epoll
set, or say goodbye on its TLS sessions. And a lock that another thread held at that moment stays locked in the child.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Protocol

__all__ = ["Forkable", "keep_for_ever", "tell_after_fork"]


class Forkable(Protocol):
    """Has something to do in a forked child, before anything else runs there."""

    def after_fork_in_child(self) -> None:
        """Makes locks anew, and keeps what belongs to the parent; must neither block nor send anything."""


_told: weakref.WeakSet[Forkable] = weakref.WeakSet()


def tell_after_fork(who: Forkable) -> None:
    """Has `Forkable.after_fork_in_child` called in every forked child, for as long as the object lives."""
    _told.add(who)


def keep_for_ever(what: object) -> None:
    """Takes an object, and all that it refers to, out of garbage collection, up to and including the process's end."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(what))


def _tell() -> None:
    for who in list(_told):
        who.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell)
