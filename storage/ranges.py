"""Byte ranges of objects, and the grid on which they are cut. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["ByteRange", "split"]


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """Bytes ``start`` (included) to ``end`` (excluded) of an object.

    Raises:
        ValueError: ``0 <= start <= end`` does not hold.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"a byte range needs 0 <= start <= end, got [{self.start}, {self.end})")

    def __len__(self) -> int:
        return self.end - self.start


def split(whole: ByteRange, *, chunk_bytes: int) -> Iterator[ByteRange]:
    """Cuts a range at multiples of ``chunk_bytes``, so that a chunk of an object always has the same bytes."""
    if chunk_bytes <= 0:
        raise ValueError(f"chunk_bytes must be positive, got {chunk_bytes}")
    start = whole.start
    while start < whole.end:
        end = min(whole.end, (start // chunk_bytes + 1) * chunk_bytes)
        yield ByteRange(start, end)
        start = end
