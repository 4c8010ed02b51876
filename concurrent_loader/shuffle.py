"""Which item stands at which place of a shuffled row, computed for any slice of it: the arithmetic below `plan`.

All functions are pure and stateless: a place in the order depends on a 64-bit key and on numbers, never on what was
asked before. Nothing here draws from a generator, so nothing has to be saved, and any slice costs the same.

The *window shuffle* gives item ``i`` the sort key ``i + u_i * window`` with ``u_i`` uniform in [0, 1): items keep their
neighbourhood (item ``i`` is emitted at a position in ``(i - window, i + window)``), which is what bounds the shards
that must be at hand. See docs/order.md.

Hash: the finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

__all__ = [
    "MAX_ITEMS",
    "derive_key",
    "earliest_position",
    "hash_counters",
    "hash_items",
    "latest_position",
    "permutation",
    "permutation_members",
    "shuffled_slice",
]

# Sort keys are items in fixed point: 40 bits of item and 22 of fraction leave room for a window without overflow.
MAX_ITEMS = 1 << 40
MAX_WINDOW = 1 << 31
_FRACTION_BITS = 22

_BLOCK_ITEMS = 1 << 20
_COUNTED_BITS = 16

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def derive_key(domain: str, *numbers: int) -> int:
    """Makes a 64-bit key for one use (``domain``, at most 8 ASCII letters) of a few 64-bit numbers."""
    return xxhash.xxh3_64_intdigest(struct.pack(f"<8s{len(numbers)}Q", domain.encode("ascii"), *numbers))


def hash_items(key: int, start: int, stop: int) -> npt.NDArray[np.uint64]:
    """Hashes the items ``start`` to ``stop - 1``: (stop - start,) uint64, uniform."""
    return hash_counters(key, np.arange(start, stop, dtype=np.uint64))


def hash_counters(key: int, counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Hashes any numbers: uint64 of the same shape, uniform."""
    mixed = counters + np.uint64(1)
    mixed *= _GOLDEN
    mixed += np.uint64(key)
    mixed ^= mixed >> np.uint64(30)
    mixed *= _MIX_1
    mixed ^= mixed >> np.uint64(27)
    mixed *= _MIX_2
    mixed ^= mixed >> np.uint64(31)
    return mixed


def permutation(key: int, num_items: int) -> npt.NDArray[np.int64]:
    """Returns a uniform permutation of ``num_items`` items: (num_items,) int64, the item at each position."""
    return np.argsort(hash_items(key, 0, num_items), kind="stable")


def permutation_members(key: int, num_items: int, start: int, stop: int) -> npt.NDArray[np.int64]:
    """Returns the items at the positions ``start`` to ``stop - 1`` of `permutation`, in ascending order of the items.

    Costs four passes over the hashes in blocks: no sort, and no memory beside the result.

    Returns:
        (stop - start,) int64, ascending.
    """
    if start >= stop:
        return np.empty(0, dtype=np.int64)
    # Hashes of different items differ (each step of the hash can be undone), so a bound separates two positions.
    lower, upper = _hashes_at(key, num_items, (start, stop - 1))
    parts = []
    for first, hashed in _hash_blocks(key, num_items):
        parts.append(np.flatnonzero((hashed >= lower) & (hashed <= upper)) + first)
    return np.concatenate(parts)


def _hash_blocks(key: int, num_items: int) -> Iterator[tuple[int, npt.NDArray[np.uint64]]]:
    for first in range(0, num_items, _BLOCK_ITEMS):
        yield first, hash_items(key, first, min(first + _BLOCK_ITEMS, num_items))


def _hashes_at(key: int, num_items: int, positions: Sequence[int]) -> list[np.uint64]:
    """Returns the hashes at some positions of the sorted hashes: counted by their upper bits, then few are sorted."""
    counts = np.zeros(1 << _COUNTED_BITS, np.int64)
    shift = np.uint64(64 - _COUNTED_BITS)
    for _, hashed in _hash_blocks(key, num_items):
        counts += np.bincount((hashed >> shift).astype(np.int64), minlength=len(counts))
    ends = np.cumsum(counts)
    wanted = np.searchsorted(ends, positions, side="right").tolist()
    near: dict[int, list[npt.NDArray[np.uint64]]] = {bits: [] for bits in wanted}
    for _, hashed in _hash_blocks(key, num_items):
        upper = hashed >> shift
        for bits, parts in near.items():
            parts.append(hashed[upper == np.uint64(bits)])
    candidates = {bits: np.sort(np.concatenate(parts)) for bits, parts in near.items()}
    return [
        candidates[bits][position - int(ends[bits] - counts[bits])]
        for position, bits in zip(positions, wanted, strict=True)
    ]


def shuffled_slice(key: int, num_items: int, window: int, start: int, stop: int) -> npt.NDArray[np.int64]:
    """Returns the items at the positions ``start`` to ``stop - 1`` of the window shuffle of ``num_items`` items.

    A window of at least ``num_items`` gives a uniform permutation, a window of 1 the items in order.

    Args:
        key: From `derive_key`.
        num_items: At most 2**40.
        window: From 1; at most 2**31 unless it is at least ``num_items``.
        start: First position, from 0.
        stop: One past the last, at most ``num_items``.

    Returns:
        (stop - start,) int64.

    Cost: hashes and sorts ``stop - start + 2 * (window - 1)`` items at most, or all of them where ``window`` is at
    least ``num_items``; the same for every ``start``.
    """
    if start >= stop:
        return np.empty(0, dtype=np.int64)
    if window >= num_items:
        return permutation(key, num_items)[start:stop]
    if window == 1:
        return np.arange(start, stop, dtype=np.int64)
    # Whatever lies below `first` is emitted before `start`, whatever lies from `last` on is emitted from `stop` on.
    first, last = max(0, start - window + 1), min(num_items, stop + window - 1)
    order = np.argsort(_window_keys(key, first, last, window), kind="stable")
    items: npt.NDArray[np.int64] = order[start - first : stop - first]
    items += first
    return items


def _window_keys(key: int, first: int, last: int, window: int) -> npt.NDArray[np.uint64]:
    """Sort keys relative to ``first``: item + u * window, in fixed point; the upper 32 bits of the hash are u."""
    jitter = hash_items(key, first, last)
    jitter >>= np.uint64(32)
    jitter *= np.uint64(window)
    jitter >>= np.uint64(32 - _FRACTION_BITS)
    jitter += np.arange(last - first, dtype=np.uint64) << np.uint64(_FRACTION_BITS)
    return jitter


def earliest_position(item: int, num_items: int, window: int) -> int:
    """Returns a position before which ``item`` is never emitted."""
    return 0 if window >= num_items else max(0, item - window + 1)


def latest_position(item: int, num_items: int, window: int) -> int:
    """Returns a position after which ``item`` is never emitted."""
    return num_items - 1 if window >= num_items else min(num_items - 1, item + window - 1)
