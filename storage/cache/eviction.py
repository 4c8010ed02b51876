"""Which files leave the cache when room is needed: the one whose next use lies farthest ahead; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Resident", "choose_victims"]


@dataclass(frozen=True, slots=True)
class Resident:
    """A file in the cache.

    Attributes:
        name: Its name.
        size: In bytes.
        next_use: When it is wanted again, on any rising scale (the loader's global steps); None when nobody knows.
        last_used_s: When it was last wanted.
    """

    name: str
    size: int
    next_use: int | None
    last_used_s: float


def choose_victims(residents: Sequence[Resident], *, need_bytes: int) -> list[str]:
    """Names files to delete until ``need_bytes`` are free, or all files where that is not enough.

    The order of an epoch is known, so this is Belady's optimal rule ("A study of replacement algorithms for a
    virtual-storage computer", IBM Systems Journal 5(2), 1966): files without a known next use go first, the least
    recently used of them ahead; then the farthest next use.
    """
    unknown = sorted((r for r in residents if r.next_use is None), key=lambda r: (r.last_used_s, r.name))
    known = sorted(
        (r for r in residents if r.next_use is not None), key=lambda r: (-(r.next_use or 0), r.last_used_s, r.name)
    )
    victims: list[str] = []
    for resident in (*unknown, *known):
        if need_bytes <= 0:
            break
        victims.append(resident.name)
        need_bytes -= resident.size
    return victims
