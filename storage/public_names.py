"""`dir` of the packages' objects: what is meant for users, so that editors and notebooks offer nothing else."""

from __future__ import annotations

__all__ = ["PublicNames"]


class PublicNames:
    """Leaves names with one underscore in front out of `dir`."""

    __slots__ = ()

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name.startswith("__") or not name.startswith("_")]
