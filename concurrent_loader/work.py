"""What a decode thread does: from open shards to one batch; everything heavy here releases the GIL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.augment import Crop, CroppingDecoder
from concurrent_loader.batch import Batch, collate, collate_columns
from concurrent_loader.batch_memory import BatchMemory, Placed, gathered
from concurrent_loader.broken import (
    Broken,
    BrokenSample,
    Mended,
    OnError,
    blank_picture,
    mended_index,
    plain_error,
    rows_shown,
)
from concurrent_loader.decode import Decoder, make_decoder
from concurrent_loader.device import DeferredDecoder, StagedColumn
from concurrent_loader.errors import DecodeError, LoaderError, TransformError
from concurrent_loader.plan import BatchIndex
from concurrent_loader.shared_memory import SharedBlocks
from concurrent_loader.source import LoadableDataset, OpenUnit
from concurrent_loader.stats import StageClock
from storage.errors import ConfigurationError
from storage.shards.columns import ColumnKind, Schema

__all__ = ["BATCH", "SAMPLES", "Recipe", "Slice", "cut", "make_batch", "make_recipe", "make_samples", "transformed"]

SAMPLES, BATCH = range(2)

_MIN_SLICE = 8  # samples: below this a thread hop costs more than it gains


@dataclass(frozen=True)
class Recipe:
    """What is done to every sample, the same for a whole iteration.

    Attributes:
        schema: Of the data set.
        columns: The columns that a batch has.
        decoders: Column → decoder of its encoded bytes, the same for all samples, or one that depends on them, or what
            prepares them for the device.
        transform: Sample dict → sample dict, or None.
        collate_fn: List of samples → batch, or None for `concurrent_loader.collate`.
        batch_transform: Batch → batch, or None.
        clock: Where the time goes.
        children: For a mixture whose batches are each of one data set: that one's schema, columns and decoders;
            otherwise none.
        on_error: What becomes of samples with broken pictures; see `concurrent_loader.broken`.
        blanks: Column → shape of a blank picture, where there can be one.
        before: Called in the thread, with a step's number and what is made of it (`SAMPLES` or `BATCH`), before that is
            made: a worker process sets its random streams.
        ship: Called in the thread with what makes a batch, and where its memory comes from, to deliver something in its
            place: a worker process puts the batch where the consumer can see it.
    """

    schema: Schema
    columns: tuple[str, ...]
    decoders: Mapping[str, Decoder | CroppingDecoder | DeferredDecoder] = field(default_factory=dict)
    transform: Callable[[dict[str, Any]], Any] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    batch_transform: Callable[[Any], Any] | None = None
    clock: StageClock = field(default_factory=StageClock)
    before: Callable[[int, int], object] | None = None
    ship: Callable[[Callable[[], Any], SharedBlocks], Any] | None = None
    children: tuple[Recipe, ...] = ()
    on_error: OnError = "raise"
    blanks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def of(self, index: BatchIndex) -> Recipe:
        """Returns what is done to the samples of one batch."""
        if not self.children or index.source is None or not len(index):
            return self
        child = self.children[int(index.source[0])]
        return replace(
            self, schema=child.schema, columns=child.columns, decoders=child.decoders, blanks=child.blanks, children=()
        )

    def memory(self, num_samples: int) -> BatchMemory:
        """Makes a batch's memory; whoever asks for it closes it."""
        return BatchMemory(num_samples, None if self.ship is None else SharedBlocks())

    @property
    def by_sample(self) -> bool:
        """Whether samples must exist one by one, as dicts; otherwise batches are made column by column."""
        return self.transform is not None or self.collate_fn is not None


