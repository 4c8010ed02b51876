"""Selects parts of a dataset: filters, splits, subsets and columns, which share its open store and cache."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt
import xxhash

from concurrent_loader.datasets.protocol import Source
from concurrent_loader.datasets.readable import ReadableDataset
from concurrent_loader.datasets.selection import Selection, random_split
from concurrent_loader.order.batching import ByLength
from concurrent_loader.order.epoch_plan import EpochPlan
from concurrent_loader.order.listed_plan import ListedPlan
from concurrent_loader.order.options import PlanOptions
from concurrent_loader.storage.cache import CacheStats
from concurrent_loader.storage.errors import ConfigurationError, SchemaError
from concurrent_loader.storage.fetch import FetchStats
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.shards.editing.where import Where
from concurrent_loader.storage.shards.format.nulls import plain_values
from concurrent_loader.storage.shards.format.schema import ColumnKind, Schema
from concurrent_loader.storage.sizes import Size

__all__ = ["DatasetView", "Selectable", "WholeDataset"]

Indices = npt.NDArray[np.int64]
Values = npt.NDArray[Any] | list[Any]


class Selectable(ReadableDataset):
    """Samples in a fixed order, from which parts can be selected.

    Every selection is a `DatasetView`. A view copies nothing, opens nothing, keeps the dataset's order, and can be
    selected from again.
    """

    @property
    @abstractmethod
    def stored(self) -> tuple[WholeDataset, ...]:
        """Datasets that own the open resources: this one, or the base of this view."""

    @abstractmethod
    def with_cache(self, cache_dir: str | os.PathLike[str], cache_bytes: Size | None = None) -> Selectable:
        """Returns the same samples with another cache."""

    @abstractmethod
    def _select(self, selection: Selection | None, columns: tuple[str, ...]) -> DatasetView:
        """Makes a view of some samples (None: of all samples) and some columns."""

    # -- sampling --------------------------------------------------------------------------------------------------

    def plan(self, options: PlanOptions, epoch: int) -> EpochPlan | ListedPlan:
        """Returns the order of an epoch; see `concurrent_loader.order.epoch_plan.EpochPlan`."""
        if options.sampling is None:
            return super().plan(options, epoch)
        if isinstance(options.batching, ByLength) and not isinstance(options.batching.lengths, str):
            raise ConfigurationError("with sampling=, ByLength needs the name of a column instead of an array")
        return self.drawn(options, epoch).plan(replace(options, sampling=None), epoch)

    def source_for(self, options: PlanOptions, epoch: int) -> Source:
        """Returns a new source of units for one iteration over an epoch."""
        return self.drawn(options, epoch).source

    def drawn(self, options: PlanOptions, epoch: int) -> Selectable:
        """Returns the samples of an epoch: this dataset, or a view of it with the samples that ``sampling`` draws."""
        sampling = options.sampling
        if sampling is None:
            return self

        def draw() -> Selection:
            numbers = sampling.draw(self.column, len(self), seed=options.seed, epoch=epoch)
            return Selection(numbers, len(self), repeats=True)

        selection = sampling.remember((self.fingerprint, len(self), options.seed, epoch), draw)
        return self._select(selection, self.columns)

    # -- views -----------------------------------------------------------------------------------------------------

    def select_columns(self, columns: Sequence[str]) -> DatasetView:
        """Returns a view with some columns.

        Args:
            columns: Names of the columns, in the order of the view.

        Raises:
            SchemaError: A column does not exist.

        Example:
            >>> from concurrent_loader import ShardDataset
            >>> with ShardDataset("photos") as dataset:
            ...     dataset.select_columns(["label"])[0]
            {'label': 0}
        """
        for name in columns:
            self.schema[name]
        return self._select(None, tuple(columns))

    def subset(self, indices: Iterable[int] | npt.ArrayLike) -> DatasetView:
        """Returns a view of some samples. The view keeps the dataset's order.

        Args:
            indices: Numbers of the samples, in any order. A sample whose number occurs several times comes several
                times in an epoch.

        Raises:
            IndexError: A sample does not exist.
            ConfigurationError: A number is not an integer.

        Example:
            >>> from concurrent_loader import ShardDataset
            >>> with ShardDataset("photos") as dataset:
            ...     len(dataset.subset([7, 3, 5]))
            3
        """
        return self._select(Selection.from_indices(indices, len(self)), self.columns)

    def filter(
        self,
        predicate: Callable[[dict[str, Any]], Any] | str,
        *,
        columns: Sequence[str] | None = None,
        vectorized: bool = False,
    ) -> DatasetView:
        """Returns a view of the samples for which a predicate is true. No payload is fetched.

        Args:
            predicate: Condition such as ``"label == 7 and width < 64"``, as for
                `concurrent_loader.storage.delete`; or function called with each sample, a dict of ``columns`` only. If
                ``vectorized``, it is called once with whole columns (arrays for numbers, lists for str and json), and
                returns one bool per sample.
            columns: Columns that a function needs: numbers, str and json. A condition names its own.
            vectorized: Whether to pass whole columns, False by default. With True, a million labels take a few
                milliseconds instead of half a second.

        Raises:
            SchemaError: A column does not exist, or holds payload.
            ConfigurationError: The condition is invalid, a function comes without ``columns``, or a vectorized one did
                not return one bool per sample.

        Example:
            >>> from concurrent_loader import ShardDataset
            >>> with ShardDataset("photos") as dataset:
            ...     zeros = dataset.filter(lambda sample: sample["label"] == 0, columns=["label"])
            ...     {sample["label"] for sample in zeros[:]}
            {0}
        """
        if isinstance(predicate, str):
            if columns is not None or vectorized:
                raise ConfigurationError("a condition names its own columns; leave columns= and vectorized= out")
            predicate = Where(predicate, self.schema)
            columns, vectorized = predicate.columns, True
        if not columns:
            raise ConfigurationError("a filter needs the columns of its predicate: pass columns=[…]", got=columns)
        for name in columns:
            if self.schema[name].kind is ColumnKind.PAYLOAD:
                raise SchemaError("a filter can use small columns, but no payload column", column=name)
        values = {name: self.column(name) for name in columns}
        if vectorized:
            mask = np.asarray(np.ma.filled(predicate(dict(values)), False))
            if mask.dtype != np.bool_ or mask.shape != (len(self),):
                raise ConfigurationError(
                    "a vectorized predicate must return one bool per sample",
                    expected=f"bool ({len(self)},)", got=f"{mask.dtype} {mask.shape}",
                )  # fmt: skip
        else:
            rows = zip(*(_by_sample(column) for column in values.values()), strict=True)
            kept = (bool(predicate(dict(zip(values, row, strict=True)))) for row in rows)
            mask = np.fromiter(kept, np.bool_, len(self))
        return self._select(Selection.from_mask(mask), self.columns)

    @overload
    def split(self, parts: Sequence[float], *, seed: int = 0) -> list[DatasetView]: ...
    @overload
    def split(self, parts: Mapping[str, float], *, seed: int = 0) -> dict[str, DatasetView]: ...
    def split(
        self, parts: Sequence[float] | Mapping[str, float], *, seed: int = 0
    ) -> list[DatasetView] | dict[str, DatasetView]:
        """Splits the samples at random into disjoint parts.

        A part's samples are computed when the part is first used, in about 40 ns per sample of the dataset.

        Args:
            parts: Fractions with a sum of at most 1, or numbers of samples. A dict gives the parts names.
            seed: Seed, 0 by default. The split depends only on it, on ``parts`` and on the number of samples.

        Returns:
            Views in the order of ``parts``, or a dict of views. Fractions are rounded by largest remainder.

        Raises:
            ConfigurationError: A part is negative, or the parts exceed the dataset.

        Example:
            >>> from concurrent_loader import ShardDataset
            >>> with ShardDataset("photos") as dataset:
            ...     parts = dataset.split({"train": 0.8, "test": 0.2})
            ...     {name: len(part) for name, part in parts.items()}
            {'train': 16, 'test': 4}
        """
        if isinstance(parts, Mapping):
            return dict(zip(parts, self.split(list(parts.values()), seed=seed), strict=True))
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
            raise ConfigurationError("seed must be an integer from 0 to 2**64 - 1", got=seed)
        return [self._select(part, self.columns) for part in random_split(parts, len(self), seed=seed)]


class WholeDataset(Selectable):
    """A dataset with its own store, as opposed to a view."""

    @abstractmethod
    def make_source(self, selection: Selection | None, columns: tuple[str, ...]) -> Source:
        """Makes a source of units for one iteration, with all samples or the selected ones."""

    @property
    def source(self) -> Source:
        """New source of units for one iteration of a loader."""
        return self.make_source(None, self.columns)

    @property
    def stored(self) -> tuple[WholeDataset, ...]:
        """This dataset alone."""
        return (self,)

    @abstractmethod
    def column_values(self, name: str, samples: Indices) -> Values:
        """Returns one column of some samples.

        Args:
            name: Name of the column.
            samples: (n,) int64, sample numbers in ascending order.
        """

    @abstractmethod
    def value_lengths(self, name: str, samples: Indices | None, *, exact: bool = False) -> Indices:
        """Returns the lengths of a column's values, without reading payload; see `ReadableDataset.lengths`.

        Args:
            name: Name of the column.
            samples: (n,) int64, sample numbers in ascending order; None for all samples.
            exact: As for `ReadableDataset.lengths`.
        """

    def lengths(self, name: str, *, exact: bool = False) -> Indices:
        return self.value_lengths(name, None, exact=exact)

    @property
    @abstractmethod
    def unit_sizes(self) -> Indices:
        """(num_units,) int64, sizes of the units in bytes."""

    @abstractmethod
    def with_cache(self, cache_dir: str | os.PathLike[str], cache_bytes: Size | None = None) -> Self:
        """Returns the same snapshot of this dataset with another cache."""

    @abstractmethod
    def close(self) -> None:
        """Closes connections, files and the event loop's thread. Idempotent."""

    def _select(self, selection: Selection | None, columns: tuple[str, ...]) -> DatasetView:
        return DatasetView(self, selection, columns)


