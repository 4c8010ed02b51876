"""A table of the shards that a manifest pins, stored by column, with at most a hundred bytes per shard.

The table gives single shards as `ShardEntry`, created on demand, and fields of all shards as arrays. A dataset of ten
million images has 130,000 shards: as objects they took a second and 150 MB, as columns a tenth of that.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeVar, overload

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.shards.format.layout import CHUNK_BYTES
from concurrent_loader.storage.shards.manifest.source_ranges import SourceRange, SourceRanges

__all__ = ["BundleEntry", "ShardEntry", "ShardTable", "hex_digests", "no_digests", "shard_key"]

N = TypeVar("N", np.int64, np.uint64)
Counts = npt.NDArray[np.int64]

_DIGEST_DIGITS, _CHUNK_DIGITS = 32, 16


def shard_key(digest: str) -> str:
    """Returns the key of a shard; keys are content-addressed, so concurrent writers cannot collide."""
    return f"shards/{digest}.cls"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One shard as the manifest pins it.

    Attributes:
        key: Key relative to the dataset's URL; of a virtual shard, the place of its payload, such as
            ``train-00.tar[0:8388608]``.
        size: Size of the file in bytes.
        num_samples: Number of samples in the shard.
        tail_start: Position at which the payload ends; one range GET from there fetches columns, index and footer.
        digest: xxh3_128 of the file, as 32 hex digits.
        chunk_digests: xxh3_64 of each chunk of 8 MiB; None for each chunk of a virtual shard that was adopted by its
            headers only.
        payload_bytes: Sum of the lengths of the payload values.
        source: Places of the bytes of a virtual shard, which has no file of its own; None for any other shard.
    """

    key: str
    size: int
    num_samples: int
    tail_start: int
    digest: str
    chunk_digests: tuple[int | None, ...]
    payload_bytes: int
    source: SourceRange | None = None

    @property
    def has_digests(self) -> bool:
        """Whether the bytes can be verified. Otherwise ``digest`` is only a name."""
        return None not in self.chunk_digests


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleEntry:
    """A shard file that repeats the FIXED columns of a run of samples, so that all labels take a few range GETs.

    Attributes:
        key: Key relative to the dataset's URL.
        size: Size of the file in bytes.
        tail_start: Position of the tail; there is no payload before it.
        digest: xxh3_128 of the file, as 32 hex digits.
        chunk_digests: xxh3_64 of each chunk of 8 MiB.
        first_sample: Number of the run's first sample in the dataset.
        num_samples: Number of samples in the run.
    """

    key: str
    size: int
    tail_start: int
    digest: str
    chunk_digests: tuple[int, ...]
    first_sample: int
    num_samples: int
    source: None = None


