"""Defines the operations on every sample and batch of an iteration, built from a loader's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from concurrent_loader.augment import Crop, CroppingDecoder, Linked
from concurrent_loader.batch.buffers import BatchBuffers
from concurrent_loader.batch.decode_failures import OnError
from concurrent_loader.batch.encoded_rows import can_pack_encoded
from concurrent_loader.batch.ragged import Ragged, RaggedOption, ragged_columns
from concurrent_loader.batch.shared_memory import SharedBlocks
from concurrent_loader.datasets.protocol import GroupChooser, LoadableDataset
from concurrent_loader.decode import DEFAULT_MAX_PIXELS, Backend, Decoder, make_decoder
from concurrent_loader.device import DeferredDecoder
from concurrent_loader.errors import LoaderError, TransformError
from concurrent_loader.media import PartDecoder, PartOf
from concurrent_loader.order.packing import Packed
from concurrent_loader.order.protocol import BatchIndex
from concurrent_loader.pipeline.decode_argument import check_decode, check_packed, check_ragged
from concurrent_loader.pipeline.linked_columns import LinkedColumn, link_columns
from concurrent_loader.pipeline.sample_context import SampleContext, takes_context
from concurrent_loader.pipeline.slices import Slice
from concurrent_loader.stats.loader_stats import StageClock
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.shards.format.schema import ColumnKind, Schema

__all__ = [
    "BATCH",
    "SAMPLES",
    "ProcessingOptions",
    "SampleProcessing",
    "make_sample_processing",
    "transform_batch",
    "transform_sample",
]

SAMPLES, BATCH = range(2)  # what a thread is about to make; see `SampleProcessing.before`

ColumnDecoder = Decoder | CroppingDecoder | DeferredDecoder | LinkedColumn | PartDecoder


@dataclass(frozen=True, kw_only=True)
class ProcessingOptions:
    """Holds the arguments of a loader that decide what is done to samples and batches.

    Options can be pickled if the user's functions can, so that workers get the same ones.

    Attributes:
        decode: Column of images, audio or videos → how to decode it, as passed to the loader.
        decoder: Name of the library that decodes.
        max_pixels: Number of pixels from which on an image is refused before memory is allocated for it.
        on_error: What to do with a sample whose image cannot be decoded: ``"raise"``, ``"skip"`` or ``"replace"``.
        transform: Sample dict → sample, or (sample dict, `SampleContext`) → sample, or None.
        collate_fn: List of samples → batch, or None for `concurrent_loader.collate`.
        batch_transform: Batch → batch, or None. None also if the loader calls it, after the transfer to its device.
        seed: Seed of the random streams.
        device_codecs: Names of the encodings that the loader's device decodes. Images in them stay encoded.
        ragged: Column → arrangement of values of different shapes, as passed to the loader.
        staged: Whether the device stage makes the batches, so that ragged columns travel in one block.
        packed: How documents are packed into rows; None if each sample is a row.
    """

    decode: Mapping[str, str | Decoder | Crop | Linked | PartOf] = field(default_factory=dict)
    decoder: Backend = "auto"
    max_pixels: int = DEFAULT_MAX_PIXELS
    on_error: OnError = "raise"
    transform: Callable[..., Any] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    batch_transform: Callable[[Any], Any] | None = None
    seed: int = 0
    device_codecs: tuple[str, ...] = ()
    ragged: Mapping[str, RaggedOption] = field(default_factory=dict)
    staged: bool = False
    packed: Packed | None = None

    @property
    def by_sample(self) -> bool:
        """Whether samples must exist one by one, as dicts; otherwise batches are made column by column."""
        return self.transform is not None or self.collate_fn is not None


@dataclass(frozen=True)
class SampleProcessing:
    """Operations on every sample and batch of an iteration.

    Attributes:
        schema: Schema of the dataset.
        columns: Columns of a batch.
        decoders: Decoder of each encoded column: a plain function, a crop that depends on the sample, a decoder that
            defers the work to the device, a part of audio or video, or a link to an image.
        transform: Function from sample dict, and perhaps `SampleContext`, to sample dict, or None.
        collate_fn: Function from a list of samples to a batch, or None for `concurrent_loader.collate`.
        batch_transform: Function from batch to batch, or None.
        clock: Counters of the time spent in each stage.
        children: Processing of each child of a mixture whose batches come from one child each; otherwise empty.
        on_error: Policy for images that fail to decode; see `concurrent_loader.batch.decode_failures`.
        blanks: Shape of a blank image for each column in which blank images are possible.
        images: Columns of whole images.
        ragged: Column → arrangement of values of different shapes.
        staged: Whether ragged columns stay in one block for the device stage.
        seed: Seed of the loader.
        takes_context: Whether the transform gets a `SampleContext`, too.
        packed: How documents are packed into rows; None if each sample is a row.
        before: Callback in the decode thread before a step's samples or batch are made. It gets the step and `SAMPLES`
            or `BATCH`. A worker process sets its random streams there.
        ship: Callback in the decode thread that replaces the batch to deliver. It gets a function that makes the batch,
            and the batch's shared memory. A worker process packs the batch there.
    """

    schema: Schema
    columns: tuple[str, ...]
    decoders: Mapping[str, ColumnDecoder] = field(default_factory=dict)
    transform: Callable[..., Any] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    batch_transform: Callable[[Any], Any] | None = None
    clock: StageClock = field(default_factory=StageClock)
    before: Callable[[int, int], object] | None = None
    ship: Callable[[Callable[[], Any], SharedBlocks], Any] | None = None
    children: tuple[SampleProcessing, ...] = ()
    on_error: OnError = "raise"
    blanks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    images: frozenset[str] = frozenset()
    ragged: Mapping[str, Ragged] = field(default_factory=dict)
    staged: bool = False
    seed: int = 0
    takes_context: bool = False
    packed: Packed | None = None

    @property
    def collate_options(self) -> dict[str, Any]:
        """Arguments of `concurrent_loader.collate`."""
        optional = {
            column.name: column
            for column in self.schema
            if column.optional and column.dtype is not None and column.name not in self.decoders
        }
        return {"ragged": self.ragged, "images": self.images, "staged": self.staged, "optional": optional}

    def packs_encoded(self, name: str) -> bool:
        """Returns whether a column is packed from its stored bytes, without a Python object for each value."""
        return (
            self.ragged.get(name) == "packed"
            and not self.by_sample
            and not self.staged
            and can_pack_encoded(self.schema[name])
        )

    def of(self, index: BatchIndex) -> SampleProcessing:
        """Returns the processing of one batch: that of its child of a mixture, or this one."""
        if not self.children or index.source is None or not len(index):
            return self
        child = self.children[int(index.source[0])]
        return replace(
            self, schema=child.schema, columns=child.columns, decoders=child.decoders, blanks=child.blanks, children=()
        )

    def choosers(self, epoch: int) -> list[dict[str, GroupChooser]]:
        """Returns the functions that choose the parts of videos to fetch, for each of the dataset's parts."""
        return [
            {
                name: decoder.chooser(epoch)
                for name, decoder in each.decoders.items()
                if isinstance(decoder, PartDecoder) and decoder.part.is_clip
            }
            for each in self.children or (self,)
        ]

    def make_buffers(self, num_samples: int) -> BatchBuffers:
        """Makes the image buffers of a batch. The caller closes them."""
        return BatchBuffers(num_samples, None if self.ship is None else SharedBlocks())

    @property
    def computes(self) -> bool:
        """Whether samples are decoded or passed to a function of the user, rather than only read."""
        return bool(self.decoders) or self.by_sample

    @property
    def by_sample(self) -> bool:
        """Whether samples are made one by one, as dicts. Otherwise batches are made column by column."""
        return self.transform is not None or self.collate_fn is not None


