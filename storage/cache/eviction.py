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
        size: What it takes of the budget, in bytes.
        next_use: When it is wanted again, on any rising scale (see `UseSchedule`); None when nobody knows.
        last_used_s: When it was last wanted.
    """

    name: str
    size: int
    next_use: float | None
    last_used_s: float


def choose_victims(
    residents: Sequence[Resident], *, need_bytes: int, newcomer: float | None = None
) -> list[Resident] | None:
    """Chooses files to delete until ``need_bytes`` are free, in the order in which to delete them.

    The order of an epoch is known, so this is Belady's optimal rule ("A study of replacement algorithms for a
    virtual-storage computer", IBM Systems Journal 5(2), 1966): files without a known next use go first, the least
    recently used of them ahead; then the farthest next use.

    Args:
        residents: The files that may go.
        need_bytes: How much room is missing.
        newcomer: When the file that the room is for will be wanted again. Nothing that is wanted sooner makes room for
            it: it is then better read without being kept. None if that is not known.

    Returns:
        All that may go, in order (the caller stops when there is room, for some may turn out to be in use); None if
        they are not enough.
    """
    unknown = sorted((r for r in residents if r.next_use is None), key=lambda r: (r.last_used_s, r.name))
    known = sorted(
        (r for r in residents if r.next_use is not None and (newcomer is None or r.next_use > newcomer)),
        key=lambda r: (-(r.next_use or 0), r.last_used_s, r.name),
    )
    order = [*unknown, *known]
    return order if sum(resident.size for resident in order) >= need_bytes else None
