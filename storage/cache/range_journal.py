"""The journal of a sparse file: appended records of the ranges that the file holds. No I/O.

A record is 48 bytes, little-endian: ``u64`` size of the shard, start, end, digest of the bytes, salt, digest of these
five fields. Digests are xxh3_64. The salt is random, so that the first record tells a file from a later one of the same
name. Many processes append, and one of them may be killed in the middle of a record. So a record counts only if its own
digest matches, and after damaged bytes the parser looks for the next record at every byte.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import xxhash

__all__ = ["RECORD_BYTES", "PresentRanges", "RangeRecord", "encode_record", "find_size", "parse_records"]

_FACTS = struct.Struct("<QQQQQ")
_RECORD = struct.Struct("<QQQQQQ")
RECORD_BYTES = _RECORD.size

_FEW = 64  # up to this many ranges are added one by one


@dataclass(frozen=True, slots=True)
class RangeRecord:
    """A statement that the file holds the bytes [start, end), and that ``digest`` is their xxh3_64."""

    start: int
    end: int
    digest: int


def encode_record(record: RangeRecord, *, size: int, salt: int) -> bytes:
    """Returns the bytes of a record for the file of a shard of ``size`` bytes."""
    facts = _FACTS.pack(size, record.start, record.end, record.digest, salt)
    return facts + xxhash.xxh3_64_intdigest(facts).to_bytes(8, "little")


def parse_records(journal: bytes, *, size: int) -> tuple[list[RangeRecord], int]:
    """Returns the valid records of a journal.

    Args:
        journal: Bytes from the position where the previous call ended.
        size: Size of the shard in bytes; records of another size are ignored.

    Returns:
        The records, and the number of bytes consumed. Up to 47 bytes at the end are left for the next call, because
        they may be the start of a record that another process is appending.
    """
    records: list[RangeRecord] = []
    size_bytes = size.to_bytes(8, "little")
    at = 0
    while at + RECORD_BYTES <= len(journal):
        of_size, start, end, digest, _, own = _RECORD.unpack_from(journal, at)
        if of_size == size and start < end <= size and _digest(journal, at) == own:
            records.append(RangeRecord(start, end, digest))
            at += RECORD_BYTES
        else:
            # Every record begins with the size, so the bytes before its next occurrence can be skipped.
            found = journal.find(size_bytes, at + 1)
            at = found if found >= 0 else max(at + 1, len(journal) - RECORD_BYTES + 1)
    return records, at


def find_size(tail: bytes) -> int | None:
    """Returns the size of the shard of a journal, from the last bytes of its file; None without a record."""
    for at in range(len(tail) - RECORD_BYTES, -1, -1):
        size, start, end, _, _, own = _RECORD.unpack_from(tail, at)
        if start < end <= size and _digest(tail, at) == own:
            return int(size)
    return None


def _digest(journal: bytes, at: int) -> int:
    return xxhash.xxh3_64_intdigest(journal[at : at + _FACTS.size])


class PresentRanges:
    """A set of byte positions, as sorted runs that neither touch nor overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Adds the bytes [start, end)."""
        # Merge all runs that touch or overlap the new one.
        first = bisect_right(self._ends, start - 1)
        last = bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def update(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Adds many ranges in one pass, because adding them one by one would move all later runs each time."""
        given = list(ranges)
        if len(given) <= _FEW:
            for start, end in given:
                self.add(start, end)
            return
        starts: list[int] = []
        ends: list[int] = []
        for start, end in sorted([*self, *given]):
            if ends and start <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            else:
                starts.append(start)
                ends.append(end)
        self._starts, self._ends = starts, ends

    def covers(self, start: int, end: int) -> bool:
        """Returns whether all of the bytes [start, end) are in the set."""
        at = bisect_right(self._starts, start) - 1
        return start >= end or (at >= 0 and end <= self._ends[at])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)
