"""Makes batches of samples of similar length, as a pure function of the lengths and the order. No I/O.

Samples run through the order of the epoch. Each falls into a bucket by its length, and a bucket that is full becomes a
batch. So a batch comes when its last sample would come, and units are needed about as long as without buckets. What is
left in the buckets at the end is sorted by length and makes the last batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.order.last_batch import LastBatch
from concurrent_loader.order.remembering import Remembering
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["Batches", "ByLength"]

Indices = npt.NDArray[np.int64]

_CANDIDATES = 512  # for the bounds of buckets, of each kind
_EVEN_RANKS = 8  # batches of at least so many samples are divisible by this number of ranks


@dataclass(frozen=True, eq=False)
class Batches:
    """The global batches of an epoch.

    Attributes:
        samples: (n,) int64, sample numbers, batch after batch.
        ends: (num_batches,) int64, end of each batch in ``samples``.
        sizes: (num_batches,) int64, number of samples of each batch with padding; at least that without padding.
    """

    samples: Indices
    ends: Indices
    sizes: Indices


class ByLength(Remembering):
    """Makes batches of samples of similar length, with a fixed number of samples or of tokens.

    Args:
        lengths: Column whose values have the lengths: numbers are lengths themselves; of arrays of any shape it is the
            number of items, of strings of characters, of bytes and images of bytes. Or an array (num_samples,).
        max_tokens: Largest number of tokens in a batch of one rank, padding included: samples × longest sample. Then
            ``batch_size`` must be left at 1. Default: None, batches of ``batch_size`` samples.
        buckets: Number of buckets, whose bounds are chosen so that padding is small; or the largest length in each
            bucket, ascending. Default: 16.

    Raises:
        ConfigurationError: An argument is invalid.

    Example:
        >>> from concurrent_loader import ByLength, NativeDataLoader, ShardDataset
        >>> with ShardDataset("photos") as dataset:
        ...     batching = ByLength([1] * 10 + [5] * 10, max_tokens=10, buckets=[1, 5])
        ...     loader = NativeDataLoader(dataset, batching=batching)
        ...     [len(batch.sample_ids) for batch in loader]
        [8, 2, 2, 2, 2, 2, 2]
    """

    def __init__(
        self,
        lengths: str | npt.ArrayLike,
        *,
        max_tokens: int | None = None,
        buckets: int | Sequence[int] = 16,
    ) -> None:
        super().__init__()
        self.lengths = lengths if isinstance(lengths, str) else _checked(lengths)
        if max_tokens is not None and (
            isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1
        ):
            raise ConfigurationError("max_tokens must be a positive integer", got=max_tokens)
        self.max_tokens = max_tokens
        bounds = [buckets] if isinstance(buckets, int) else list(buckets)
        if not bounds or min(bounds) < 1 or bounds != sorted(set(bounds)) or isinstance(buckets, bool):
            raise ConfigurationError("buckets must be a positive number, or ascending lengths", got=buckets)
        self.buckets = buckets if isinstance(buckets, int) else tuple(bounds)

    def bucket_bounds(self, lengths: Indices) -> Indices:
        """Returns the largest length in each bucket that has samples, ascending.

        Raises:
            ConfigurationError: A sample is longer than the last bucket or ``max_tokens``.
        """
        ordered = np.sort(lengths)
        if not len(ordered):
            return ordered
        if isinstance(self.buckets, int):
            bounds = _best_bounds(ordered, self.buckets)
        else:
            wanted = np.asarray(self.buckets, np.int64)
            if ordered[-1] > wanted[-1]:
                raise ConfigurationError(
                    "a sample is longer than the last bucket; add a bucket, or leave such samples out by "
                    "dataset.subset", expected=f"<= {wanted[-1]}", got=int(ordered[-1]),
                )  # fmt: skip
            ends = np.searchsorted(ordered, wanted, side="right")
            bounds = np.unique(ordered[ends[ends > 0] - 1])
        if self.max_tokens is not None and bounds[-1] > self.max_tokens:
            raise ConfigurationError(
                "a sample is longer than max_tokens; leave such samples out by dataset.subset",
                expected=f"<= {self.max_tokens}", got=int(bounds[-1]),
            )  # fmt: skip
        return bounds

    def batch_sizes(self, bounds: Indices, global_batch_size: int) -> Indices:
        """Returns the number of samples in a global batch of each bucket.

        Args:
            bounds: Largest length in each bucket.
            global_batch_size: Batch size of the loader times the number of ranks.
        """
        if self.max_tokens is None:
            return np.full(len(bounds), global_batch_size, np.int64)
        sizes = self.max_tokens * global_batch_size // np.maximum(bounds, 1)
        # Divisible by the usual numbers of ranks, whatever the number of ranks now: the batches must not depend on it.
        few = 1 << (np.frexp(np.maximum(sizes, 1))[1].astype(np.int64) - 1)  # the largest power of two in it
        rounded: Indices = np.where(sizes >= _EVEN_RANKS, sizes - sizes % _EVEN_RANKS, few)
        return rounded

    def batches(self, order: Indices, lengths: Indices, *, global_batch_size: int, last_batch: LastBatch) -> Batches:
        """Makes the batches of an epoch.

        Args:
            order: (n,) int64, sample numbers in the order of the epoch.
            lengths: (num_samples,) int64, lengths of all samples.
            global_batch_size: Batch size of the loader times the number of ranks.
            last_batch: Treatment of the last, partial batch.
        """
        bounds = self.bucket_bounds(lengths)
        if not len(order):
            return Batches(order, order[:0], order[:0])
        sizes = self.batch_sizes(bounds, global_batch_size)
        bucket = np.searchsorted(bounds, lengths[order])
        places = np.argsort(bucket, kind="stable")  # by bucket, and in the order of the epoch within
        counts = np.bincount(bucket, minlength=len(bounds))
        within = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        own = bucket[places]
        is_full = within < (counts // sizes * sizes)[own]

        full, full_bucket = places[is_full], own[is_full]
        last = (within[is_full] + 1) % sizes[full_bucket] == 0
        emitted, full_sizes = full[last], sizes[full_bucket[last]]  # place of the last sample of each full batch
        turn = np.argsort(emitted, kind="stable")
        starts = np.cumsum(full_sizes) - full_sizes
        chosen = np.concatenate([full[starts[i] : starts[i] + full_sizes[i]] for i in turn.tolist()] or [full[:0]])
        numbers, wanted = full_sizes[turn].tolist(), full_sizes[turn].tolist()

        rest = places[~is_full][::-1]  # longest first
        start = 0
        while start < len(rest):
            size = int(sizes[bucket[rest[start]]])
            number = min(size, len(rest) - start)
            if number == size or last_batch != "drop":
                numbers.append(number)
                wanted.append(size if last_batch == "pad" else number)
                chosen = np.append(chosen, rest[start : start + number])
            start += size
        return Batches(order[chosen], np.cumsum(np.asarray(numbers, np.int64)), np.asarray(wanted, np.int64))

    def fingerprint(self, lengths: Indices, global_batch_size: int) -> int:
        """63-bit hash of everything that the batches depend on, besides the order."""
        tokens = (self.max_tokens or 0) * global_batch_size
        facts = f"{tokens} {self.buckets}".encode()
        return xxhash.xxh3_64_intdigest(facts + np.ascontiguousarray(lengths, "<i8").tobytes()) >> 1


def _best_bounds(ordered: Indices, num: int) -> Indices:
    """Returns the bounds with the least padding, if each sample is padded to the bound of its bucket.

    The bounds are chosen among about 1,000 lengths: those that divide the samples, and those that divide their sum.

    Source: dynamic programming over sorted values; Fisher, "On grouping for maximum homogeneity", JASA 53 (1958).
    """
    sums = np.cumsum(ordered)
    parts = np.arange(1, _CANDIDATES + 1)
    by_count = ordered[(len(ordered) - 1) * parts // _CANDIDATES]
    # Where parts of the sum end; integers up to the sum, so that every machine has the same.
    by_sum = ordered[np.searchsorted(sums, [int(sums[-1]) * part // _CANDIDATES for part in parts.tolist()])]
    bounds: Indices = np.unique(np.concatenate([by_count, by_sum]))
    if len(bounds) <= num:
        return bounds
    count = np.searchsorted(ordered, bounds, side="right")
    before, total = np.append(0, count), np.append(0, sums[count - 1]).astype(np.float64)
    # Padding of a bucket with the candidates `row` to `column`.
    padding = bounds * (before[1:] - before[:-1, None]).astype(np.float64) - (total[1:] - total[:-1, None])
    padding[np.tril_indices(len(bounds), -1)] = np.inf
    least, starts = padding[0], []
    for _ in range(num - 1):
        with_one_more = least[:-1, None] + padding[1:]
        start = np.argmin(with_one_more, axis=0)
        split = with_one_more[start, np.arange(len(bounds))]
        starts.append(np.where(split < least, start, -1))
        least = np.minimum(split, least)
    last = len(bounds) - 1
    chosen = [last]
    for start in reversed(starts):
        if start[last] >= 0:
            last = int(start[last])
            chosen.append(last)
    return bounds[chosen[::-1]]


def _checked(lengths: object) -> Indices:
    array = np.asarray(lengths)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array.size and int(array.min()) < 0):
        raise ConfigurationError(
            "lengths must be a row of non-negative integers, one per sample, or the name of a column",
            got=f"{array.dtype} {array.shape}",
        )
    return array.astype(np.int64)