class DatasetView(Selectable):
    """Some samples of a dataset, with some of its columns. `subset`, `filter`, `split` and `select_columns` make views.

    A view shares the resources of its dataset, so closing the dataset closes its views. Sample numbers in errors and in
    ``batch.sample_ids`` are those of the dataset, not of the view.

    Processes: A view pickles as its dataset and at most one bit per sample of the dataset.

    Example:
        >>> from concurrent_loader import ShardDataset
        >>> with ShardDataset("photos") as dataset:
        ...     view = dataset.subset(range(4, 8)).select_columns(["label"])
        ...     len(view), view.columns, view.sample_numbers.tolist()
        (4, ('label',), [4, 5, 6, 7])
    """

    def __init__(self, base: WholeDataset, selection: Selection | None, columns: tuple[str, ...]) -> None:
        self._base = base
        self._selection = selection
        self._columns = columns

    @property
    def base(self) -> WholeDataset:
        """Dataset that this is a view of."""
        return self._base

    @property
    def sample_numbers(self) -> Indices:
        """(len,) int64, numbers of the samples in `base`."""
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
        return self._base.column_values(name, self._selection.numbers)

    def lengths(self, name: str, *, exact: bool = False) -> Indices:
        numbers = None if self._selection is None else self._selection.numbers
        return self._base.value_lengths(name, numbers, exact=exact)

    async def read_samples(self, samples: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        if self._selection is not None:
            samples = self._selection.numbers[np.asarray(samples, np.int64)].tolist()
        return await self._base.read_samples(samples, columns)

    @property
    def source(self) -> Source:
        return self._base.make_source(self._selection, self._columns)

    @property
    def stored(self) -> tuple[WholeDataset, ...]:
        return (self._base,)

    @property
    def cache_dir(self) -> str | None:
        return self._base.cache_dir

    def with_cache(self, cache_dir: str | os.PathLike[str], cache_bytes: Size | None = None) -> DatasetView:
        return self.over(self._base.with_cache(cache_dir, cache_bytes))

    def over(self, base: WholeDataset) -> DatasetView:
        """Returns the same view of another instance of the same dataset."""
        return DatasetView(base, self._selection, self._columns)

    def _select(self, selection: Selection | None, columns: tuple[str, ...]) -> DatasetView:
        if self._selection is not None:
            selection = self._selection if selection is None else self._selection.compose(selection)
        return DatasetView(self._base, selection, columns)

    def __repr__(self) -> str:
        return f"DatasetView({self._base!r}, samples={len(self)}, columns={self._columns})"


def _by_sample(values: Values) -> Iterable[Any]:
    found: Iterable[Any] = plain_values(values)
    return found