def make_recipe(
    dataset: LoadableDataset,
    *,
    decode: Mapping[str, str | Decoder | Crop],
    seed: int,
    transform: Callable[[dict[str, Any]], Any] | None,
    collate_fn: Callable[[list[Any]], Any] | None,
    clock: StageClock,
    batch_transform: Callable[[Any], Any] | None = None,
    device_codecs: Sequence[str] = (),
    on_error: OnError = "raise",
    decoding: Mapping[str, Any] | None = None,
) -> Recipe:
    """Makes a data set's recipe of a loader's arguments, in its process or in a worker's.

    Pictures that the device decodes (``device_codecs``) are left as they are, unless samples must exist one by one.

    Raises:
        ConfigurationError: A column to decode is not there, or not to be decoded so.
    """
    by_sample = transform is not None or collate_fn is not None
    codecs = () if by_sample else tuple(device_codecs)
    known = list(dict.fromkeys(name for part in dataset.parts for name in part.columns))
    for name in decode:
        if name not in known:
            raise ConfigurationError("decode names no column", column=name, expected=known)
    recipes = [
        Recipe(
            schema=part.schema,
            columns=part.columns,
            decoders=_decoders(part, decode, seed, decoding or {}, codecs),
            transform=transform,
            collate_fn=collate_fn,
            clock=clock,
            batch_transform=batch_transform,
            on_error=on_error,
            blanks={name: shape for name, how in decode.items() if (shape := _blank_shape(how)) is not None},
        )
        for part in dataset.parts
    ]
    return recipes[0] if len(recipes) == 1 else replace(recipes[0], children=tuple(recipes))


def _decoders(
    part: LoadableDataset,
    decode: Mapping[str, str | Decoder | Crop],
    seed: int,
    decoding: Mapping[str, Any],
    codecs: Sequence[str],
) -> dict[str, Decoder | CroppingDecoder | DeferredDecoder]:
    decoders: dict[str, Decoder | CroppingDecoder | DeferredDecoder] = {}
    for name, how in decode.items():
        if name not in part.columns:
            continue  # of another data set of a mixture
        column = part.schema[name]
        if column.kind is not ColumnKind.PAYLOAD:
            raise ConfigurationError("decode is for image and bytes columns", column=name, got=column.type)
        if codecs and isinstance(how, str | Crop):
            decoders[name] = DeferredDecoder(name, how, column.type, seed=seed, codecs=codecs, **decoding)
        elif isinstance(how, Crop):
            decoders[name] = CroppingDecoder(how, column.type, seed=seed, **decoding)
        else:
            decoders[name] = make_decoder(how, column.type, **decoding)
    return decoders


def _blank_shape(how: str | Decoder | Crop) -> tuple[int, ...] | None:
    """Of the picture that stands in where no sample of a batch is sound: the crop's, or one pixel."""
    if isinstance(how, Crop):
        return (3, *how.size)
    return (1 if how == "gray" else 3, 1, 1) if isinstance(how, str) else None


@dataclass(frozen=True)
class Slice:
    """A thread's share of a batch.

    Attributes:
        positions: (n,) int64, where the samples stand in the batch.
        shards: The open shards, one for each run of samples.
        units: Their numbers, as the plan counts them.
        rows: For each of them, (m,) int64 rows in the shard; together n.
        samples: (n,) int64, the samples' numbers in the data set.
        step: Number of the batch in its epoch.
        epoch: The epoch.
        memory: Of the batch, where pictures of one size are written; None: each gets memory of its own.
    """

    positions: npt.NDArray[np.int64]
    shards: tuple[OpenUnit, ...]
    units: tuple[int, ...]
    rows: tuple[npt.NDArray[np.int64], ...]
    samples: npt.NDArray[np.int64]
    step: int = 0
    epoch: int = 0
    memory: BatchMemory | None = None

    def keys(self) -> list[str]:
        """Of the shard of each sample."""
        return [shard.key for shard, rows in zip(self.shards, self.rows, strict=True) for _ in range(len(rows))]

    def facts(self, place: int) -> dict[str, Any]:
        """Says, for an error, which sample stands at a place of this slice."""
        run = int(np.searchsorted(np.cumsum([len(rows) for rows in self.rows]), place, side="right"))
        return {"sample": int(self.samples[place]), "key": self.shards[run].key}


