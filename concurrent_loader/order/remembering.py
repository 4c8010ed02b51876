"""Keeps the last few results of an expensive draw, so that every look at an epoch's plan does not repeat it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Remembering"]

T = TypeVar("T")

_MAX_KEPT = 6  # three epochs, and what they have in common


class Remembering:
    """Base class of options that draw an epoch. What was drawn is not pickled."""

    def __init__(self) -> None:
        self._drawn: OrderedDict[tuple[int, ...], Any] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_drawn": OrderedDict()}

    def remember(self, key: tuple[int, ...], make: Callable[[], T]) -> T:
        """Returns what was made for a key before, or makes it. The last few results are kept.

        Args:
            key: Everything that the result depends on: dataset, seed and epoch.
            make: Function that makes the result.
        """
        made: T | None = self._drawn.pop(key, None)
        if made is None:
            made = make()
        self._drawn[key] = made  # the newest
        for old in list(self._drawn)[:-_MAX_KEPT]:
            self._drawn.pop(old, None)
        return made
