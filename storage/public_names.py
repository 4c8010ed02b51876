"""Limits `dir` to public names, so that editors and notebooks suggest only these."""

from __future__ import annotations

__all__ = ["PublicNames"]


class PublicNames:
    """A mix-in that hides names with one leading underscore from `dir`."""

    __slots__ = ()

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name.startswith("__") or not name.startswith("_")]
