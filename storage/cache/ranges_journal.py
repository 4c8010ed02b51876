"""Which bytes of a shard a sparse file holds: records that are appended, and what follows from them; pure.

A record is 48 bytes, little-endian: ``u64`` size of the shard, start, end, digest of the bytes, salt, digest of these
five; digests are xxh3_64. The salt is random, so that the first record tells a file from a later one of the same name.
Many processes append; one of them may be killed in the middle of a record. So a record counts only if its own digest
agrees, and behind a piece that is no record the next one is looked for at every byte.
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

_FEW = 64  # ranges that are added one by one


@dataclass(frozen=True, slots=True)
class RangeRecord:
    """The bytes [start, end) are there, and ``digest`` is their xxh3_64."""

    start: int
    end: int
    digest: int


def encode_record(record: RangeRecord, *, size: int, salt: int) -> bytes:
    """Returns the bytes of a record in the file of a shard of this size."""
    facts = _FACTS.pack(size, record.start, record.end, record.digest, salt)
    return facts + xxhash.xxh3_64_intdigest(facts).to_bytes(8, "little")


def parse_records(journal: bytes, *, size: int) -> tuple[list[RangeRecord], int]:
    """Reads the sound records of a journal.

    Args:
        journal: From the place where an earlier call ended.
        size: Of the shard; records of another size are none.

    Returns:
        The records, and how many bytes of the journal are done with. Up to 47 at its end may be the beginning of a
        record that somebody is appending, and are to be given again.
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
            # Every record begins with the size: what lies before its next occurrence need not be looked at.
            found = journal.find(size_bytes, at + 1)
            at = found if found >= 0 else max(at + 1, len(journal) - RECORD_BYTES + 1)
    return records, at


def find_size(tail: bytes) -> int | None:
    """Returns the size of the shard that a journal is of, from the last bytes of its file; None without a record."""
    for at in range(len(tail) - RECORD_BYTES, -1, -1):
        size, start, end, _, _, own = _RECORD.unpack_from(tail, at)
        if start < end <= size and _digest(tail, at) == own:
            return int(size)
    return None


def _digest(journal: bytes, at: int) -> int:
    return xxhash.xxh3_64_intdigest(journal[at : at + _FACTS.size])


class PresentRanges:
    """A set of bytes, as sorted runs that neither touch nor overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Adds the bytes [start, end)."""
        # Runs that touch or overlap the new one become one with it.
        first = bisect_right(self._ends, start - 1)
        last = bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def update(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Adds many ranges in one sweep: adding them one by one would move all later runs each time."""
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
        """Whether all of the bytes [start, end) are in the set."""
        at = bisect_right(self._starts, start) - 1
        return start >= end or (at >= 0 and end <= self._ends[at])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)
