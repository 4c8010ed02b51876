"""Parts of a data set that are data sets themselves: filtered, split, projected; over the same open store and cache."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.plan import EpochPlan, PlanOptions
from concurrent_loader.selection import Selection, random_parts
from concurrent_loader.source import Source
from concurrent_loader.window import parse_window
from storage.cache import CacheStats
from storage.errors import ConfigurationError, SchemaError
from storage.fetch import FetchStats
from storage.loop_thread import LoopThread
from storage.public_names import PublicNames
from storage.shards.columns import ColumnKind, Schema
from storage.sizes import Size

__all__ = ["DatasetView", "Selectable", "WholeDataset"]

Indices = npt.NDArray[np.int64]
Values = npt.NDArray[Any] | list[Any]


class Selectable(PublicNames, ABC):
    """Samples in a fixed order that can be indexed, loaded, and selected from.

    Every selection is a `DatasetView`: it copies nothing and opens nothing, keeps the data set's order, and can be
    selected from again.
    """

    # -- what each kind says of itself -----------------------------------------------------------------------------

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def url(self) -> str:
        """Where the samples are, without credentials."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """All columns and their types."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns that samples and batches have."""

    @property
    @abstractmethod
    def metadata(self) -> dict[str, Any]:
        """Free-form JSON that came with the data set, class names for instance."""

    @property
    @abstractmethod
    def loop(self) -> LoopThread:
        """The thread that all requests run on, in this process."""

    @property
    @abstractmethod
    def fetch_stats(self) -> FetchStats:
        """Requests and bytes so far, in this process."""

    @property
    @abstractmethod
    def cache_stats(self) -> CacheStats:
        """Hits and misses so far, in this process."""

    @property
    @abstractmethod
    def fingerprint(self) -> int:
        """63 bits that name what is in it, in loader states."""

    @property
    @abstractmethod
    def unit_bounds(self) -> Indices:
        """(num_units + 1,) int64: where each unit's samples begin, and where the last one's end."""

    @property
    @abstractmethod
    def mean_sample_bytes(self) -> float:
        """Of all columns."""

    @abstractmethod
    def column(self, name: str) -> Values:
        """Reads one column of all samples: an array (len, *shape) for numbers, a list for str and json."""

    @abstractmethod
    async def reading(self, samples: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Reads several samples at once; for use on `loop`."""

    @property
    @abstractmethod
    def source(self) -> Source:
        """Brings units to the loader; a new one for each iteration."""

    @property
    @abstractmethod
    def stored(self) -> tuple[WholeDataset, ...]:
        """The data sets that own what is open: itself, or the one that it is a view of."""

    @property
    @abstractmethod
    def cache_dir(self) -> str | None:
        """The folder that keeps what was fetched, as given."""

    @abstractmethod
    def with_cache(self, cache_dir: str | os.PathLike[str], cache_bytes: Size | None = None) -> Selectable:
        """Returns the same samples, to be opened with another cache."""

    @abstractmethod
    def _select(self, selection: Selection | None, columns: tuple[str, ...]) -> DatasetView:
        """Makes a view of some samples (of all of them for None), with some columns."""

    @property
    def parts(self) -> tuple[Self]:
        """Whose columns batches have: its own."""
        return (self,)

    def plan(self, options: PlanOptions, epoch: int) -> EpochPlan:
        """Makes the order of an epoch; see `concurrent_loader.plan.EpochPlan`."""
        per_unit = np.diff(self.unit_bounds)
        window = parse_window(options.shuffle_window, self.mean_sample_bytes)
        if window > 1 and per_unit.max(initial=0) <= 1:
            window = 1  # units of one sample each are permuted, and that is all that there is to shuffle
        return EpochPlan(
            samples_per_shard=per_unit,
            global_batch_size=options.global_batch_size,
            seed=options.seed,
            epoch=epoch,
            groups=options.groups,
            shuffle=options.shuffle,
            window=window,
            last_batch=options.last_batch,
            fingerprint=self.fingerprint,
        )

    # -- samples ---------------------------------------------------------------------------------------------------

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        """Reads a sample, or several at once for a slice; images come as their encoded bytes.

        Raises:
            IndexError: No such sample.
            StorageError: It could not be fetched or is damaged.
        """
        if isinstance(index, slice):
            return self.loop.run(self.reading(range(len(self))[index], self.columns))
        return self.loop.run(self.reading([self._sample(index)], self.columns))[0]

    async def getitem_async(self, index: int) -> dict[str, Any]:
        """Reads a sample, for a caller on any event loop; see `__getitem__`."""
        return (await self.getitems_async([index]))[0]

    async def getitems_async(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Reads several samples at once, in the order of their indices; see `__getitem__`."""
        samples = [self._sample(index) for index in indices]
        return await asyncio.wrap_future(self.loop.submit(self.reading(samples, self.columns)))

    def _sample(self, index: int) -> int:
        number = index.__index__()
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(f"sample {index} of a data set of {len(self)}")
        return number

    # -- views -----------------------------------------------------------------------------------------------------

    def select_columns(self, columns: Sequence[str]) -> DatasetView:
        """Returns a view with these columns only, in this order.

        Raises:
            SchemaError: No such column.
        """
        for name in columns:
            self.schema[name]
        return self._select(None, tuple(columns))

    def subset(self, indices: Iterable[int] | npt.ArrayLike) -> DatasetView:
        """Returns a view of some samples, given by their numbers in any order; the view keeps the data set's order.

        Raises:
            IndexError: There is no such sample.
            ConfigurationError: One of them is given twice, or is no number.
        """
        return self._select(Selection.of(indices, len(self)), self.columns)

    def filter(
        self, predicate: Callable[[dict[str, Any]], Any], *, columns: Sequence[str], vectorized: bool = False
    ) -> DatasetView:
        """Returns a view of the samples for which a predicate holds. No payload is fetched.

        Args:
            predicate: Called with each sample, a dict of ``columns`` alone; what is true of it is kept. If
                ``vectorized``, called once with whole columns (arrays for numbers, lists for str and json), and returns
                one bool a sample.
            columns: What the predicate needs; numbers, str and json columns.
            vectorized: See there. A million labels take a few milliseconds then, instead of half a second.

        Raises:
            SchemaError: No such column, or one of payload.
            ConfigurationError: A vectorized predicate returned something else than one bool a sample.
        """
        if not columns:
            raise ConfigurationError("a filter needs to know which columns its predicate looks at", got=columns)
        for name in columns:
            if self.schema[name].kind is ColumnKind.PAYLOAD:
                raise SchemaError("a filter looks at small columns, not at payload", column=name)
        values = {name: self.column(name) for name in columns}
        if vectorized:
            mask = np.asarray(predicate(dict(values)))
            if mask.dtype != np.bool_ or mask.shape != (len(self),):
                raise ConfigurationError(
                    "a vectorized predicate returns one bool a sample",
                    expected=f"bool ({len(self)},)", got=f"{mask.dtype} {mask.shape}",
                )  # fmt: skip
        else:
            rows = zip(*(_by_sample(column) for column in values.values()), strict=True)
            kept = (bool(predicate(dict(zip(values, row, strict=True)))) for row in rows)
            mask = np.fromiter(kept, np.bool_, len(self))
        return self._select(Selection.where(mask), self.columns)

    @overload
    def split(self, parts: Sequence[float], *, seed: int = 0) -> list[DatasetView]: ...
    @overload
    def split(self, parts: Mapping[str, float], *, seed: int = 0) -> dict[str, DatasetView]: ...
    def split(
        self, parts: Sequence[float] | Mapping[str, float], *, seed: int = 0
    ) -> list[DatasetView] | dict[str, DatasetView]:
        """Divides the samples at random into parts that have none in common.

        Which samples a part has is found out when the part is first used: some 40 ns per sample of the data set.

        Args:
            parts: Fractions, together at most 1, or numbers of samples; a dict gives the parts names.
            seed: Which sample comes into which part is a function of it, of the number of samples and of ``parts``.

        Returns:
            Views in the order of ``parts``, or under their names. Fractions are rounded by largest remainder.

        Raises:
            ConfigurationError: Such parts there cannot be.
        """
        if isinstance(parts, Mapping):
            return dict(zip(parts, self.split(list(parts.values()), seed=seed), strict=True))
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
            raise ConfigurationError("seed must be an integer from 0 to 2**64 - 1", got=seed)
        return [self._select(part, self.columns) for part in random_parts(parts, len(self), seed=seed)]


class WholeDataset(Selectable):
    """A data set that is no view of another."""

    @abstractmethod
    def source_of(self, selection: Selection | None, columns: tuple[str, ...]) -> Source:
        """Brings the units to one iteration: all of their samples, or those that are selected."""

    @property
    def source(self) -> Source:
        """Brings units to the loader; a new one for each iteration."""
        return self.source_of(None, self.columns)

    @property
    def stored(self) -> tuple[WholeDataset, ...]:
        """Itself."""
        return (self,)

    @abstractmethod
    def column_of(self, name: str, samples: Indices) -> Values:
        """Reads one column of some samples: (n,) int64 sample numbers in ascending order."""

    @property
    @abstractmethod
    def unit_sizes(self) -> Indices:
        """(num_units,) int64, in bytes."""

    @abstractmethod
    def with_cache(self, cache_dir: str | os.PathLike[str], cache_bytes: Size | None = None) -> Self:
        """Returns this data set, same snapshot and all, with another cache."""

    @abstractmethod
    def close(self) -> None:
        """Closes connections, files and the loop's thread. Idempotent."""

    def _select(self, selection: Selection | None, columns: tuple[str, ...]) -> DatasetView:
        return DatasetView(self, selection, columns)


class DatasetView(Selectable):
    """Some samples of a data set, with some of its columns. Made by the methods of `Selectable`.

    It lives from the data set that it is of: closing that one closes its views. Sample numbers in errors and in
    ``batch.sample_ids`` are those of that data set, not of the view.

    Processes: It pickles as its data set and one bit for each of that one's samples, or less.
    """

    def __init__(self, base: WholeDataset, selection: Selection | None, columns: tuple[str, ...]) -> None:
        self._base = base
        self._selection = selection
        self._columns = columns

    @property
    def base(self) -> WholeDataset:
        """The data set that this is a view of."""
        return self._base

    @property
    def sample_numbers(self) -> Indices:
        """(len,) int64, the samples' numbers in the data set that this is a view of."""
        return np.arange(len(self._base)) if self._selection is None else self._selection.numbers

    def __len__(self) -> int:
        return len(self._base) if self._selection is None else len(self._selection)

    @property
    def url(self) -> str:
        return self._base.url

    @property
    def schema(self) -> Schema:
        return self._base.schema

    @property
    def columns(self) -> tuple[str, ...]:
        return self._columns

    @property
    def metadata(self) -> dict[str, Any]:
        return self._base.metadata

    @property
    def loop(self) -> LoopThread:
        return self._base.loop

    @property
    def fetch_stats(self) -> FetchStats:
        return self._base.fetch_stats

    @property
    def cache_stats(self) -> CacheStats:
        return self._base.cache_stats

    @property
    def fingerprint(self) -> int:
        whole = self._base.fingerprint
        if self._selection is None or self._selection.fingerprint == 0:
            return whole
        return xxhash.xxh3_64_intdigest(f"{whole} {self._selection.fingerprint}".encode()) >> 1

    @property
    def unit_bounds(self) -> Indices:
        bounds = self._base.unit_bounds
        return bounds if self._selection is None else self._selection.bounds(bounds)

    @property
    def mean_sample_bytes(self) -> float:
        return self._base.mean_sample_bytes

    def column(self, name: str) -> Values:
        if self._selection is None:
            return self._base.column(name)
        return self._base.column_of(name, self._selection.numbers)

    async def reading(self, samples: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        if self._selection is not None:
            samples = self._selection.numbers[np.asarray(samples, np.int64)].tolist()
        return await self._base.reading(samples, columns)

    @property
    def source(self) -> Source:
        return self._base.source_of(self._selection, self._columns)

    @property
    def stored(self) -> tuple[WholeDataset, ...]:
        return (self._base,)

    @property
    def cache_dir(self) -> str | None:
        return self._base.cache_dir

    def with_cache(self, cache_dir: str | os.PathLike[str], cache_bytes: Size | None = None) -> DatasetView:
        return self.over(self._base.with_cache(cache_dir, cache_bytes))

    def over(self, base: WholeDataset) -> DatasetView:
        """Returns the same view of the same data set that was opened in another way."""
        return DatasetView(base, self._selection, self._columns)

    def _select(self, selection: Selection | None, columns: tuple[str, ...]) -> DatasetView:
        if self._selection is not None:
            selection = self._selection if selection is None else self._selection.take(selection)
        return DatasetView(self._base, selection, columns)

    def __repr__(self) -> str:
        return f"DatasetView({self._base!r}, samples={len(self)}, columns={self._columns})"


def _by_sample(values: Values) -> Iterable[Any]:
    # Python numbers, as in `dataset[i]`.
    return values.tolist() if isinstance(values, np.ndarray) and values.ndim == 1 else values