def make_sample_processing(
    dataset: LoadableDataset, options: ProcessingOptions, *, clock: StageClock
) -> SampleProcessing:
    """Makes the processing of a dataset from a loader's options, in the loader's process or in a worker.

    Images that the device decodes (``device_codecs``) stay encoded, unless samples must exist one by one.

    Raises:
        ConfigurationError: A column to decode does not exist, or cannot be decoded in this way.
    """
    check_decode(options.decode)
    ragged = ragged_columns(options.ragged)
    check_ragged(ragged, dataset, options.decode, has_transform=options.transform is not None)
    if options.packed is not None:
        own = {"decode": options.decode, "transform": options.transform, "collate_fn": options.collate_fn}
        check_packed(options.packed, dataset, ragged, own)
    if ragged and options.collate_fn is not None:
        raise ConfigurationError(
            "ragged is for the loader's own collate; call collate(samples, ragged=…) in the collate_fn"
        )
    known = list(dict.fromkeys(name for part in dataset.parts for name in part.columns))
    for name in options.decode:
        if name not in known:
            raise ConfigurationError(
                "decode names a column that the dataset does not have", column=name, expected=known
            )
    processings = [
        SampleProcessing(
            schema=part.schema,
            columns=part.columns,
            decoders=_decoders(part, options),
            transform=options.transform,
            collate_fn=options.collate_fn,
            clock=clock,
            batch_transform=options.batch_transform,
            on_error=options.on_error,
            images=frozenset(name for name, how in options.decode.items() if isinstance(how, str)),
            ragged=ragged,
            staged=options.staged,
            seed=options.seed,
            takes_context=takes_context(options.transform),
            packed=options.packed,
            blanks={name: shape for name, how in options.decode.items() if (shape := _blank_shape(how)) is not None},
        )
        for part in dataset.parts
    ]
    return processings[0] if len(processings) == 1 else replace(processings[0], children=tuple(processings))


