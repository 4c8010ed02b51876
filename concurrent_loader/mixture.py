"""Several data sets loaded as one, in given proportions: from any stores, with the columns of any of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from concurrent_loader.mixture_plan import MixturePlan, Per, Stop
from concurrent_loader.mixture_source import MixtureSource
from concurrent_loader.plan import PlanOptions
from concurrent_loader.proportions import check_weights, largest_remainder
from concurrent_loader.shuffle import derive_key
from concurrent_loader.source import LoadableDataset
from concurrent_loader.views import DatasetView, Selectable, WholeDataset
from storage.cache import CacheStats
from storage.errors import ConfigurationError
from storage.fetch import FetchStats
from storage.loop_thread import LoopThread
from storage.public_names import PublicNames
from storage.shards.columns import Schema
from storage.sizes import Size

__all__ = ["Mixture"]

StatsT = TypeVar("StatsT", FetchStats, CacheStats)

_IMAGES = frozenset({"image", "jpeg", "png", "webp", "avif", "gif"})
# A mixture's figure is its data sets' largest, not their sum.
_NO_SUMS = frozenset({"first_byte_p50_s", "first_byte_p95_s", "first_byte_p99_s", "limit"})


class Mixture(PublicNames):
    """Data sets that take turns, batch by batch, or that have a fixed part of every batch.

    Each data set goes through its own epochs, in an order that depends on the loader's seed and on how often it has
    been through, not on the others. One that ends begins its next epoch. An epoch of the mixture ends when ``stop``
    says; the next one goes on where each data set then is. So no sample is left out or comes twice in an epoch of its
    own data set, whatever the weights. docs/datasets.md has examples, docs/order.md the scheme.

    Args:
        datasets: `ShardDataset` or `ObjectDataset`, or views of them; they stay the caller's to close.
        weights: Relative to each other; by default the numbers of samples.
        per: ``"batch"``: each batch is of one data set and has that one's columns; of the batches of an epoch each data
            set has its weight's share, evenly spread. ``"sample"``: each global batch has a fixed number of samples
            of each data set, its weight's share by largest remainder, evenly spread; batches have the columns that
            all data sets have.
        stop: When an epoch ends: ``"shortest"``: before any data set would begin again. ``"longest"``: when all have
            been through at least once. Or after so many steps.

    Raises:
        ConfigurationError: An argument that cannot work. That a data set has too little weight, or too few samples,
            turns out with the batch size, so the loader raises that.

    Batches tell where samples come from: ``batch.sources`` has the data set's number for each, ``batch.sample_ids``
    the sample's number in that data set.

    Processes: It pickles as its data sets and arguments.
    """

    def __init__(
        self,
        datasets: Sequence[Selectable],
        weights: Sequence[float] | None = None,
        *,
        per: Per = "batch",
        stop: Stop = "shortest",
    ) -> None:
        self._children = tuple(datasets)
        if not self._children:
            raise ConfigurationError("a mixture needs data sets")
        for child in self._children:
            if not isinstance(child, Selectable):
                raise ConfigurationError(
                    "a mixture is of ShardDatasets, ObjectDatasets and views of them", got=type(child).__name__
                )
        if weights is None:
            weights = [len(child) for child in self._children]
        if len(weights) != len(self._children):
            raise ConfigurationError("a mixture has one weight a data set", expected=len(self._children), got=weights)
        self._shares = check_weights(weights)
        if per not in ("batch", "sample"):
            raise ConfigurationError("per is 'batch' or 'sample'", got=per)
        if stop not in ("shortest", "longest") and (isinstance(stop, bool) or not isinstance(stop, int) or stop < 1):
            raise ConfigurationError("stop is 'shortest', 'longest' or a number of steps", got=stop)
        self._per: Per = per
        self._stop: Stop = stop
        self._schema = _common(self._children) if per == "sample" else None

    # -- what is in it ---------------------------------------------------------------------------------------------

    @property
    def datasets(self) -> tuple[Selectable, ...]:
        """The data sets, as they were given."""
        return self._children

    @property
    def shares(self) -> tuple[float, ...]:
        """Of each data set; they add up to 1."""
        return self._shares

    @property
    def schema(self) -> Schema:
        """The columns that all data sets have; only where they share batches (``per="sample"``)."""
        if self._schema is None:
            raise ConfigurationError("batches of this mixture have each data set's own columns; see `datasets`")
        return self._schema

    @property
    def columns(self) -> tuple[str, ...]:
        """Their names."""
        return self.schema.names

    def __repr__(self) -> str:
        return (
            f"Mixture({list(self._children)!r}, weights={list(self._shares)}, per={self._per!r}, stop={self._stop!r})"
        )

    # -- for the loader --------------------------------------------------------------------------------------------

    @property
    def parts(self) -> Sequence[LoadableDataset]:
        """Whose columns batches have."""
        return (self,) if self._schema is not None else self._children

    @property
    def loop(self) -> LoopThread:
        """The first data set's; the others are used on theirs."""
        return self._children[0].loop

    @property
    def source(self) -> MixtureSource:
        """Brings the units of all data sets; a new one for each iteration."""
        return MixtureSource(self._children)

    @property
    def fetch_stats(self) -> FetchStats:
        """Of all data sets together; percentiles are the largest."""
        return _total([child.fetch_stats for child in self.stored], FetchStats)

    @property
    def cache_stats(self) -> CacheStats:
        """Of all data sets together."""
        return _total([child.cache_stats for child in self.stored], CacheStats)

    @property
    def stored(self) -> tuple[WholeDataset, ...]:
        """The data sets that own what is open, each once."""
        return tuple({id(owner): owner for child in self._children for owner in child.stored}.values())

    @property
    def cache_dir(self) -> str | None:
        """The folder that keeps what the first of them fetches; None if any of them has none."""
        folders = [owner.cache_dir for owner in self.stored]
        return None if None in folders else folders[0]

    def with_cache(self, cache_dir: str | os.PathLike[str], cache_bytes: Size | None = None) -> Mixture:
        """Returns the same mixture; those of its data sets that have no cache are to be opened with this one."""
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
        """Makes the order of an epoch.

        Raises:
            ConfigurationError: A data set would have no sample in a batch, or no batch in an epoch.
        """
        sizes = [options.global_batch_size] * len(self._children)
        if self._per == "sample":
            sizes = largest_remainder(self._shares, options.global_batch_size)
            if min(sizes) == 0:
                raise ConfigurationError(
                    "a data set of the mixture would have no sample in a batch; give it more weight, or make batches "
                    "larger", got=sizes,
                )  # fmt: skip
        return MixturePlan(
            children=tuple(
                child.plan(
                    replace(options, global_batch_size=size, seed=derive_key("mixture", options.seed, number)), epoch=0
                )
                for number, (child, size) in enumerate(zip(self._children, sizes, strict=True))
            ),
            shares=self._shares,
            per=self._per,
            stop=self._stop,
            epoch=epoch,
            seed=options.seed,
            shuffle=options.shuffle,
        )


def _common(children: Sequence[Selectable]) -> Schema:
    """Finds the columns that all data sets have, in the first one's order."""
    names = [name for name in children[0].columns if all(name in child.columns for child in children)]
    if not names:
        raise ConfigurationError(
            "the data sets have no column in common; mix them per='batch'", got=[child.columns for child in children]
        )
    types: dict[str, str] = {}
    for name in names:
        found = {child.schema[name].type for child in children}
        if len(found) > 1 and not found <= _IMAGES:
            raise ConfigurationError(
                "a column's type differs between the data sets; leave it out with select_columns, or mix them "
                "per='batch'", column=name, got=sorted(found),
            )  # fmt: skip
        types[name] = found.pop() if len(found) == 1 else "image"
    return Schema.parse(types)


def _total(parts: Sequence[StatsT], kind: type[StatsT]) -> StatsT:
    totals: dict[str, Any] = {}
    for field in fields(kind):
        values = [getattr(part, field.name) for part in parts]
        totals[field.name] = max(values) if field.name in _NO_SUMS else sum(values)
    return kind(**totals)
