"""Defines `Mixture`: several datasets loaded as one, in given proportions, from any stores."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar, get_args

from concurrent_loader.datasets.length_batches import plan_packed
from concurrent_loader.datasets.mixture_source import MixtureSource
from concurrent_loader.datasets.protocol import LoadableDataset
from concurrent_loader.datasets.views import DatasetView, Selectable, WholeDataset
from concurrent_loader.order.apportion import check_weights, largest_remainder
from concurrent_loader.order.epoch_plan import EpochPlan
from concurrent_loader.order.mixture_plan import MixturePlan, Per, Stop
from concurrent_loader.order.options import PlanOptions
from concurrent_loader.order.packed_plan import PackedPlan
from concurrent_loader.order.packing import Packed
from concurrent_loader.order.shuffle import derive_key
from concurrent_loader.storage.cache import CacheStats
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.fetch import FetchStats
from concurrent_loader.storage.images import ImageType
from concurrent_loader.storage.loop_thread import LoopThread
from concurrent_loader.storage.public_names import PublicNames
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.sizes import Size, format_count

__all__ = ["Mixture"]

StatsT = TypeVar("StatsT", FetchStats, CacheStats)

_MAX_SHOWN = 3  # datasets in a text
_IMAGE_TYPES = frozenset(get_args(ImageType))
# Statistics for which a mixture reports the maximum of its datasets instead of the sum.
_NO_SUMS = frozenset({"first_byte_p50_s", "first_byte_p95_s", "first_byte_p99_s", "limit"})


class Mixture(PublicNames):
    """Several datasets in given proportions, which take turns batch by batch or share every batch.

    Each dataset goes through its own epochs, in an order that depends on the loader's seed and the epoch's number, not
    on the other datasets. When an epoch of a dataset ends, its next one begins. An epoch of the mixture ends as
    ``stop`` says, and the next one continues at each dataset's position. So every sample comes exactly once in an epoch
    of its own dataset, whatever the weights. docs/how-to/datasets.md has examples, docs/explanation/order.md describes
    the scheme.

    ``batch.sources`` has the number of each sample's dataset, and ``batch.sample_ids`` its number in that dataset.

    Args:
        datasets: `ShardDataset`, `ObjectDataset`, or views of them. The caller closes them.
        weights: Relative weights of the datasets. Default: their numbers of samples. With ``per="batch"`` and a number
            as ``stop``, also a schedule: step of the epoch → weights from that step on, ``{0: [9, 1], 5000: [1, 1]}``.
            There a weight may be 0.
        per: ``"batch"``, the default, takes each batch from one dataset, with that dataset's columns. Each dataset's
            share of an epoch's batches is its weight, evenly spread. ``"sample"`` puts a fixed number of samples of
            each dataset into every global batch, by weight with largest remainder, evenly spread. Batches then have the
            columns that all datasets have in common.
        stop: End of an epoch: ``"shortest"``, the default, ends it before any dataset would begin again, ``"longest"``
            when every dataset has been used up at least once, and a number after that many steps.

    Raises:
        ConfigurationError: An argument is invalid. The loader raises it if a dataset has too little weight or too few
            samples, because that depends on the batch size.

    Processes: A mixture pickles as its datasets and arguments.

    Example:
        >>> from concurrent_loader import ConcurrentDataLoader, Mixture, ShardDataset
        >>> with ShardDataset("photos") as first, ShardDataset("photos") as second:
        ...     loader = ConcurrentDataLoader(Mixture([first, second], [3, 1], per="sample"), batch_size=8)
        ...     next(iter(loader)).sources.tolist().count(0)
        6
    """

    def __init__(
        self,
        datasets: Sequence[Selectable],
        weights: Sequence[float] | Mapping[int, Sequence[float]] | None = None,
        *,
        per: Per = "batch",
        stop: Stop = "shortest",
    ) -> None:
        self._children = tuple(datasets)
        if not self._children:
            raise ConfigurationError("a mixture needs at least one dataset")
        for child in self._children:
            if not isinstance(child, Selectable):
                raise ConfigurationError(
                    "a mixture takes ShardDatasets, ObjectDatasets and views of them", got=type(child).__name__
                )
        if weights is None:
            weights = [len(child) for child in self._children]
        rows: list[Sequence[float]] = list(weights.values()) if isinstance(weights, Mapping) else [weights]
        if any(len(row) != len(self._children) for row in rows):
            raise ConfigurationError(
                "a mixture needs one weight per dataset", expected=len(self._children), got=weights
            )
        self._phases = _check_schedule(weights, per, stop) if isinstance(weights, Mapping) else ()
        self._shares = self._phases[0][1] if self._phases else check_weights(rows[0])
        if per not in ("batch", "sample"):
            raise ConfigurationError("per must be 'batch' or 'sample'", got=per)
        if stop not in ("shortest", "longest") and (isinstance(stop, bool) or not isinstance(stop, int) or stop < 1):
            raise ConfigurationError("stop must be 'shortest', 'longest' or a number of steps", got=stop)
        self._per: Per = per
        self._stop: Stop = stop
        self._schema = _common(self._children) if per == "sample" else None

    # -- contents --------------------------------------------------------------------------------------------------

    @property
    def datasets(self) -> tuple[Selectable, ...]:
        """Datasets as given."""
        return self._children

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of each dataset, at the beginning of an epoch if weights change; they add up to 1."""
        return self._shares

    @property
    def schema(self) -> Schema:
        """Columns that all datasets have in common, with ``per="sample"``.

        Raises:
            ConfigurationError: The mixture has ``per="batch"``.
        """
        if self._schema is None:
            raise ConfigurationError("a mixture per='batch' has no common schema; use the schemas of its datasets")
        return self._schema

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the common columns; see `schema`."""
        return self.schema.names

    def __repr__(self) -> str:
        return (
            f"Mixture({list(self._children)!r}, weights={list(self._shares)}, per={self._per!r}, stop={self._stop!r})"
        )

    def __str__(self) -> str:
        """Describes the mixture in a few lines: its datasets with their shares, at most three of them."""
        shown = [
            f"  {share:.1%} {str(each).splitlines()[0]}"
            for share, each in zip(self._shares, self._children[:_MAX_SHOWN], strict=False)
        ]
        more = len(self._children) - _MAX_SHOWN
        head = f"Mixture of {format_count(len(self._children), 'dataset')}, per {self._per}, stops at {self._stop}"
        return "\n".join((head, *shown, *([f"  and {format_count(more, 'other')}"] if more > 0 else [])))

    # -- for the loader --------------------------------------------------------------------------------------------

    @property
    def parts(self) -> Sequence[LoadableDataset]:
        """Datasets whose columns batches have."""
        return (self,) if self._schema is not None else self._children

    @property
    def loop(self) -> LoopThread:
        """Thread with the first dataset's event loop. The other datasets are used on their own event loops."""
        return self._children[0].loop

    @property
    def source(self) -> MixtureSource:
        """New source of all datasets' units for one iteration of a loader."""
        return MixtureSource(self._children)

    def source_for(self, options: PlanOptions, epoch: int) -> MixtureSource:
        """Returns a new source of all datasets' units for one iteration over an epoch."""
        return self.source

    @property
    def fetch_stats(self) -> FetchStats:
        """Counters of all datasets' requests. Percentiles are the maximum over the datasets."""
        return _total([child.fetch_stats for child in self.stored], FetchStats)

    @property
    def cache_stats(self) -> CacheStats:
        """Counters of all datasets' caches."""
        return _total([child.cache_stats for child in self.stored], CacheStats)

    @property
    def stored(self) -> tuple[WholeDataset, ...]:
        """Datasets that own the open resources, each once."""
        return tuple({id(owner): owner for child in self._children for owner in child.stored}.values())

    @property
    def cache_dir(self) -> str | None:
        """Cache folder of the first dataset; None if any dataset has no cache."""
        folders = [owner.cache_dir for owner in self.stored]
        return None if None in folders else folders[0]

    def with_cache(self, cache_dir: str | os.PathLike[str], cache_bytes: Size | None = None) -> Mixture:
        """Returns the same mixture, with this cache for each dataset that has none."""
        owners = {
            id(owner): owner if owner.cache_dir is not None else owner.with_cache(cache_dir, cache_bytes)
            for owner in self.stored
        }
        children: list[Selectable] = []
        for child in self._children:
            owner = owners[id(child.stored[0])]
            children.append(child.over(owner) if isinstance(child, DatasetView) else owner)
        other = Mixture.__new__(Mixture)
        other.__dict__.update(self.__dict__, _children=tuple(children))
        return other

    def plan(self, options: PlanOptions, epoch: int) -> MixturePlan:
        """Returns the order of an epoch.

        Raises:
            ConfigurationError: A dataset would have no sample in a batch, or no batch in an epoch; or the options have
                ``sampling`` or ``batching`` other than `Packed`.
        """
        packed = options.batching
        if options.sampling is not None or not isinstance(packed, Packed | None):
            raise ConfigurationError("sampling= and batching= need one dataset; a Mixture draws by its own weights")
        if packed is not None and (self._per != "batch" or packed.packing != "split"):
            raise ConfigurationError(
                "Packed needs a Mixture with per='batch', and packing='split', so that all epochs have as many rows",
                got=(self._per, packed.packing),
            )
        sizes = [options.global_batch_size] * len(self._children)
        if self._per == "sample":
            sizes = largest_remainder(self._shares, options.global_batch_size)
            if min(sizes) == 0:
                raise ConfigurationError(
                    "a dataset of the mixture would have no sample in a batch; give it more weight, or make batches "
                    "larger", got=sizes,
                )  # fmt: skip
        children: list[EpochPlan | PackedPlan] = []
        for number, (child, size) in enumerate(zip(self._children, sizes, strict=True)):
            own = replace(options, global_batch_size=size, seed=derive_key("mixture", options.seed, number))
            children.append(
                child.sample_plan(own, epoch=0)
                if packed is None
                else plan_packed(child, own, packed.part(number), epoch=0)
            )
        return MixturePlan(
            children=tuple(children),
            shares=self._shares,
            per=self._per,
            stop=self._stop,
            epoch=epoch,
            seed=options.seed,
            shuffle=options.shuffle,
            phases=self._phases,
        )


