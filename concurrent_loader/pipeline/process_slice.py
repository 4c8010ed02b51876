"""Reads, verifies, decodes and transforms a slice of a batch in a decode thread, mostly without the GIL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from concurrent_loader.augment import CroppingDecoder
from concurrent_loader.batch.buffers import BatchBuffers, BatchSlotWrites
from concurrent_loader.batch.decode_failures import FailedImage, FailedSample, missing_image
from concurrent_loader.batch.encoded_rows import EncodedRows
from concurrent_loader.device import DeferredDecoder
from concurrent_loader.errors import DecodeError
from concurrent_loader.media import PartDecoder
from concurrent_loader.pipeline.linked_columns import LinkedColumn, LinkedReader, as_tv_images
from concurrent_loader.pipeline.sample_processing import SAMPLES, SampleProcessing, transform_sample
from concurrent_loader.pipeline.slices import Slice
from concurrent_loader.storage.shards.format.nulls import masked, with_none

__all__ = ["process_slice"]


def process_slice(processing: SampleProcessing, part: Slice) -> dict[str, Any] | list[Any]:
    """Reads, verifies, decodes and transforms the samples of a slice.

    Returns:
        Column → values, aligned with ``part.positions``; or a list of samples if ``processing.by_sample``.

    Raises:
        StorageError: Bytes are missing or damaged.
        DecodeError: An image cannot be decoded, or is null; the error names the sample. Only with
            ``on_error="raise"``.
        TransformError: The transform failed, ``from`` the cause; the error names the sample.
    """
    if processing.before is not None:
        processing.before(part.step, SAMPLES)
    links = {name: each for name, each in processing.decoders.items() if isinstance(each, LinkedColumn)}
    wrap = processing.transform is not None
    linked = LinkedReader(links, part, on_error=processing.on_error, wrap=wrap)
    columns: dict[str, Any] = {name: _read_column(processing, part, name, linked) for name in processing.columns}
    if not processing.by_sample:
        return columns
    if wrap:
        columns |= {name: as_tv_images(columns[name]) for name in linked.images()}
    samples: list[Any] = [
        dict(zip(columns, values, strict=True)) for values in zip(*map(_by_sample, columns.values()), strict=True)
    ]
    if processing.on_error != "raise":
        samples = [
            FailedSample(sample)
            if any(isinstance(sample[name], FailedImage) for name in processing.decoders)
            else sample
            for sample in samples
        ]
    if processing.transform is None:
        return samples
    with processing.clock.measure("transform"):
        return [
            sample if isinstance(sample, FailedSample) else transform_sample(processing, sample, part, place)
            for place, sample in enumerate(samples)
        ]


def _read_column(processing: SampleProcessing, part: Slice, name: str, linked: LinkedReader) -> Any:
    decoder = processing.decoders.get(name)
    if isinstance(decoder, LinkedColumn):
        with processing.clock.measure("decode"):
            return linked.read(name)
    with processing.clock.measure("read"):
        if decoder is None:
            # The schema of a dataset does not have the encodings of its shards.
            if processing.packs_encoded(name) and part.is_own(name):
                rows = EncodedRows.of(processing.schema[name], part.payload(name))
                if rows is not None:
                    return rows
            values = part.values(name)
            is_masked = isinstance(values, np.ndarray) and processing.schema[name].optional
            return masked(values) if is_masked else values
        encoded = part.payload(name)
    with processing.clock.measure("decode"):
        if isinstance(decoder, CroppingDecoder) and part.buffers is not None and not processing.by_sample:
            return _decode_in_place(processing, decoder, encoded, name, part, part.buffers)
        decoders: Sequence[Callable[[bytes | memoryview], Any]]
        if isinstance(decoder, DeferredDecoder):
            decoders = decoder.decoders(part.epoch, part.samples, part.keys())
        elif isinstance(decoder, CroppingDecoder | PartDecoder):
            decoders = decoder.decoders(part.epoch, part.samples)
        else:
            decoders = [decoder] * len(encoded)
        return [
            _decode(processing, each, data, name, part, place)
            for place, (each, data) in enumerate(zip(decoders, encoded, strict=True))
        ]


def _decode_in_place(
    processing: SampleProcessing,
    decoder: CroppingDecoder,
    encoded: Sequence[bytes | memoryview | None],
    name: str,
    part: Slice,
    buffers: BatchBuffers,
) -> BatchSlotWrites:
    """Decodes a slice's images into the batch's buffer."""
    images = buffers.images(name, decoder.shape, decoder.dtype, channels_last=decoder.channels_last)
    into = [images[row] for row in part.positions.tolist()]
    failures = {}
    for place, (each, data) in enumerate(zip(decoder.decoders(part.epoch, part.samples, into), encoded, strict=True)):
        decoded = _decode(processing, each, data, name, part, place)
        if isinstance(decoded, FailedImage):
            failures[place] = decoded
    return BatchSlotWrites(images, part.positions, failures)


def _decode(
    processing: SampleProcessing,
    decoder: Callable[[bytes | memoryview], Any],
    data: bytes | memoryview | None,
    column: str,
    part: Slice,
    place: int,
) -> Any:
    """Decodes an image. A failure is raised, or returned as a `FailedImage`, as ``on_error`` says."""
    try:
        if data is None:
            raise missing_image()
        return decoder(data)
    except DecodeError as error:
        error.locate(column=column, **part.locate(place))
        if processing.on_error == "raise":
            raise error from error.__cause__
        return FailedImage(error.with_traceback(None), processing.blanks.get(column))


def _by_sample(values: Any) -> Any:
    # numpy scalars, not Python numbers: float32 stays float32 when the batch is collated.
    values = with_none(values)
    return list(values) if isinstance(values, np.ndarray) else [_writable(value) for value in values]


def _writable(value: Any) -> Any:
    """Returns an array that a transform may write to, and that torch takes without a warning."""
    return value.copy() if isinstance(value, np.ndarray) and not value.flags.writeable else value
