"""What a decode thread does with its slice of a batch: read, verify, decode, transform; mostly without the GIL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.augment import CroppingDecoder
from concurrent_loader.batch_memory import BatchMemory, Placed
from concurrent_loader.broken import Broken, BrokenSample
from concurrent_loader.device import DeferredDecoder
from concurrent_loader.errors import DecodeError
from concurrent_loader.recipe import SAMPLES, Recipe
from concurrent_loader.slices import Slice
from concurrent_loader.source import OpenUnit
from concurrent_loader.transforms import transform_sample
from storage.shards.columns import ColumnKind

__all__ = ["make_samples"]


def make_samples(recipe: Recipe, part: Slice) -> dict[str, Any] | list[Any]:
    """Reads, verifies, decodes and transforms a slice.

    Returns:
        Column → values, aligned with ``part.positions``; or, if the recipe works by sample, the list of samples.

    Raises:
        StorageError: Bytes are missing or wrong.
        DecodeError, TransformError: With the sample's number in the data set, ``from`` the cause.
    """
    if recipe.before is not None:
        recipe.before(part.step, SAMPLES)
    columns: dict[str, Any] = {name: _read_column(recipe, part, name) for name in recipe.columns}
    if not recipe.by_sample:
        return columns
    samples: list[Any] = [
        dict(zip(columns, values, strict=True)) for values in zip(*map(_by_sample, columns.values()), strict=True)
    ]
    if recipe.on_error != "raise":
        samples = [
            BrokenSample(sample) if any(isinstance(sample[name], Broken) for name in recipe.decoders) else sample
            for sample in samples
        ]
    if recipe.transform is None:
        return samples
    with recipe.clock.measure("transform"):
        return [
            sample if isinstance(sample, BrokenSample) else transform_sample(recipe.transform, sample, part, place)
            for place, sample in enumerate(samples)
        ]


def _read_column(recipe: Recipe, part: Slice, name: str) -> Any:
    kind = recipe.schema[name].kind
    decoder = recipe.decoders.get(name)
    with recipe.clock.measure("read"):
        if decoder is not None:
            encoded = [data for shard, rows in _runs(part) for data in shard.payload(name, rows)]
        else:
            values = [shard.values(name, rows) for shard, rows in _runs(part)]
            if kind is ColumnKind.FIXED:
                return np.concatenate(values)
            return [value for run in values for value in run]
    with recipe.clock.measure("decode"):
        if isinstance(decoder, CroppingDecoder) and part.memory is not None and not recipe.by_sample:
            return _placed(recipe, decoder, encoded, name, part, part.memory)
        decoders: Sequence[Callable[[bytes | memoryview], Any]]
        if isinstance(decoder, DeferredDecoder):
            decoders = decoder.decoders(part.epoch, part.samples, part.keys())
        elif isinstance(decoder, CroppingDecoder):
            decoders = decoder.decoders(part.epoch, part.samples)
        else:
            decoders = [decoder] * len(encoded)
        return [
            _tolerated(recipe, each, data, name, part, place)
            for place, (each, data) in enumerate(zip(decoders, encoded, strict=True))
        ]


def _placed(
    recipe: Recipe,
    decoder: CroppingDecoder,
    encoded: Sequence[bytes | memoryview],
    name: str,
    part: Slice,
    memory: BatchMemory,
) -> Placed:
    """Decodes a slice's pictures straight into the batch's memory."""
    pictures = memory.pictures(name, decoder.shape, decoder.dtype, channels_last=decoder.channels_last)
    into = [pictures[row] for row in part.positions.tolist()]
    broken = {}
    for place, (each, data) in enumerate(zip(decoder.decoders(part.epoch, part.samples, into), encoded, strict=True)):
        done = _tolerated(recipe, each, data, name, part, place)
        if isinstance(done, Broken):
            broken[place] = done
    return Placed(pictures, part.positions, broken)


def _tolerated(
    recipe: Recipe,
    decoder: Callable[[bytes | memoryview], Any],
    data: bytes | memoryview,
    column: str,
    part: Slice,
    place: int,
) -> Any:
    try:
        return _decoded(decoder, data, column, part, place)
    except DecodeError as error:
        if recipe.on_error == "raise":
            raise
        return Broken(error.with_traceback(None), recipe.blanks.get(column))


def _runs(part: Slice) -> zip[tuple[OpenUnit, npt.NDArray[np.int64]]]:
    return zip(part.shards, part.rows, strict=True)


def _decoded(
    decoder: Callable[[bytes | memoryview], Any], data: bytes | memoryview, column: str, part: Slice, place: int
) -> Any:
    try:
        return decoder(data)
    except DecodeError as error:
        raise error.locate(column=column, **part.facts(place)) from error.__cause__


def _by_sample(values: Any) -> Any:
    # Scalars of numpy, not of Python: float32 stays float32 when the batch is put together again.
    return list(values) if isinstance(values, np.ndarray) else values
