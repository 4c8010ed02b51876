"""Whether a data set's items are worth a thread: handing one over costs more than getting a tensor from memory."""

from __future__ import annotations

from collections import deque

__all__ = ["ItemPace"]

# Handing an item to a thread and back costs 30 to 60 µs (two cores, Python 3.11).
_QUICK_S = 100e-6
# In turn an item may once in a while be interrupted; but one that takes so long was waiting for something.
_SLOW_S = 10 * _QUICK_S
_WINDOW = 64
_NUM_QUICK = 16  # among so many; the others wait for each other, as threads that have little to do mostly do


class ItemPace:
    """Says whether items come so quickly that the caller had better get them itself.

    A data set that has once been slow after all, with a cache for instance, keeps its threads for good.

    Thread-safety: `took` may be called from any thread.
    """

    def __init__(self) -> None:
        self._newest: deque[float] = deque(maxlen=_WINDOW)
        self._quick = self._slow = False

    @property
    def is_quick(self) -> bool:
        """Whether to try it in turn, and go on with it while it goes well."""
        if not self._quick and not self._slow and len(self._newest) == _WINDOW:
            self._quick = sorted(self._newest)[_NUM_QUICK - 1] < _QUICK_S
        return self._quick

    def took(self, seconds: float) -> None:
        """Tells how long an item took in a thread."""
        if not self._slow:
            self._newest.append(seconds)

    def took_in_turn(self, seconds: float) -> None:
        """Tells how long an item took in the caller's thread."""
        if seconds > _SLOW_S:
            self._quick, self._slow = False, True
