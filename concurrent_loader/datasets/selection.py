"""Represents some of a dataset's samples as sorted sample numbers, without I/O. A sample may occur several times."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from threading import Lock

import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.order.apportion import apportion
from concurrent_loader.order.shuffle import derive_key, permutation_members
from concurrent_loader.storage.errors import ConfigurationError

__all__ = ["Selection", "random_split"]

Indices = npt.NDArray[np.int64]

_MAX_SPLIT = 1 << 32  # samples; the sample numbers of one half take 16 GiB


class Selection:
    """Some of a dataset's samples, in the dataset's order.

    Args:
        numbers: (n,) int64, sample numbers in ascending order; or a function that returns them, which is called on
            first use.
        num_samples: Number of samples in the whole dataset.
        length: Number of selected samples. Required if ``numbers`` is a function.
        repeats: Whether a number may occur several times, False by default.

    Thread-safety: All methods may be called from any thread.
    """

    def __init__(
        self,
        numbers: Indices | Callable[[], Indices],
        num_samples: int,
        length: int | None = None,
        repeats: bool = False,
    ) -> None:
        self._given = numbers
        self.num_samples = num_samples
        self.repeats = repeats
        self._length = len(numbers) if isinstance(numbers, np.ndarray) else length
        self._lock = Lock()

    @property
    def numbers(self) -> Indices:
        """(n,) int64, sample numbers in ascending order."""
        with self._lock:
            if not isinstance(self._given, np.ndarray):
                self._given = self._given()
            return self._given

    @classmethod
    def from_indices(cls, indices: Iterable[int] | npt.ArrayLike, num_samples: int) -> Selection:
        """Makes a selection from sample numbers in any order.

        Raises:
            ConfigurationError: ``indices`` are not integers.
            IndexError: A sample does not exist.
        """
        given = np.asarray(indices if isinstance(indices, np.ndarray | range) else list(indices))  # type: ignore[arg-type]
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise ConfigurationError(
                "a subset needs a row of integer sample numbers", got=f"{given.dtype} {given.shape}"
            )
        numbers = np.sort(given.astype(np.int64))
        if len(numbers) and not (numbers[0] >= 0 and numbers[-1] < num_samples):
            strange = numbers[0] if numbers[0] < 0 else numbers[-1]
            raise IndexError(f"sample {strange} does not exist in a dataset of {num_samples} samples")
        return cls(numbers, num_samples, repeats=bool((np.diff(numbers) == 0).any()))

    @classmethod
    def from_mask(cls, mask: npt.NDArray[np.bool_]) -> Selection:
        """Makes a selection from a mask over all samples: (num_samples,) bool."""
        return cls(np.flatnonzero(mask).astype(np.int64), len(mask))

    def __len__(self) -> int:
        return len(self.numbers) if self._length is None else self._length

    def compose(self, inner: Selection) -> Selection:
        """Returns a selection of this selection, as a selection of the whole dataset."""
        repeats = self.repeats or inner.repeats
        return Selection(lambda: self.numbers[inner.numbers], self.num_samples, len(inner), repeats)

    def bounds(self, unit_bounds: Indices) -> Indices:
        """Returns the position of each unit's first sample among the selected samples.

        Args:
            unit_bounds: (num_units + 1,) int64, the same positions among all samples.
        """
        return np.searchsorted(self.numbers, unit_bounds).astype(np.int64)

    @cached_property
    def fingerprint(self) -> int:
        """64-bit hash that identifies this selection; 0 for all samples."""
        if len(self) == self.num_samples and not self.repeats:
            return 0
        hashed = xxhash.xxh3_64(self.num_samples.to_bytes(8, "little"))
        hashed.update(np.ascontiguousarray(self.numbers, dtype="<i8").data)
        return hashed.intdigest()

    def __reduce__(self) -> tuple[object, ...]:
        # One bit per sample of the dataset, or eight bytes per selected sample: the smaller of the two.
        if self.repeats or len(self) * 64 <= self.num_samples:
            return Selection, (self.numbers, self.num_samples, None, self.repeats)
        mask = np.zeros(self.num_samples, np.bool_)
        mask[self.numbers] = True
        return _unpack_mask, (np.packbits(mask), self.num_samples)


def _unpack_mask(bits: npt.NDArray[np.uint8], num_samples: int) -> Selection:
    return Selection.from_mask(np.unpackbits(bits, count=num_samples).astype(np.bool_))


def random_split(parts: Sequence[float], num_samples: int, *, seed: int) -> list[Selection]:
    """Splits the samples of a dataset at random. Each part's samples are computed when the part is first used.

    Args:
        parts: Fractions or numbers of samples; see `concurrent_loader.order.apportion.apportion`.
        num_samples: Number of samples in the dataset.
        seed: Seed; together with ``num_samples`` and ``parts`` it determines each part's samples.

    Raises:
        ConfigurationError: The parts are invalid, or the dataset has more than 2**32 samples.
    """
    if num_samples > _MAX_SPLIT:
        raise ConfigurationError(
            "the dataset has too many samples for a split, because each part holds its sample numbers in memory; "
            "write the parts as datasets of their own", expected=f"<= {_MAX_SPLIT}", got=num_samples,
        )  # fmt: skip
    key = derive_key("split", seed)
    ends = [0, *itertools.accumulate(apportion(parts, num_samples))]
    return [
        Selection(partial(permutation_members, key, num_samples, start, end), num_samples, end - start)
        for start, end in itertools.pairwise(ends)
    ]
