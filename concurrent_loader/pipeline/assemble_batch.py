"""Assembles a batch from its slices: in the batch's order, without samples whose images failed to decode."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.augment import CroppingDecoder
from concurrent_loader.batch.batch import Batch
from concurrent_loader.batch.buffers import BatchSlotWrites, gather_images
from concurrent_loader.batch.collate import collate, collate_columns
from concurrent_loader.batch.decode_failures import (
    FailedImage,
    FailedSample,
    RepairedBatch,
    blank_image,
    picklable_error,
    repaired_index,
    source_rows,
)
from concurrent_loader.batch.encoded_rows import EncodedRows, gather_rows
from concurrent_loader.batch.packed_tokens import pack
from concurrent_loader.batch.shared_memory import SharedBlocks
from concurrent_loader.device import DeferredDecoder, StagedColumn
from concurrent_loader.order.protocol import BatchIndex
from concurrent_loader.pipeline.sample_processing import BATCH, SampleProcessing, transform_batch, transform_sample
from concurrent_loader.pipeline.slices import Slice
from concurrent_loader.storage.shards.format.nulls import joined

__all__ = ["BatchAssembler"]

Processed = dict[str, Any] | list[Any]  # result of `process_slice`: columns, or samples
Parts = Sequence[tuple[Slice, Processed]]


class BatchAssembler:
    """Collects the processed slices of a batch. The thread that delivers the last slice assembles the batch at once.

    As a task of its own, assembly would wait for a free thread while the threads already work on the next batch.

    Args:
        processing: Operations on every sample and batch.
        index: Samples of the batch.
        epoch: Epoch of the batch.
        num_slices: Number of slices of the batch.

    Attributes:
        batch: The result: a `Batch` or the return value of ``collate_fn``, either of them perhaps in a `RepairedBatch`;
            or the return value of ``processing.ship``. None until the last slice has been delivered.

    Thread-safety: `put` may be called from any thread. Read ``batch`` only after all slices have been delivered.
    """

    def __init__(self, processing: SampleProcessing, index: BatchIndex, epoch: int, *, num_slices: int) -> None:
        self._processing = processing
        self._index = index
        self._epoch = epoch
        self._num_slices = num_slices
        self._lock = threading.Lock()
        self._done: dict[int, tuple[Slice, Processed]] = {}
        self.batch: Any = None

    def put(self, number: int, part: Slice, processed: Processed) -> None:
        """Delivers a processed slice.

        Args:
            number: Number of the slice in the batch, from 0.
            part: The slice.
            processed: Result of `concurrent_loader.pipeline.process_slice.process_slice`.

        Raises:
            CollateError: The samples do not fit together. Raised by the last slice, like the other errors.
            TransformError: The batch transform failed, ``from`` the cause.
            DecodeError: All images of the batch failed to decode, and the shape of a blank image is unknown.
        """
        with self._lock:
            self._done[number] = part, processed
            if len(self._done) < self._num_slices:
                return
        parts = [self._done[each] for each in range(self._num_slices)]
        self.batch = _make_batch(self._processing, self._index, self._epoch, parts)


def _make_batch(processing: SampleProcessing, index: BatchIndex, epoch: int, parts: Parts) -> Any:
    if processing.before is not None:
        processing.before(index.step, BATCH)
    if processing.ship is not None:
        buffers = parts[0][0].buffers if parts else None
        blocks = SharedBlocks() if buffers is None or buffers.blocks is None else buffers.blocks
        return processing.ship(lambda: _repair(processing, index, epoch, parts), blocks)
    return _repair(processing, index, epoch, parts)


def _repair(processing: SampleProcessing, index: BatchIndex, epoch: int, parts: Parts) -> Any:
    """Makes the batch, and skips or replaces the samples whose images failed to decode."""
    positions = np.concatenate([part.positions for part, _ in parts])
    back = np.empty(len(positions), np.intp)
    back[positions] = np.arange(len(positions))
    failed = {} if processing.on_error == "raise" else _find_failures(processing, parts)
    if not failed:
        return _transform(processing, index, epoch, parts, back)
    shown = source_rows(len(index), failed, processing.on_error)
    repaired = repaired_index(index, shown, processing.on_error)
    if not shown:
        parts = [(part, _blank_slice(processing, part, processed)) for part, processed in parts]
    batch = _transform(processing, repaired, epoch, parts, back[shown or range(len(repaired))])
    num_real = len(index) - index.num_padded  # a padding sample's failure is counted where the sample is not padding
    return RepairedBatch(batch, tuple(picklable_error(failed[row].error) for row in sorted(failed) if row < num_real))


def _find_failures(processing: SampleProcessing, parts: Parts) -> dict[int, FailedImage]:
    """Returns the failed images of a batch by their rows."""
    found: dict[int, FailedImage] = {}
    for part, processed in parts:
        if isinstance(processed, list):
            places = {at: each.failure for at, each in enumerate(processed) if isinstance(each, FailedSample)}
        else:
            places = {}
            for name in processing.decoders:
                values = processed[name]
                of_column = values.failures if isinstance(values, BatchSlotWrites) else dict(enumerate(values))
                places |= {at: each for at, each in of_column.items() if isinstance(each, FailedImage)}
        found |= {int(part.positions[at]): each for at, each in places.items()}
    return found


def _blank_slice(processing: SampleProcessing, part: Slice, processed: Processed) -> Processed:
    """Puts blank images in place of failed ones, for a batch in which every image failed."""
    if isinstance(processed, dict):
        return {
            name: _blank_column(values) if name in processing.decoders else values for name, values in processed.items()
        }
    samples: list[Any] = [
        {
            name: _blank_value(processing, name, value) if isinstance(value, FailedImage) else value
            for name, value in sample.items()
        }
        for sample in processed
    ]
    if processing.transform is None:
        return samples
    return [transform_sample(processing, sample, part, place) for place, sample in enumerate(samples)]


def _blank_value(processing: SampleProcessing, name: str, failed: FailedImage) -> torch.Tensor:
    decoder = processing.decoders[name]
    image = blank_image(failed)
    return image.to(decoder.dtype) if isinstance(decoder, CroppingDecoder) else image


def _blank_column(values: Any) -> Any:
    if not isinstance(values, BatchSlotWrites):
        return [blank_image(value) if isinstance(value, FailedImage) else value for value in values]
    for place in values.failures:
        values.blank(place)
    return values


def _transform(
    processing: SampleProcessing, index: BatchIndex, epoch: int, parts: Parts, back: npt.NDArray[np.intp]
) -> Any:
    batch = _collate(processing, index, epoch, parts, back)
    if processing.batch_transform is None:
        return batch
    with processing.clock.measure("transform"):
        return transform_batch(processing.batch_transform, batch)


def _collate(
    processing: SampleProcessing, index: BatchIndex, epoch: int, parts: Parts, back: npt.NDArray[np.intp]
) -> Any:
    """Collates the slices; ``back`` has, for each row of the batch, its position in the slices strung together."""
    with processing.clock.measure("collate"):
        if processing.by_sample:
            every = [sample for _, samples in parts for sample in samples]
            ordered = [every[at] for at in back.tolist()]
            if len(set(back.tolist())) < len(back):  # a sample that replaces another must not share its dict
                ordered = [dict(sample) if isinstance(sample, dict) else sample for sample in ordered]
            if processing.collate_fn is not None:
                return processing.collate_fn(ordered)
            data = collate(ordered, **processing.collate_options)
        else:
            columns = {name: _gather([values[name] for _, values in parts], back) for name in processing.columns}  # type: ignore[call-overload]
            deferred = {
                name: _defer(processing, each, columns[name])
                for name, each in processing.decoders.items()
                if isinstance(each, DeferredDecoder)
            }
            packed = _pack(processing, index, columns)
            plain = {name: values for name, values in columns.items() if name not in deferred and name not in packed}
            data = collate_columns(plain, **processing.collate_options)
            if deferred or packed:
                data = _in_order(columns, {**data, **deferred, **packed})
        return Batch(
            data,
            epoch=epoch,
            step=index.step,
            sample_ids=torch.from_numpy(index.sample.copy()),
            num_padded=index.num_padded,
            sources=None if index.source is None else torch.from_numpy(index.source.copy()),
        )


def _defer(processing: SampleProcessing, decoder: DeferredDecoder, images: Sequence[Any]) -> StagedColumn:
    """Returns encoded images as a column; in one block if the batch goes to another process."""
    column = replace(decoder.column(images), ragged=processing.ragged.get(decoder.name))
    return column if processing.ship is None else column.packed()


def _pack(processing: SampleProcessing, index: BatchIndex, columns: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Returns the rows of packed documents; nothing if each sample is a row of the batch."""
    how = processing.packed
    if how is None or index.pieces is None:
        return {}
    num_tokens = int((index.pieces.stop - index.pieces.start).sum())
    processing.clock.add("tokens", num_tokens)
    processing.clock.add("padding tokens", index.pieces.num_rows * how.length - num_tokens)
    dtype = processing.schema[how.column].dtype
    assert dtype is not None  # the plan has checked it
    return pack(columns[how.column], index.sample, index.pieces, how, dtype)


def _in_order(names: Iterable[str], columns: Mapping[str, Any]) -> Batch:
    """Returns the columns in the order of the names; further ones, which ragged columns added, are last."""
    return Batch({name: columns[name] for name in [*names, *columns]})


def _gather(values: Sequence[Any], back: npt.NDArray[np.intp]) -> Any:
    if values and isinstance(values[0], BatchSlotWrites):
        return gather_images(values, back)
    if values and isinstance(values[0], np.ndarray):
        return joined(values, optional=False)[back]
    if any(isinstance(run, EncodedRows) for run in values):
        return gather_rows(values, back.tolist())
    flat = [value for run in values for value in run]
    return [flat[at] for at in back.tolist()]
