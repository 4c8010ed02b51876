"""Computes any slice of a shuffled row of items.

All functions are pure. A position in the order depends on a 64-bit key and on sizes, never on earlier calls. There is
no random generator whose state would have to be saved, and any slice costs the same.

The *window shuffle* gives item ``i`` the sort key ``i + u_i * window`` with ``u_i`` uniform in [0, 1). Item ``i`` is
emitted at a position in ``(i - window, i + window)``. This bounds the number of units that are needed at the same
time. See docs/explanation/order.md.

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
    "stable_order",
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
    """Derives a 64-bit key from a few 64-bit numbers, for one purpose (``domain``, at most 8 ASCII letters)."""
    return xxhash.xxh3_64_intdigest(struct.pack(f"<8s{len(numbers)}Q", domain.encode("ascii"), *numbers))


def hash_items(key: int, start: int, stop: int) -> npt.NDArray[np.uint64]:
    """Returns uniform hashes of the items ``start`` to ``stop - 1``: (stop - start,) uint64."""
    return hash_counters(key, np.arange(start, stop, dtype=np.uint64))


def hash_counters(key: int, counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns uniform hashes of any numbers: uint64 of the same shape."""
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

    The cost is four passes over the hashes in blocks, without a sort and without memory beyond the result.

    Returns:
        (stop - start,) int64, ascending.
    """
    if start >= stop:
        return np.empty(0, dtype=np.int64)
    # Different items have different hashes, because each step of the hash is invertible. So bounds separate positions.
    lower, upper = _hashes_at(key, num_items, (start, stop - 1))
    parts = []
    for first, hashed in _hash_blocks(key, num_items):
        parts.append(np.flatnonzero((hashed >= lower) & (hashed <= upper)) + first)
    return np.concatenate(parts)


def _hash_blocks(key: int, num_items: int) -> Iterator[tuple[int, npt.NDArray[np.uint64]]]:
    for first in range(0, num_items, _BLOCK_ITEMS):
        yield first, hash_items(key, first, min(first + _BLOCK_ITEMS, num_items))


def _hashes_at(key: int, num_items: int, positions: Sequence[int]) -> list[np.uint64]:
    """Returns the hashes at some positions of all sorted hashes. Counts upper bits first, and then sorts only a few."""
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

    A window of at least ``num_items`` gives a uniform permutation. A window of 1 gives the items in order.

    The cost is the same for every ``start``: at most ``stop - start + 2 * (window - 1)`` items are hashed and sorted.
    If ``window`` is at least ``num_items``, all items are.

    Args:
        key: Key returned by `derive_key`.
        num_items: Number of items, at most 2**40.
        window: Window in items, from 1; at most 2**31 unless it is at least ``num_items``.
        start: First position, from 0.
        stop: Position after the last one, at most ``num_items``.

    Returns:
        (stop - start,) int64.
    """
    if start >= stop:
        return np.empty(0, dtype=np.int64)
    if window >= num_items:
        return permutation(key, num_items)[start:stop]
    if window == 1:
        return np.arange(start, stop, dtype=np.int64)
    # Items below `first` are emitted before `start`, and items from `last` on are emitted from `stop` on.
    first, last = max(0, start - window + 1), min(num_items, stop + window - 1)
    order = stable_order(_window_keys(key, first, last, window))
    items: npt.NDArray[np.int64] = order[start - first : stop - first]
    items += first
    return items


def stable_order(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Returns the indices that sort keys; equal keys keep their order.

    Keys that leave room are sorted with their index, because sorting numbers is a third faster than sorting indices.
    """
    bits = np.uint64(max(1, (len(keys) - 1).bit_length()))
    if not len(keys) or int(keys.max()) >> (64 - int(bits)):
        return np.argsort(keys, kind="stable")
    numbered = (keys << bits) | np.arange(len(keys), dtype=np.uint64)
    numbered.sort()
    numbered &= (np.uint64(1) << bits) - np.uint64(1)
    return numbered.view(np.int64)


def _window_keys(key: int, first: int, last: int, window: int) -> npt.NDArray[np.uint64]:
    """Returns sort keys relative to ``first``: item + u * window in fixed point; u is the hash's upper 32 bits."""
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