def _decoders(part: LoadableDataset, options: ProcessingOptions) -> dict[str, ColumnDecoder]:
    codecs = () if options.by_sample else options.device_codecs
    decoding: dict[str, Any] = {"backend": options.decoder, "max_pixels": options.max_pixels}
    decoders: dict[str, ColumnDecoder] = {}
    decoders |= link_columns(part, options.decode, seed=options.seed, **decoding)
    for name, how in options.decode.items():
        if name not in part.columns or isinstance(how, Linked):
            continue  # a column of another dataset of the mixture, or a linked one
        column = part.schema[name]
        if column.kind is not ColumnKind.PAYLOAD:
            raise ConfigurationError("decode works on columns of files and bytes only", column=name, got=column.type)
        if isinstance(how, PartOf):
            decoders[name] = PartDecoder(how, column.base_type, seed=options.seed, max_pixels=options.max_pixels)
        elif codecs and isinstance(how, str | Crop):
            decoders[name] = DeferredDecoder(name, how, column.base_type, seed=options.seed, codecs=codecs, **decoding)
        elif isinstance(how, Crop):
            decoders[name] = CroppingDecoder(how, column.base_type, seed=options.seed, **decoding)
        else:
            decoders[name] = make_decoder(how, column.base_type, **decoding)
    return decoders


def _blank_shape(how: str | Decoder | Crop | Linked | PartOf) -> tuple[int, ...] | None:
    """Returns the shape of a blank image: the crop's shape, or one pixel for whole images."""
    if isinstance(how, Linked):
        return how.crop.size if how.is_mask else None
    if isinstance(how, Crop):
        return (3, *how.size)
    return (1 if how == "gray" else 3, 1, 1) if isinstance(how, str) else None


def transform_sample(processing: SampleProcessing, sample: dict[str, Any], part: Slice, place: int) -> Any:
    """Calls the transform with the sample at a place of a slice, and with its context if the transform takes one.

    Raises:
        TransformError: The transform failed, ``from`` the cause. A `LoaderError` is raised unchanged.
    """
    transform = processing.transform
    assert transform is not None
    try:
        if processing.takes_context:
            return transform(sample, SampleContext(int(part.samples[place]), part.epoch, processing.seed))
        return transform(sample)
    except LoaderError:
        raise
    except (Exception, SystemExit) as error:  # sys.exit() in a thread would end nothing
        raise TransformError(f"the transform failed: {type(error).__name__}: {error}", **part.locate(place)) from error


def transform_batch(transform: Callable[[Any], Any] | None, batch: Any) -> Any:
    """Calls a batch transform with a batch; without one, returns the batch.

    Raises:
        TransformError: The transform failed, ``from`` the cause. A `LoaderError` or `ConfigurationError` is raised
            unchanged.
    """
    if transform is None:
        return batch
    try:
        return transform(batch)
    except (LoaderError, ConfigurationError):
        raise
    except Exception as error:
        raise TransformError(f"the batch transform failed: {type(error).__name__}: {error}") from error
