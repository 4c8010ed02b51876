"""Byte ranges, pure: which bytes of an object are wanted, and how wishes become requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["ByteRange", "coalesce", "split"]


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """Bytes ``start`` (included) to ``end`` (excluded) of an object.

    Raises:
        ValueError: Unless ``0 <= start <= end``.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"a byte range needs 0 <= start <= end, got [{self.start}, {self.end})")

    def __len__(self) -> int:
        return self.end - self.start

    def covers(self, other: ByteRange) -> bool:
        """Whether every byte of ``other`` lies in this range."""
        return self.start <= other.start and other.end <= self.end


def coalesce(ranges: Iterable[ByteRange], *, max_gap_bytes: int, max_bytes: int) -> list[ByteRange]:
    """Merges ranges that touch, overlap, or lie no more than a gap apart, in order of their start.

    Args:
        ranges: In any order; empty ones are dropped.
        max_gap_bytes: The largest hole that is cheaper to fetch than to ask around.
        max_bytes: No merged range grows beyond this by bridging; a wish that is larger stays whole.

    Returns:
        Sorted ranges, each wish covered by exactly one of them. Overlapping wishes always share one, whatever its size.
    """
    merged: list[ByteRange] = []
    for wish in sorted(r for r in ranges if len(r)):
        if merged:
            last = merged[-1]
            overlaps = wish.start < last.end
            near = wish.start - last.end <= max_gap_bytes and max(wish.end, last.end) - last.start <= max_bytes
            if overlaps or near:
                merged[-1] = ByteRange(last.start, max(last.end, wish.end))
                continue
        merged.append(wish)
    return merged


def split(whole: ByteRange, *, chunk_bytes: int) -> Iterator[ByteRange]:
    """Cuts a range at multiples of ``chunk_bytes`` of the object, so that the same chunk is always the same bytes."""
    if chunk_bytes <= 0:
        raise ValueError(f"chunk_bytes must be positive, got {chunk_bytes}")
    start = whole.start
    while start < whole.end:
        end = min(whole.end, (start // chunk_bytes + 1) * chunk_bytes)
        yield ByteRange(start, end)
        start = end
