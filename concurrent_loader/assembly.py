"""Puts the slices of a batch together: in the batch's order, without its broken samples, collated."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.augment import CroppingDecoder
from concurrent_loader.batch import Batch, collate, collate_columns
from concurrent_loader.batch_memory import Placed, gathered
from concurrent_loader.broken import (
    Broken,
    BrokenSample,
    Mended,
    blank_picture,
    mended_index,
    plain_error,
    rows_shown,
)
from concurrent_loader.device import DeferredDecoder, StagedColumn
from concurrent_loader.plan import BatchIndex
from concurrent_loader.recipe import BATCH, Recipe
from concurrent_loader.shared_memory import SharedBlocks
from concurrent_loader.slices import Slice
from concurrent_loader.transforms import transform_batch, transform_sample

__all__ = ["Gathering"]


class Gathering:
    """A batch of which threads bring the slices; the one that brings the last puts it together, on the spot.

    Were that a task of its own, it would wait for a free thread: one that has begun with the next batch meanwhile.

    Args:
        recipe: What is done to samples.
        index: Of the batch.
        epoch: It is of.
        num_slices: It has been cut into.

    Attributes:
        batch: A `Batch`, or whatever ``collate_fn`` makes, or one of them as `Mended`; or what the recipe ships
            instead. None until the last slice has been put.

    Thread-safety: `put` may be called from any thread; ``batch`` is for whoever knows that all slices have been put.
    """

    def __init__(self, recipe: Recipe, index: BatchIndex, epoch: int, *, num_slices: int) -> None:
        self._recipe = recipe
        self._index = index
        self._epoch = epoch
        self._num_slices = num_slices
        self._lock = threading.Lock()
        self._made: dict[int, tuple[Slice, dict[str, Any] | list[Any]]] = {}
        self.batch: Any = None

    def put(self, number: int, part: Slice, made: dict[str, Any] | list[Any]) -> None:
        """Takes what a slice has become.

        Args:
            number: Which of the slices it is, from 0.
            part: The slice.
            made: Of `concurrent_loader.work.make_samples`.

        Raises:
            CollateError, TransformError, DecodeError: See `_make_batch`; by the last slice.
        """
        with self._lock:
            self._made[number] = part, made
            if len(self._made) < self._num_slices:
                return
        parts = [self._made[each] for each in range(self._num_slices)]
        self.batch = _make_batch(self._recipe, self._index, self._epoch, parts)


def _make_batch(
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
    return [transform_sample(recipe.transform, sample, part, place) for place, sample in enumerate(samples)]


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
        return transform_batch(recipe.batch_transform, batch)


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
            data = collate(ordered, mixed=recipe.mixed)
        else:
            columns = {name: _gather([values[name] for _, values in parts], back) for name in recipe.columns}  # type: ignore[call-overload]
            deferred = {
                name: _deferred(recipe, each, columns[name])
                for name, each in recipe.decoders.items()
                if isinstance(each, DeferredDecoder)
            }
            plain = {name: values for name, values in columns.items() if name not in deferred}
            made = collate_columns(plain, mixed=recipe.mixed)
            data = Batch({name: deferred[name] if name in deferred else made[name] for name in columns})
        return Batch(
            data,
            epoch=epoch,
            step=index.step,
            sample_ids=torch.from_numpy(index.sample.copy()),
            num_padded=index.num_padded,
            sources=None if index.source is None else torch.from_numpy(index.source.copy()),
        )


def _deferred(recipe: Recipe, decoder: DeferredDecoder, pictures: Sequence[Any]) -> StagedColumn:
    """Pictures that are still encoded, in one block where they go to another process."""
    column = decoder.column(pictures)
    return column if recipe.ship is None else column.packed()


def _gather(values: Sequence[Any], back: npt.NDArray[np.intp]) -> Any:
    if values and isinstance(values[0], Placed):
        return gathered(values, back)
    if values and isinstance(values[0], np.ndarray):
        return np.concatenate(values)[back]
    flat = [value for run in values for value in run]
    return [flat[at] for at in back.tolist()]
