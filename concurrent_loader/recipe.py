"""What is done to every sample of an iteration: a loader's arguments, made for a data set's columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from concurrent_loader.augment import Crop, CroppingDecoder
from concurrent_loader.batch_memory import BatchMemory
from concurrent_loader.broken import OnError
from concurrent_loader.decode import Decoder, make_decoder
from concurrent_loader.decode_argument import check_decode
from concurrent_loader.device import DeferredDecoder
from concurrent_loader.plan import BatchIndex
from concurrent_loader.shared_memory import SharedBlocks
from concurrent_loader.source import LoadableDataset
from concurrent_loader.stats import StageClock
from storage.errors import ConfigurationError
from storage.shards.columns import ColumnKind, Schema

__all__ = ["BATCH", "SAMPLES", "Recipe", "make_recipe"]

SAMPLES, BATCH = range(2)


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
        mixed: Columns of whole images, which stay a list where their sizes differ.
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
    mixed: frozenset[str] = frozenset()

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
    check_decode(decode)
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
            mixed=frozenset(name for name, how in decode.items() if isinstance(how, str)),
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
