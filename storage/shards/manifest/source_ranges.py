"""Where the bytes of *virtual shards* are: ranges of objects of another format, which stay in their place.

A virtual shard has the same entry in the manifest as any shard, but its file exists nowhere. Its payload is a range of
an adopted object, and its tail (columns and index) is a range of an object below ``tails/``. See "Virtual shards" in
docs/reference/format.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["SourceFile", "SourceRange", "SourceRanges"]

_NUM_FIELDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """An adopted object, as it was when it was adopted.

    Attributes:
        url: URL of the source, without credentials.
        key: Key relative to ``url``.
        size: Size in bytes.
        etag: ETag; None if the store has none.
        transform: Name of the function that turns a range into payload, such as ``"zstd"``, with its parameters; empty
            if the range is the payload.
    """

    url: str
    key: str
    size: int
    etag: str | None
    transform: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRange:
    """The places of one virtual shard's bytes.

    Attributes:
        file: Adopted object.
        start: First byte of the range in the object.
        end: One past the last byte.
        tail_key: Key of the object that holds the tail, relative to the dataset's URL.
        tail_offset: Position of the tail in that object.
    """

    file: SourceFile
    start: int
    end: int
    tail_key: str
    tail_offset: int

    @property
    def name(self) -> str:
        """Name of the shard, for messages."""
        return f"{self.file.key}[{self.start}:{self.end}]"


class SourceRanges:
    """The places of all virtual shards of a manifest, stored by column.

    Args:
        files: Adopted objects.
        tail_keys: Keys of the objects that hold tails.
        rows: (n, 5) int64, one row per shard of the manifest: number in ``files`` (-1 for a shard that is not virtual),
            start, end, number in ``tail_keys``, position of the tail.

    Thread-safety: Immutable.
    """

    __slots__ = ("files", "rows", "tail_keys")

    def __init__(self, files: Sequence[SourceFile], tail_keys: Sequence[str], rows: npt.NDArray[np.int64]) -> None:
        self.files = tuple(files)
        self.tail_keys = tuple(tail_keys)
        self.rows = rows.reshape(-1, _NUM_FIELDS).astype(np.int64, copy=False)

    @classmethod
    def of(cls, places: Iterable[SourceRange | None]) -> SourceRanges | None:
        """Returns the ranges of shards, one per shard; None if no shard is virtual."""
        files: dict[SourceFile, int] = {}
        tails: dict[str, int] = {}
        rows = [
            (-1, 0, 0, -1, 0)
            if place is None
            else (
                files.setdefault(place.file, len(files)), place.start, place.end,
                tails.setdefault(place.tail_key, len(tails)), place.tail_offset,
            )
            for place in places
        ]  # fmt: skip
        return cls(tuple(files), tuple(tails), np.array(rows, np.int64)) if files else None

    @property
    def is_virtual(self) -> npt.NDArray[np.bool_]:
        """(n,) bool: whether each shard is virtual."""
        virtual: npt.NDArray[np.bool_] = self.rows[:, 0] >= 0
        return virtual

    def range_of(self, shard: int) -> SourceRange | None:
        """Returns the places of a shard's bytes; None if the shard is not virtual."""
        file, start, end, tail, offset = self.rows[shard].tolist()
        if file < 0:
            return None
        return SourceRange(
            file=self.files[file], start=start, end=end, tail_key=self.tail_keys[tail], tail_offset=offset
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SourceRanges):
            return NotImplemented
        return [self.range_of(at) for at in range(len(self.rows))] == [
            other.range_of(at) for at in range(len(other.rows))
        ]

    __hash__ = None  # type: ignore[assignment]