def cut(
    index: BatchIndex,
    shards: Mapping[int, OpenUnit],
    *,
    num_threads: int,
    epoch: int = 0,
    memory: BatchMemory | None = None,
) -> list[Slice]:
    """Deals a batch out to threads, so that each reads few shards, each shard in ascending order of rows."""
    order = np.lexsort((index.row, index.shard))
    num_slices = max(1, min(num_threads, len(order) // _MIN_SLICE))
    slices = []
    for positions in np.array_split(order, num_slices):
        shard_of = index.shard[positions]
        borders = np.flatnonzero(np.diff(shard_of)) + 1
        rows = tuple(np.split(index.row[positions], borders))
        firsts = [0, *borders.tolist()] if len(positions) else []
        units = tuple(int(shard_of[first]) for first in firsts)
        open_shards = tuple(shards[unit] for unit in units)
        samples = index.sample[positions]
        slices.append(Slice(positions, open_shards, units, rows[: len(units)], samples, index.step, epoch, memory))
    return slices


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
            sample if isinstance(sample, BrokenSample) else _transformed(recipe.transform, sample, part, place)
            for place, sample in enumerate(samples)
        ]


def make_batch(
    recipe: Recipe, index: BatchIndex, epoch: int, parts: Sequence[tuple[Slice, dict[str, Any] | list[Any]]]
) -> Any:
    """Puts the slices of a batch together, in the batch's order.

    Returns:
        A `Batch`, or whatever ``collate_fn`` makes, or one of them as `Mended`; or what the recipe ships instead.

    Raises:
        CollateError: The samples do not fit together.
        TransformError: The batch transform failed, ``from`` the cause.
        DecodeError: All pictures of the batch are broken, and there is nothing to put in their place.
    """
    if recipe.before is not None:
        recipe.before(index.step, BATCH)
    if recipe.ship is not None:
        memory = parts[0][0].memory if parts else None
        blocks = SharedBlocks() if memory is None or memory.blocks is None else memory.blocks
        return recipe.ship(lambda: _mended(recipe, index, epoch, parts), blocks)
    return _mended(recipe, index, epoch, parts)


def _mended(
    recipe: Recipe, index: BatchIndex, epoch: int, parts: Sequence[tuple[Slice, dict[str, Any] | list[Any]]]
) -> Any:
    """Puts the batch together without its broken samples, or with others in their places."""
    back = np.argsort(np.concatenate([part.positions for part, _ in parts]))
    broken = {} if recipe.on_error == "raise" else _broken(recipe, parts)
    if not broken:
        return _put_together(recipe, index, epoch, parts, back)
    shown = rows_shown(len(index), broken, recipe.on_error)
    mended = mended_index(index, shown, recipe.on_error)
    if not shown:
        parts = [(part, _blanked(recipe, part, made)) for part, made in parts]
    batch = _put_together(recipe, mended, epoch, parts, back[shown or range(len(mended))])
    num_real = len(index) - index.num_padded  # what pads a batch is counted where it is not padding
    return Mended(batch, tuple(plain_error(broken[row].error) for row in sorted(broken) if row < num_real))


def _broken(recipe: Recipe, parts: Sequence[tuple[Slice, dict[str, Any] | list[Any]]]) -> dict[int, Broken]:
    """Finds the broken samples of a batch, by their rows."""
    found: dict[int, Broken] = {}
    for part, made in parts:
        if isinstance(made, list):
            places = {at: each.broken for at, each in enumerate(made) if isinstance(each, BrokenSample)}
        else:
            places = {}
            for name in recipe.decoders:
                values = made[name]
                of_column = values.broken if isinstance(values, Placed) else dict(enumerate(values))
                places |= {at: each for at, each in of_column.items() if isinstance(each, Broken)}
        found |= {int(part.positions[at]): each for at, each in places.items()}
    return found


def _blanked(recipe: Recipe, part: Slice, made: dict[str, Any] | list[Any]) -> dict[str, Any] | list[Any]:
    """Puts blank pictures where broken ones are, of a slice that has no other."""
    if isinstance(made, dict):
        return {name: _blanked_column(values) if name in recipe.decoders else values for name, values in made.items()}
    samples: list[Any] = [
        {name: _blank(recipe, name, value) if isinstance(value, Broken) else value for name, value in sample.items()}
        for sample in made
    ]
    if recipe.transform is None:
        return samples
    return [_transformed(recipe.transform, sample, part, place) for place, sample in enumerate(samples)]


def _blank(recipe: Recipe, name: str, broken: Broken) -> torch.Tensor:
    decoder = recipe.decoders[name]
    picture = blank_picture(broken)
    return picture.to(decoder.dtype) if isinstance(decoder, CroppingDecoder) else picture


def _blanked_column(values: Any) -> Any:
    if not isinstance(values, Placed):
        return [blank_picture(value) if isinstance(value, Broken) else value for value in values]
    for place in values.broken:
        values.blank(place)
    return values


def transformed(transform: Callable[[Any], Any] | None, batch: Any) -> Any:
    """Returns what a batch transform makes of a batch.

    Raises:
        TransformError: It failed, ``from`` the cause; errors of the loader and of its configuration come as they are.
    """
    if transform is None:
        return batch
    try:
        return transform(batch)
    except (LoaderError, ConfigurationError):
        raise
    except Exception as error:
        raise TransformError(f"the batch transform failed: {type(error).__name__}: {error}") from error


def _put_together(
    recipe: Recipe,
    index: BatchIndex,
    epoch: int,
    parts: Sequence[tuple[Slice, dict[str, Any] | list[Any]]],
    back: npt.NDArray[np.intp],
) -> Any:
    batch = _collated(recipe, index, epoch, parts, back)
    if recipe.batch_transform is None:
        return batch
    with recipe.clock.measure("transform"):
        return transformed(recipe.batch_transform, batch)


def _collated(
    recipe: Recipe,
    index: BatchIndex,
    epoch: int,
    parts: Sequence[tuple[Slice, dict[str, Any] | list[Any]]],
    back: npt.NDArray[np.intp],
) -> Any:
    with recipe.clock.measure("collate"):
        if recipe.by_sample:
            every = [sample for _, samples in parts for sample in samples]
            ordered = [every[at] for at in back.tolist()]
            if len(set(back.tolist())) < len(back):  # one that stands in must not change with the other
                ordered = [dict(sample) if isinstance(sample, dict) else sample for sample in ordered]
            if recipe.collate_fn is not None:
                return recipe.collate_fn(ordered)
            data = collate(ordered)
        else:
            columns = {name: _gather([values[name] for _, values in parts], back) for name in recipe.columns}  # type: ignore[call-overload]
            deferred = {
                name: _deferred(recipe, each, columns[name])
                for name, each in recipe.decoders.items()
                if isinstance(each, DeferredDecoder)
            }
            made = collate_columns({name: values for name, values in columns.items() if name not in deferred})
            data = Batch({name: deferred[name] if name in deferred else made[name] for name in columns})
        return Batch(
            data,
            epoch=epoch,
            step=index.step,
            sample_ids=torch.from_numpy(index.sample.copy()),
            num_padded=index.num_padded,
            sources=None if index.source is None else torch.from_numpy(index.source.copy()),
        )


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


def _deferred(recipe: Recipe, decoder: DeferredDecoder, pictures: Sequence[Any]) -> StagedColumn:
    """Pictures that are still encoded, in one block where they go to another process."""
    column = decoder.column(pictures)
    return column if recipe.ship is None else column.packed()


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


def _transformed(transform: Callable[[dict[str, Any]], Any], sample: dict[str, Any], part: Slice, place: int) -> Any:
    try:
        return transform(sample)
    except LoaderError:
        raise
    except Exception as error:
        raise TransformError(f"the transform failed: {type(error).__name__}: {error}", **part.facts(place)) from error


def _by_sample(values: Any) -> Any:
    # Scalars of numpy, not of Python: float32 stays float32 when the batch is put together again.
    return list(values) if isinstance(values, np.ndarray) else values


def _gather(values: Sequence[Any], back: npt.NDArray[np.intp]) -> Any:
    if values and isinstance(values[0], Placed):
        return gathered(values, back)
    if values and isinstance(values[0], np.ndarray):
        return np.concatenate(values)[back]
    flat = [value for run in values for value in run]
    return [flat[at] for at in back.tolist()]
