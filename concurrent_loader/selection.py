"""Which samples of a data set are meant: a sorted row of their numbers; arithmetic only, below views."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from threading import Lock

import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.proportions import divide
from concurrent_loader.shuffle import derive_key, permutation_members
from storage.errors import ConfigurationError

__all__ = ["Selection", "random_parts"]

Indices = npt.NDArray[np.int64]

_MAX_SPLIT = 1 << 32  # samples; the numbers of a half of them take 16 GiB


class Selection:
    """Some of the samples of a data set, in its order.

    Args:
        numbers: (n,) int64, ascending, each once; or a function that returns them, called when they are first needed.
        num_samples: Of the whole data set.
        length: Number of selected samples, where ``numbers`` is a function.

    Thread-safety: All methods may be called from any thread.
    """

    def __init__(self, numbers: Indices | Callable[[], Indices], num_samples: int, length: int | None = None) -> None:
        self._given = numbers
        self.num_samples = num_samples
        self._length = len(numbers) if isinstance(numbers, np.ndarray) else length
        self._making = Lock()

    @property
    def numbers(self) -> Indices:
        """(n,) int64, ascending."""
        with self._making:
            if not isinstance(self._given, np.ndarray):
                self._given = self._given()
            return self._given

    @classmethod
    def of(cls, indices: Iterable[int] | npt.ArrayLike, num_samples: int) -> Selection:
        """Makes a selection of sample numbers in any order.

        Raises:
            ConfigurationError: They are no whole numbers, or one of them comes twice.
            IndexError: There is no such sample.
        """
        given = np.asarray(indices if isinstance(indices, np.ndarray | range) else list(indices))  # type: ignore[arg-type]
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise ConfigurationError("a subset is a row of sample numbers", got=f"{given.dtype} {given.shape}")
        numbers = np.sort(given.astype(np.int64))
        if len(numbers) and not (numbers[0] >= 0 and numbers[-1] < num_samples):
            strange = numbers[0] if numbers[0] < 0 else numbers[-1]
            raise IndexError(f"sample {strange} of a data set of {num_samples}")
        twice = np.flatnonzero(np.diff(numbers) == 0)
        if len(twice):
            raise ConfigurationError("a subset has each sample once", got=int(numbers[twice[0]]))
        return cls(numbers, num_samples)

    @classmethod
    def where(cls, mask: npt.NDArray[np.bool_]) -> Selection:
        """Makes a selection of what is True in a mask of all samples."""
        return cls(np.flatnonzero(mask).astype(np.int64), len(mask))

    def __len__(self) -> int:
        return len(self.numbers) if self._length is None else self._length

    def take(self, inner: Selection) -> Selection:
        """Returns what a selection of this selection selects of the whole."""
        return Selection(lambda: self.numbers[inner.numbers], self.num_samples, len(inner))

    def bounds(self, unit_bounds: Indices) -> Indices:
        """Returns where each unit's samples begin among the selected ones: as ``unit_bounds`` are of the whole."""
        return np.searchsorted(self.numbers, unit_bounds).astype(np.int64)

    @cached_property
    def fingerprint(self) -> int:
        """64 bits that name this selection; 0 for all samples."""
        if len(self) == self.num_samples:
            return 0
        hashed = xxhash.xxh3_64(self.num_samples.to_bytes(8, "little"))
        hashed.update(np.ascontiguousarray(self.numbers, dtype="<i8").data)
        return hashed.intdigest()

    def __reduce__(self) -> tuple[object, ...]:
        # A bit a sample of the whole data set, or eight bytes a selected one: whatever is less.
        if len(self) * 64 <= self.num_samples:
            return Selection, (self.numbers, self.num_samples)
        mask = np.zeros(self.num_samples, np.bool_)
        mask[self.numbers] = True
        return _unpacked, (np.packbits(mask), self.num_samples)


def _unpacked(bits: npt.NDArray[np.uint8], num_samples: int) -> Selection:
    return Selection.where(np.unpackbits(bits, count=num_samples).astype(np.bool_))


def random_parts(parts: Sequence[float], num_samples: int, *, seed: int) -> list[Selection]:
    """Divides the samples of a dataset at random; which samples a part has is found out when it is first used.

    Args:
        parts: Fractions or numbers of samples, as `divide` takes them.
        num_samples: Of the dataset.
        seed: With ``num_samples`` and ``parts`` it decides which sample comes into which part.

    Raises:
        ConfigurationError: Such parts there cannot be, or the dataset has more than 2**32 samples.
    """
    if num_samples > _MAX_SPLIT:
        raise ConfigurationError(
            "a dataset of so many samples cannot be split: each part would hold the numbers of its samples; "
            "write the parts as datasets of their own", expected=f"<= {_MAX_SPLIT}", got=num_samples,
        )  # fmt: skip
    key = derive_key("split", seed)
    ends = [0, *itertools.accumulate(divide(parts, num_samples))]
    return [
        Selection(partial(permutation_members, key, num_samples, start, end), num_samples, end - start)
        for start, end in itertools.pairwise(ends)
    ]
