"""Makes the values of added columns, shard by shard: from sequences, or by a function of each sample. No network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.cache.joined_shard import JoinedShard
from concurrent_loader.storage.errors import ConfigurationError, SchemaError
from concurrent_loader.storage.shards.format.builder import ShardBuilder
from concurrent_loader.storage.shards.format.nulls import plain_values, with_none
from concurrent_loader.storage.shards.format.schema import Schema
from concurrent_loader.storage.shards.writing.batch_columns import with_nulls_as_none

__all__ = ["NO_DEFAULT", "ComputedValues", "GivenValues", "ShardRows", "ValueSource", "lookup"]

MAX_SHARD_BYTES = 1 << 30  # of the added columns of one shard, which are in memory at once


@dataclass(frozen=True, slots=True)
class ShardRows:
    """The samples of one shard.

    Attributes:
        first: Number of the first sample in the dataset.
        rows: (n,) int64, row of each sample in the shard, ascending. The others are deleted.
        num_rows: Number of rows of the shard.
    """

    first: int
    rows: npt.NDArray[np.int64]
    num_rows: int


class ValueSource(Protocol):
    """The values of some columns."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns of the dataset that are read to make the values; none if the values are given."""

    def check(self, num_samples: int) -> None:
        """Raises `ConfigurationError` if the values cannot be those of ``num_samples`` samples."""

    def build(self, schema: Schema, shard: JoinedShard | None, place: ShardRows) -> ShardBuilder:
        """Returns a shard with the values of consecutive samples; called on a thread.

        Args:
            schema: Added columns.
            shard: Shard of these samples; None without inputs.
            place: Place of the samples.
        """


class GivenValues:
    """One value per sample and column.

    Args:
        values: A sequence or array for each column. Values may be None, or masked, if the column is optional.
    """

    inputs: tuple[str, ...] = ()

    def __init__(self, values: Mapping[str, Any]) -> None:
        # An array is sliced without a copy, and a tensor as an array. As an array, nulls would be NaN.
        given = {name: with_nulls_as_none(each) for name, each in values.items()}
        self._values = {
            name: np.asarray(each) if hasattr(each, "__array__") and not np.ma.isMaskedArray(each) else each
            for name, each in given.items()
        }

    def check(self, num_samples: int) -> None:
        for name, each in self._values.items():
            try:
                length = len(each)
            except TypeError:
                raise ConfigurationError(
                    "values must be a sequence with one value per sample, a function, or a mapping with by=",
                    got=type(each).__name__,
                ) from None
            if isinstance(each, str | bytes | Mapping) or length != num_samples:
                raise ConfigurationError(
                    f"column {name!r} needs one value per sample", expected=f"{num_samples} values",
                    got=f"{type(each).__name__} of length {length}",
                )  # fmt: skip

    def build(self, schema: Schema, shard: JoinedShard | None, place: ShardRows) -> ShardBuilder:
        num_samples = len(place.rows)
        values = {name: self._values[name][place.first : place.first + num_samples] for name in schema.names}
        is_whole = num_samples == place.num_rows
        if is_whole and all(
            isinstance(each, np.ndarray) and _fits(schema, name, each) for name, each in values.items()
        ):
            builder = ShardBuilder(schema)
            builder.extend_fixed(values)
            return builder
        rows = zip(*map(with_none, values.values()), strict=True)
        return _filled(schema, place, (dict(zip(values, row, strict=True)) for row in rows))


class ComputedValues:
    """Values that a function makes of samples.

    Args:
        function: Function from a sample, a dict, to a dict of values by column; or from a list of samples to a list
            of such dicts.
        inputs: Columns of the sample.
        batched: Whether the function gets all samples of a shard in one list.
    """

    def __init__(self, function: Callable[[Any], Any], inputs: Sequence[str], *, batched: bool = False) -> None:
        self._function = function
        self._batched = batched
        self.inputs = tuple(inputs)

    def check(self, num_samples: int) -> None:
        """Any number of samples will do."""

    def build(self, schema: Schema, shard: JoinedShard | None, place: ShardRows) -> ShardBuilder:
        if not len(place.rows):  # nothing was fetched
            return _filled(schema, place, ())
        num_samples = len(place.rows)
        samples: list[dict[str, Any]] = [{} for _ in range(num_samples)]
        if shard is not None:  # nothing is fetched without inputs
            read = {name: plain_values(shard.values(name, place.rows)) for name in self.inputs}
            samples = [dict(zip(read, row, strict=True)) for row in zip(*read.values(), strict=True)]
        if not self._batched:
            return _filled(schema, place, self._each(samples, place.first))
        made = list(self._function(samples))
        if len(made) != num_samples:
            raise SchemaError(
                "a batched function must return one value per sample", expected=num_samples, got=len(made)
            )
        return _filled(schema, place, made)

    def _each(self, samples: Sequence[dict[str, Any]], first: int) -> Any:
        for number, sample in enumerate(samples, first):
            try:
                yield self._function(sample)
            except Exception as error:
                error.add_note(f"while the values of sample {number} were made")
                raise


NO_DEFAULT = object()


def lookup(values: Mapping[Any, Any], by: str, default: object = NO_DEFAULT) -> Callable[[dict[str, Any]], Any]:
    """Returns a function that finds a sample's value by another column of the sample.

    Args:
        values: Values by key.
        by: Name of the column of the keys.
        default: Value of samples whose key has none; by default such a sample is an error.
    """

    def find(sample: dict[str, Any]) -> Any:
        key = sample[by]
        try:
            return values[key]
        except KeyError:
            if default is not NO_DEFAULT:
                return default
            raise SchemaError(
                "there is no value for a sample; pass a default for such samples", column=by, got=key
            ) from None
        except TypeError:
            raise SchemaError("values are found by a number or a text", column=by, got=type(key).__name__) from None

    return find


def _filled(schema: Schema, place: ShardRows, samples: Iterable[Any]) -> ShardBuilder:
    """Returns a shard with the samples in their rows, and placeholders in deleted rows."""
    builder = ShardBuilder(schema)
    nobody = {column.name: column.placeholder for column in schema}
    for number, (row, sample) in enumerate(zip(place.rows.tolist(), samples, strict=True), place.first):
        try:
            while builder.num_samples < row:
                builder.add(nobody)
            builder.add(sample)
        except SchemaError as error:
            error.locate(sample=number)
            raise
        if builder.estimated_bytes > MAX_SHARD_BYTES:
            raise SchemaError(
                "the added values of one shard must fit into 1 GiB, because they are one file; write the dataset again "
                "with smaller shards", expected=MAX_SHARD_BYTES, sample=number,
            )  # fmt: skip
    while builder.num_samples < place.num_rows:
        builder.add(nobody)
    return builder


def _fits(schema: Schema, name: str, values: Any) -> bool:
    column = schema[name]
    return (
        column in schema.fixed
        and values.dtype.newbyteorder("<") == column.dtype
        and values.shape[1:] == column.shape
        and values.dtype != object
    )
