"""Declares what every dataset offers: samples in a fixed order, read by index or loaded in batches."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt

from concurrent_loader.datasets.length_batches import plan_by_length, plan_by_sampler, plan_packed
from concurrent_loader.datasets.protocol import Source
from concurrent_loader.decode.registry import Decoder, make_decoder
from concurrent_loader.errors import DecodeError
from concurrent_loader.order.epoch_plan import EpochPlan
from concurrent_loader.order.listed_plan import ListedPlan
from concurrent_loader.order.options import PlanOptions, parse_window
from concurrent_loader.order.packing import Packed
from concurrent_loader.order.sampler_batches import SamplerBatches
from concurrent_loader.storage.cache import CacheStats
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.fetch import FetchStats
from concurrent_loader.storage.html_table import html_table
from concurrent_loader.storage.images import COLUMN_FORMATS
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.public_names import PublicNames
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.sizes import format_count, format_size

__all__ = ["ReadableDataset"]

Indices = npt.NDArray[np.int64]
Values = npt.NDArray[Any] | list[Any]


class ReadableDataset(PublicNames, ABC):
    """Samples in a fixed order, read by index or loaded in batches."""

    # -- members that each kind of dataset defines -----------------------------------------------------------------

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def url(self) -> str:
        """URL of the dataset, without credentials."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """Names and types of all columns."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of samples and batches."""

    @property
    @abstractmethod
    def metadata(self) -> dict[str, Any]:
        """Free-form JSON stored with the dataset, such as class names."""

    @property
    @abstractmethod
    def loop(self) -> LoopThread:
        """Thread with the event loop for all requests in this process."""

    @property
    @abstractmethod
    def fetch_stats(self) -> FetchStats:
        """Counters of requests and bytes in this process."""

    @property
    @abstractmethod
    def cache_stats(self) -> CacheStats:
        """Counters of cache hits and misses in this process."""

    @property
    @abstractmethod
    def fingerprint(self) -> int:
        """63-bit hash that identifies the contents in loader states."""

    @property
    @abstractmethod
    def unit_bounds(self) -> Indices:
        """(num_units + 1,) int64, number of each unit's first sample, and the number of samples."""

    @property
    @abstractmethod
    def mean_sample_bytes(self) -> float:
        """Mean size of a sample in bytes, over all columns."""

    @abstractmethod
    def column(self, name: str) -> Values:
        """Returns one column of all samples: an array (len, *shape) for numbers, a list for str and json.

        Of an optional column, the array is a ``numpy.ma.MaskedArray`` whose nulls are masked, and the list has None.
        """

    @abstractmethod
    def lengths(self, name: str, *, exact: bool = False) -> Indices:
        """Returns the lengths of a column's values, (len,) int64, from the shards' indexes: no payload is fetched.

        Integers are lengths themselves. The length of an array of any shape is its number of items, of a string of
        characters, of bytes and images of bytes. Arrays count exactly if they have one dimension, and are in shards of
        this project, or were adopted as bare numbers.

        Args:
            name: Name of the column.
            exact: Whether to raise an error if adopted arrays have headers, whose size is not known. False by default:
                they are counted as items then.

        Raises:
            SchemaError: The column does not exist, or its values have no (exact) lengths.
        """

    @abstractmethod
    async def read_samples(self, samples: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Reads several samples concurrently. Must be called on `loop`."""

    @property
    @abstractmethod
    def source(self) -> Source:
        """New source of units for one iteration of a loader."""

    @property
    @abstractmethod
    def cache_dir(self) -> str | None:
        """Cache folder as given; None without a cache."""

    @property
    def parts(self) -> tuple[Self]:
        """Datasets whose columns batches have: this one alone."""
        return (self,)

    def plan(self, options: PlanOptions, epoch: int) -> EpochPlan | ListedPlan:
        """Returns the order of an epoch; see `concurrent_loader.order.epoch_plan.EpochPlan`."""
        if isinstance(options.batching, SamplerBatches):
            return plan_by_sampler(self, options, options.batching, epoch)
        if isinstance(options.batching, Packed):
            return plan_packed(self, options, options.batching, epoch)
        if options.batching is not None:
            return plan_by_length(self, options, options.batching, epoch)
        return self.sample_plan(options, epoch)

    def sample_plan(self, options: PlanOptions, epoch: int) -> EpochPlan:
        """Returns the order of an epoch whose batches are consecutive samples."""
        per_unit = np.diff(self.unit_bounds)
        window = parse_window(options.shuffle_window, self.mean_sample_bytes)
        if window > 1 and per_unit.max(initial=0) <= 1:
            window = 1  # permuting units of one sample each is a complete shuffle
        return EpochPlan(
            samples_per_unit=per_unit,
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
        """Reads a sample as a dict, or several samples concurrently for a slice. Images stay encoded.

        Raises:
            IndexError: The sample does not exist.
            StorageError: The sample cannot be fetched, or is damaged.
        """
        if isinstance(index, slice):
            return self.loop.run(self.read_samples(range(len(self))[index], self.columns))
        return self.loop.run(self.read_samples([self._check_index(index)], self.columns))[0]

    def sample(self, index: int, *, decode: Mapping[str, str | Decoder] | None = None) -> dict[str, Any]:
        """Reads a sample as a dict, with its images decoded, to look at it.

        Args:
            index: Number of the sample; negative numbers count from the end.
            decode: Image column → ``"rgb"``, ``"gray"``, ``"unchanged"`` or a function of the encoded bytes. Other
                image columns, by default all, are decoded as ``"rgb"``.

        Returns:
            Values by column. An image is a tensor (C, H, W), uint8 and upright; see
            `concurrent_loader.decode.make_decoder`. A null is None.

        Raises:
            IndexError: The sample does not exist.
            ConfigurationError: ``decode`` names a column without images, or a way of decoding that does not exist.
            DecodeError: An image is damaged or too large.
            StorageError: The sample cannot be fetched, or is damaged.

        Example:
            >>> from concurrent_loader import ShardDataset
            >>> with ShardDataset("photos") as dataset:
            ...     dataset.sample(17)["image"].shape[0]
            3
        """
        wanted = dict(decode or {})
        for name in wanted:
            if name not in self.columns:
                raise ConfigurationError(
                    "decode names a column that samples do not have", expected=list(self.columns), got=name
                )
        images = {name: "rgb" for name in self.columns if self.schema[name].base_type in COLUMN_FORMATS}
        decoders = {name: make_decoder(how, self.schema[name].base_type) for name, how in {**images, **wanted}.items()}
        values = self[index]
        for name, decoder in decoders.items():
            try:
                values[name] = None if values[name] is None else decoder(values[name])
            except DecodeError as error:
                error.locate(sample=self._check_index(index), column=name)
                raise
        return values

    def __str__(self) -> str:
        """Describes the dataset in a few lines, without a request: a dataset that is not open is shown by `repr`."""
        owners: Any = getattr(self, "stored", ())
        if not all(vars(each).get("_pid", True) for each in owners):
            return repr(self)
        columns = ", ".join(f"{name} {self.schema[name].type}" for name in self.columns)
        num_units = len(self.unit_bounds) - 1
        cache = "no cache" if self.cache_dir is None else f"cache {self.cache_dir}"
        fetched = f"{format_size(self.fetch_stats.num_bytes)} fetched"
        return "\n".join(
            (
                f"{type(self).__name__} {self.url}",
                f"  {format_count(len(self), 'sample')} of {format_size(self.mean_sample_bytes)} on average",
                f"  in {format_count(num_units, 'shard or object', 'shards or objects')}",
                f"  columns: {columns}",
                f"  {cache}; {fetched}",
            )
        )

    def _repr_html_(self) -> str:
        """Shows a dataset in a notebook, without a request."""
        rows = [(name, self.schema[name].type) for name in self.columns]
        note = f"{format_count(len(self), 'sample')}, {format_size(self.mean_sample_bytes)} each on average"
        return html_table(f"{type(self).__name__} {self.url}", rows, note=note)

    async def getitem_async(self, index: int) -> dict[str, Any]:
        """Reads a sample from any event loop; see `__getitem__`."""
        return (await self.getitems_async([index]))[0]

    async def getitems_async(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Reads several samples concurrently from any event loop, in the order of ``indices``; see `__getitem__`."""
        samples = [self._check_index(index) for index in indices]
        return await asyncio.wrap_future(self.loop.submit(self.read_samples(samples, self.columns)))

    def _check_index(self, index: int) -> int:
        number = index.__index__()
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(f"sample {index} does not exist in a dataset of {len(self)} samples")
        return number