def _check_schedule(
    weights: Mapping[int, Sequence[float]], per: object, stop: object
) -> tuple[tuple[int, tuple[float, ...]], ...]:
    """Returns the phases of weights that change at given steps: (first step, shares) each."""
    steps = list(weights)
    if per != "batch" or isinstance(stop, bool) or not isinstance(stop, int):
        raise ConfigurationError("weights that change need per='batch', and a number of steps as stop", got=(per, stop))
    if not steps or steps[0] != 0 or steps != sorted(set(steps)) or steps[-1] >= stop:
        raise ConfigurationError("steps of weights must ascend from 0, and lie before stop", expected=stop, got=steps)
    return tuple((step, check_weights(each, with_zero=True)) for step, each in weights.items())


def _common(children: Sequence[Selectable]) -> Schema:
    """Returns the columns that all datasets have in common, in the first dataset's order."""
    names = [name for name in children[0].columns if all(name in child.columns for child in children)]
    if not names:
        raise ConfigurationError(
            "the datasets have no column in common; mix them per='batch'", got=[child.columns for child in children]
        )
    types: dict[str, str] = {}
    for name in names:
        found = {child.schema[name].base_type for child in children}
        optional = any(child.schema[name].optional for child in children)
        if len(found) > 1 and not found <= _IMAGE_TYPES:
            raise ConfigurationError(
                "a column's type differs between the datasets; leave it out with select_columns, or mix them "
                "per='batch'", column=name, got=sorted(found),
            )  # fmt: skip
        types[name] = (found.pop() if len(found) == 1 else "image") + ("?" if optional else "")
    return Schema.parse(types)


def _total(parts: Sequence[StatsT], kind: type[StatsT]) -> StatsT:
    totals: dict[str, Any] = {}
    for field in fields(kind):
        values = [getattr(part, field.name) for part in parts]
        totals[field.name] = max(values) if field.name in _NO_SUMS else sum(values)
    return kind(**totals)
