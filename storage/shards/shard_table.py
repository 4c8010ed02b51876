"""The shards that a manifest pins, a column a field: as many as a data set has, in a hundred bytes each or less.

Stands between the manifest's file and whoever needs one shard (`ShardEntry`, made when it is asked for) or all of them
at once (arrays). A data set of ten million pictures has 130,000 shards: as objects of their own they took a second and
150 MB, as columns a tenth of that.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeVar, overload

import numpy as np
import numpy.typing as npt

from storage.errors import FormatError

__all__ = ["ShardEntry", "ShardTable", "shard_key"]

N = TypeVar("N", np.int64, np.uint64)
Counts = npt.NDArray[np.int64]

_DIGEST_DIGITS, _CHUNK_DIGITS = 32, 16


def shard_key(digest: str) -> str:
    """Where a shard lies: content addressed, so concurrent writers cannot collide."""
    return f"shards/{digest}.cls"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One shard as the manifest pins it.

    Attributes:
        key: Below the dataset's URL.
        size: Of the whole file, in bytes.
        num_samples: In it.
        tail_start: Where payload ends and columns, index and footer begin: one range GET brings the rest.
        digest: xxh3_128 of the file, 32 hex digits.
        chunk_digests: xxh3_64 of every piece of the 8 MiB grid.
        payload_bytes: Sum of the payload values' lengths.
    """

    key: str
    size: int
    num_samples: int
    tail_start: int
    digest: str
    chunk_digests: tuple[int, ...]
    payload_bytes: int