class ShardTable(Sequence[ShardEntry]):
    """An immutable sequence of shards; equal to any sequence of equal entries. A slice is a tuple.

    Args:
        keys: Keys of the n shards; keys that follow from the digest are not stored.
        sizes: (n,) integers: sizes of the files in bytes.
        num_samples: (n,) integers: numbers of samples.
        tail_starts: (n,) integers: positions of the tails.
        payload_bytes: (n,) integers: sums of the lengths of the payload values.
        digests: Digests of the files, as 32 lower-case hex digits each.
        chunk_digests: Digests of the chunks of each shard, as concatenated groups of 16 lower-case hex digits; empty
            for a shard without digests.
        ranges: Places of the bytes of virtual shards, one row per shard; None if no shard is virtual.

    Attributes:
        sizes: (n,) int64, read-only: sizes of the files in bytes.
        num_samples: (n,) int64, read-only: numbers of samples.
        tail_starts: (n,) int64, read-only: positions of the tails.
        payload_bytes: (n,) int64, read-only: sums of the lengths of the payload values.
        num_chunks: (n,) int64, read-only: numbers of chunk digests; 0 for a shard without digests.
        other_keys: Keys by position, for shards whose key does not follow from their digest.
        ranges: Places of the bytes of virtual shards, or None.

    Raises:
        FormatError: A digest is invalid, or a number exceeds 64 bits. The table checks nothing else; see
            `concurrent_loader.storage.shards.manifest.checks`.

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
        "ranges",
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
        ranges: SourceRanges | None = None,
    ) -> None:
        self.ranges = ranges
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
        """Returns a table of the given entries; returns a table unchanged."""
        if isinstance(entries, ShardTable):
            return entries
        return cls(
            keys=[entry.key if entry.source is None else shard_key(entry.digest) for entry in entries],
            sizes=[entry.size for entry in entries],
            num_samples=[entry.num_samples for entry in entries],
            tail_starts=[entry.tail_start for entry in entries],
            payload_bytes=[entry.payload_bytes for entry in entries],
            digests=[entry.digest for entry in entries],
            chunk_digests=[hex_digests(entry.chunk_digests) for entry in entries],
            ranges=SourceRanges.of(entry.source for entry in entries),
        )

    @classmethod
    def joined(cls, tables: Sequence[ShardTable], ranges: SourceRanges | None = None) -> ShardTable:
        """Concatenates tables without virtual shards, and then sets the ranges of the virtual shards."""
        whole = cls.__new__(cls)
        whole.ranges = ranges
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
        return self._entry(range(len(self))[at])  # range handles negative numbers and raises IndexError

    def __iter__(self) -> Iterator[ShardEntry]:
        return map(self._entry, range(len(self)))

    def _entry(self, at: int) -> ShardEntry:
        digest = self.digest(at)
        end, size = int(self._chunk_ends[at]), int(self.sizes[at])
        chunks = self._chunk_digests[end - int(self.num_chunks[at]) : end].tolist()
        source = None if self.ranges is None else self.ranges.range_of(at)
        return ShardEntry(
            key=source.name if source is not None else self.other_keys.get(at) or shard_key(digest),
            size=size,
            num_samples=int(self.num_samples[at]),
            tail_start=int(self.tail_starts[at]),
            digest=digest,
            chunk_digests=tuple(chunks) if chunks else no_digests(size),
            payload_bytes=int(self.payload_bytes[at]),
            source=source,
        )

    def digest(self, at: int) -> str:
        """Returns the digest of shard ``at``, counted from 0."""
        start = at * _DIGEST_DIGITS // 2
        return self._digests[start : start + _DIGEST_DIGITS // 2].hex()

    # -- all of them ---------------------------------------------------------------------------------------------------

    @property
    def keys(self) -> list[str]:
        """Keys of all shards."""
        keys = [shard_key(digest) for digest in self.digests]
        for at, key in self.other_keys.items():
            keys[at] = key
        return keys

    @property
    def digests(self) -> list[str]:
        """Digests of all shards, as 32 hex digits each."""
        return _cut(self._digests.hex(), range(0, (len(self) + 1) * _DIGEST_DIGITS, _DIGEST_DIGITS))

    @property
    def chunk_digests(self) -> list[str]:
        """Digests of the chunks of each shard, as concatenated groups of 16 hex digits."""
        return _cut(
            self._chunk_digests.astype(">u8").tobytes().hex(), [0, *(self._chunk_ends * _CHUNK_DIGITS).tolist()]
        )

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ShardTable):
            return self._columns() == other._columns()
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # like Manifest

    def __repr__(self) -> str:
        return f"ShardTable(<{len(self)} shards>)"

    def _columns(self) -> tuple[object, ...]:
        counts = (self.sizes, self.num_samples, self.tail_starts, self.payload_bytes, self.num_chunks)
        chunks = self._chunk_digests.tobytes()
        return self.other_keys, self.ranges, self._digests, chunks, *(column.tobytes() for column in counts)


def hex_digests(digests: Iterable[int | None]) -> str:
    """Returns the digests of a shard's chunks as groups of 16 hex digits; empty for a shard without digests."""
    return "".join(f"{digest:016x}" for digest in digests if digest is not None)


def no_digests(size: int) -> tuple[None, ...]:
    """Returns what stands for the digests of the chunks of a shard without digests."""
    return (None,) * -(-size // CHUNK_BYTES)


def _counts(values: Iterable[int]) -> Counts:
    try:
        return _frozen(np.fromiter(values, np.int64))
    except OverflowError as error:
        raise FormatError("a number in a shard's entry exceeds 64 bits") from error


def _frozen(array: npt.NDArray[N]) -> npt.NDArray[N]:
    array.flags.writeable = False
    return array


def _other_keys(keys: Sequence[str], digests: Sequence[str]) -> dict[int, str]:
    usual = len(shard_key("0" * _DIGEST_DIGITS))
    # The usual case is checked by one comparison of two long strings, not one per shard.
    before, after = shard_key("|").split("|")
    if set(map(len, keys)) <= {usual} and "".join(keys) == f"{before}{(after + before).join(digests)}{after}":
        return {}
    return {at: key for at, (key, digest) in enumerate(zip(keys, digests, strict=True)) if key != shard_key(digest)}


def _unhex(texts: Sequence[str], digits: int, *, exactly: bool) -> bytes:
    """Parses digests of ``digits`` digits each; with ``exactly``, each text must hold one digest."""
    lengths = set(map(len, texts))
    if lengths - {digits} if exactly else any(length % digits for length in lengths):
        wrong = next(text for text in texts if (len(text) != digits if exactly else len(text) % digits))
        raise FormatError(f"a digest must have {digits} hex digits", got=wrong[:80])
    whole = "".join(texts)
    try:
        data = binascii.unhexlify(whole)
    except ValueError as error:
        raise FormatError("a digest must be hexadecimal") from error
    if data.hex() != whole:
        raise FormatError("a digest must be lower-case hexadecimal")
    return data


def _cut(text: str, bounds: Iterable[int]) -> list[str]:
    return [text[start:end] for start, end in pairwise(bounds)]