class ShardTable(Sequence[ShardEntry]):
    """An immutable row of shards; equal to any sequence of equal entries. A slice of it is a tuple.

    Args:
        keys: Of all shards; those that `shard_key` gives are not kept.
        sizes: (n,) integers, as the others.
        num_samples: Of each.
        tail_starts: Of each.
        payload_bytes: Of each.
        digests: 32 lower-case hex digits of each.
        chunk_digests: 16 lower-case hex digits a chunk, those of a shard strung together.

    Attributes:
        sizes: (n,) int64, read-only, as the others.
        num_samples: (n,).
        tail_starts: (n,).
        payload_bytes: (n,).
        num_chunks: (n,) digests of chunks that each has.
        other_keys: Position → key, of the shards whose key is not made from their digest.

    Raises:
        FormatError: A digest that is none, or a number beyond 64 bits. Nothing else is checked; see
            `storage.shards.manifest_rules`.

    Thread-safety: All methods may be called from any thread.
    """

    __slots__ = (
        "_chunk_digests",
        "_chunk_ends",
        "_digests",
        "num_chunks",
        "num_samples",
        "other_keys",
        "payload_bytes",
        "sizes",
        "tail_starts",
    )

    def __init__(
        self,
        *,
        keys: Sequence[str],
        sizes: Iterable[int],
        num_samples: Iterable[int],
        tail_starts: Iterable[int],
        payload_bytes: Iterable[int],
        digests: Sequence[str],
        chunk_digests: Sequence[str],
    ) -> None:
        self.sizes, self.num_samples = _counts(sizes), _counts(num_samples)
        self.tail_starts, self.payload_bytes = _counts(tail_starts), _counts(payload_bytes)
        self.other_keys = _other_keys(keys, digests)
        self._digests = _unhex(digests, _DIGEST_DIGITS, exactly=True)
        self._chunk_digests = _frozen(
            np.frombuffer(_unhex(chunk_digests, _CHUNK_DIGITS, exactly=False), ">u8").astype(np.uint64)
        )
        self.num_chunks = _frozen(_counts(map(len, chunk_digests)) // _CHUNK_DIGITS)
        self._chunk_ends = _frozen(np.cumsum(self.num_chunks))

    @classmethod
    def of(cls, entries: Sequence[ShardEntry]) -> ShardTable:
        """Makes one from entries; a table is itself."""
        if isinstance(entries, ShardTable):
            return entries
        return cls(
            keys=[entry.key for entry in entries],
            sizes=[entry.size for entry in entries],
            num_samples=[entry.num_samples for entry in entries],
            tail_starts=[entry.tail_start for entry in entries],
            payload_bytes=[entry.payload_bytes for entry in entries],
            digests=[entry.digest for entry in entries],
            chunk_digests=["".join(f"{digest:016x}" for digest in entry.chunk_digests) for entry in entries],
        )

    @classmethod
    def joined(cls, tables: Sequence[ShardTable]) -> ShardTable:
        """Strings tables together."""
        whole = cls.__new__(cls)
        for name in ("sizes", "num_samples", "tail_starts", "payload_bytes", "num_chunks", "_chunk_digests"):
            parts = [getattr(table, name) for table in tables]
            setattr(whole, name, _frozen(np.concatenate(parts)) if parts else getattr(cls.of(()), name))
        whole._digests = b"".join(table._digests for table in tables)
        whole._chunk_ends = _frozen(np.cumsum(whole.num_chunks))
        firsts = accumulate(map(len, tables), initial=0)
        whole.other_keys = {
            first + at: key
            for first, table in zip(firsts, tables, strict=False)
            for at, key in table.other_keys.items()
        }
        return whole

    # -- one shard -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, at: int) -> ShardEntry: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[ShardEntry, ...]: ...
    def __getitem__(self, at: int | slice) -> ShardEntry | tuple[ShardEntry, ...]:
        if isinstance(at, slice):
            return tuple(self._entry(place) for place in range(len(self))[at])
        return self._entry(range(len(self))[at])  # negative numbers, IndexError and all

    def __iter__(self) -> Iterator[ShardEntry]:
        return map(self._entry, range(len(self)))

    def _entry(self, at: int) -> ShardEntry:
        digest = self.digest(at)
        end = int(self._chunk_ends[at])
        return ShardEntry(
            key=self.other_keys.get(at) or shard_key(digest),
            size=int(self.sizes[at]),
            num_samples=int(self.num_samples[at]),
            tail_start=int(self.tail_starts[at]),
            digest=digest,
            chunk_digests=tuple(self._chunk_digests[end - int(self.num_chunks[at]) : end].tolist()),
            payload_bytes=int(self.payload_bytes[at]),
        )

    def digest(self, at: int) -> str:
        """The digest of one shard; ``at`` from 0."""
        start = at * _DIGEST_DIGITS // 2
        return self._digests[start : start + _DIGEST_DIGITS // 2].hex()

    # -- all of them ---------------------------------------------------------------------------------------------------

    @property
    def keys(self) -> list[str]:
        """Of all shards."""
        keys = [shard_key(digest) for digest in self.digests]
        for at, key in self.other_keys.items():
            keys[at] = key
        return keys

    @property
    def digests(self) -> list[str]:
        """32 hex digits each."""
        return _cut(self._digests.hex(), range(0, (len(self) + 1) * _DIGEST_DIGITS, _DIGEST_DIGITS))

    @property
    def chunk_digests(self) -> list[str]:
        """16 hex digits a chunk, those of a shard strung together."""
        return _cut(
            self._chunk_digests.astype(">u8").tobytes().hex(), [0, *(self._chunk_ends * _CHUNK_DIGITS).tolist()]
        )

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ShardTable):
            return self._columns() == other._columns()
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as Manifest has none: nobody needs it

    def __repr__(self) -> str:
        return f"ShardTable(<{len(self)} shards>)"

    def _columns(self) -> tuple[object, ...]:
        counts = (self.sizes, self.num_samples, self.tail_starts, self.payload_bytes, self.num_chunks)
        chunks = self._chunk_digests.tobytes()
        return self.other_keys, self._digests, chunks, *(column.tobytes() for column in counts)


def _counts(values: Iterable[int]) -> Counts:
    try:
        return _frozen(np.fromiter(values, np.int64))
    except OverflowError as error:
        raise FormatError("a number of a shard has more than 64 bits") from error


def _frozen(array: npt.NDArray[N]) -> npt.NDArray[N]:
    array.flags.writeable = False
    return array


def _other_keys(keys: Sequence[str], digests: Sequence[str]) -> dict[int, str]:
    usual = len(shard_key("0" * _DIGEST_DIGITS))
    # All at once where all are as usual: a comparison of two long strings instead of one a shard.
    before, after = shard_key("|").split("|")
    if set(map(len, keys)) <= {usual} and "".join(keys) == f"{before}{(after + before).join(digests)}{after}":
        return {}
    return {at: key for at, (key, digest) in enumerate(zip(keys, digests, strict=True)) if key != shard_key(digest)}


def _unhex(texts: Sequence[str], digits: int, *, exactly: bool) -> bytes:
    """Reads digests of so many digits each: one a text, or any number."""
    lengths = set(map(len, texts))
    if lengths - {digits} if exactly else any(length % digits for length in lengths):
        wrong = next(text for text in texts if (len(text) != digits if exactly else len(text) % digits))
        raise FormatError(f"a digest has {digits} hex digits", got=wrong[:80])
    whole = "".join(texts)
    try:
        data = binascii.unhexlify(whole)
    except ValueError as error:
        raise FormatError("a digest has other characters than hex digits") from error
    if data.hex() != whole:
        raise FormatError("a digest has other characters than lower-case hex digits")
    return data


def _cut(text: str, bounds: Iterable[int]) -> list[str]:
    return [text[start:end] for start, end in pairwise(bounds)]
