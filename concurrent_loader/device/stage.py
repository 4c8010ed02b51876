"""Implements the device stage: takes a batch from the decode threads and makes the batch for the consumer.

For each batch, one thread does the following. It fills a slot of page-locked memory with everything that the device
needs: compressed images, images that CPU threads had to decode, labels and other columns. It drains the stream and
decodes the JPEGs in one call. One copy transfers the rest to the device, and one launch decodes its lossless images. It
launches crops and augmentation, and a ticket marks when all of this is done. The thread waits for nothing after the
JPEGs.

The stream is drained first because nvJPEG's hardware engine ignores the stream. It would immediately overwrite memory
of earlier images that was freed while their crops are still pending (pytorch/vision #9606, torchcodec #1634).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from concurrent_loader.batch.batch import Batch
from concurrent_loader.batch.decode_failures import OnError
from concurrent_loader.batch.ragged import RaggedColumn
from concurrent_loader.decode import Box, make_crop_decoder, make_decoder
from concurrent_loader.device.backend import DeviceBackend, Undecodable
from concurrent_loader.device.batch_transfer import BatchBytes, Piece, restore
from concurrent_loader.device.codecs import CODECS
from concurrent_loader.device.staged_batch import DecodedImages, StagedBatch, assemble_batch, assemble_column
from concurrent_loader.device.staged_images import StagedColumn, StagedImage
from concurrent_loader.device.staging_buffer import Slot, SlotRing, lay_out
from concurrent_loader.errors import DecodeError
from concurrent_loader.stats.loader_stats import StageClock
from concurrent_loader.storage.ranges import ByteRange

__all__ = ["DeviceStage", "decode_each"]

NUM_SLOTS = 2  # one is filled while the device reads the other


class DeviceStage:
    """Moves batches to one device, in order. After an error, only `close` may be called.

    Args:
        backend: Backend of the device.
        clock: Clock that measures the steps.
        on_error: Treatment of samples whose images turn out to be damaged here; see
            `concurrent_loader.batch.decode_failures`.
        num_slots: Maximum number of batches in transfer. Default 2.

    Thread-safety: One thread calls `stage`; the consumer's thread calls `hand_over`.
    """

    def __init__(
        self,
        backend: DeviceBackend,
        *,
        clock: StageClock,
        on_error: OnError = "raise",
        num_slots: int = NUM_SLOTS,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._on_error = on_error
        self._slots = SlotRing(num_slots, backend.host_memory)
        self._held: dict[int, list[torch.Tensor]] = {}  # slot → more host memory that the device reads

    @property
    def device(self) -> torch.device:
        """Device of the batches."""
        return self._backend.device

    def stage(self, batch: Batch) -> StagedBatch:
        """Starts everything that makes a batch on the device.

        Args:
            batch: Batch with tensors on the CPU, images as `StagedColumn` and ragged columns as `RaggedColumn`.

        Raises:
            DecodeError: Neither the device nor the CPU can decode an image; names the sample. Only with
                ``on_error="raise"``.
            CollateError: The images do not fit into one tensor.
            DeviceError: The device failed.
        """
        backend, clock = self._backend, self._clock
        slot = self._slots.take(backend.wait)
        self._held[slot.number] = []
        batch_bytes = BatchBytes.of(batch)
        layout = lay_out(
            [piece.content.size for piece in batch_bytes.copied], [piece.content.size for piece in batch_bytes.kept]
        )
        with clock.measure("fill"):
            memory = slot.memory(layout.num_bytes)
            _fill(memory, zip((*batch_bytes.copied, *batch_bytes.kept), (*layout.copied, *layout.kept), strict=True))
        clock.add("device bytes", layout.num_bytes)
        images = DecodedImages()
        columns: dict[str, torch.Tensor] = {}
        for value in batch.values():
            if isinstance(value, StagedColumn):
                images.num_samples = len(value)
        encoded = [(piece, _cut(memory, place)) for piece, place in zip(batch_bytes.kept, layout.kept, strict=True)]
        self._decode(batch, encoded, images, slot)
        if layout.copied_bytes:
            whole, encoded = backend.copy(memory[: layout.copied_bytes]), []
            for piece, place in zip(batch_bytes.copied, layout.copied, strict=True):
                content = _cut(whole, place)
                if piece.position is None:
                    columns[piece.column] = content
                elif piece.encoded:
                    encoded.append((piece, content))
                else:
                    image = batch[piece.column].images[piece.position]
                    pixels = content.view(image.pixels.dtype).view(image.pixels.shape)
                    images.made[piece.column, piece.position] = pixels, image.box
                    clock.add("images decoded by the CPU", 1)
            self._decode(batch, encoded, images, slot)
        with clock.measure("device augment"):
            made = backend.run(
                lambda: self._assemble(batch, columns, images, layout.copied_bytes),
                what="cropping and augmenting a batch",
            )
        ticket = backend.ticket()
        self._slots.mark_in_use(slot, ticket)
        return StagedBatch(made, ticket, images.errors(batch))

    def hand_over(self, staged: StagedBatch) -> Batch:
        """Returns a batch after making the caller's stream wait for it; called on the consumer's thread."""
        values = [each for value in staged.batch.values() for each in (value if isinstance(value, list) else [value])]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        self._backend.hand_over(staged.ticket, tensors)
        return staged.batch

    def close(self) -> None:
        """Waits for the device and releases all memory. Idempotent."""
        try:
            self._backend.close()
        finally:
            self._held.clear()
            self._slots.release()

    # -- images --------------------------------------------------------------------------------------------------

    def _decode(
        self,
        batch: Batch,
        encoded: Sequence[tuple[Piece, torch.Tensor]],
        into: DecodedImages,
        slot: Slot,
    ) -> None:
        """Decodes on the device, one call for each column and codec; the CPU decodes what the device refuses."""
        groups: dict[tuple[str, str], list[tuple[StagedImage, int, torch.Tensor]]] = {}
        for piece, payload in encoded:
            assert piece.position is not None
            image = batch[piece.column].images[piece.position]
            groups.setdefault((piece.column, image.codec), []).append((image, piece.position, payload))
        for (name, codec), members in groups.items():
            with self._clock.measure("device decode"):
                outcomes = decode_each(partial(self._decode_many, codec, batch[name].mode), members)
            for (image, position, _), outcome in zip(members, outcomes, strict=True):
                if isinstance(outcome, Undecodable) or tuple(outcome.shape[1:]) != (image.height, image.width):
                    self._rescue(batch[name], image, position, into, slot)
                else:
                    into.made[name, position] = outcome, image.box
                    self._clock.add("images decoded by the device", 1)

    def _decode_many(
        self, codec: str, mode: str, members: Sequence[tuple[StagedImage, int, torch.Tensor]]
    ) -> list[torch.Tensor]:
        if CODECS[codec].reads == "host":
            self._backend.drain()
        images = [image for image, _, _ in members]
        return self._backend.decode(
            codec,
            [payload for _, _, payload in members],
            [image.orientation for image in images],
            mode,
            [image.plan for image in images],
        )

    def _rescue(self, column: StagedColumn, image: StagedImage, position: int, into: DecodedImages, slot: Slot) -> None:
        """Decodes on the CPU an image that the device refused, so that every machine accepts the same files."""
        data = column.encoded(image).data
        box = image.box
        options: dict[str, Any] = {"backend": column.backend, "max_pixels": column.max_pixels}
        try:
            if box is None or column.size is None:
                pixels = make_decoder(column.mode, column.column_type, **options)(data).contiguous()
            else:
                drawn = box if image.plan is None else image.plan.located(box)
                box = Box(0, 0, *column.size)
                pixels = torch.empty((3, *column.size), dtype=torch.uint8)
                make_crop_decoder(column.column_type, **options)(data, lambda _, __: drawn, pixels.numpy())
        except DecodeError as error:
            error.locate(column=column.name, sample=image.sample, key=image.key)
            if self._on_error == "raise":
                raise
            into.broken[position] = error.with_traceback(None)
            return
        self._clock.add("images decoded by the CPU", 1)
        host = self._backend.host_memory(pixels.numel())  # devices decode only 8 bits
        host.numpy()[:] = pixels.numpy().reshape(-1)
        self._held[slot.number].append(host)
        into.made[column.name, position] = self._backend.copy(host).view(pixels.shape), box

    def _assemble(
        self,
        batch: Batch,
        columns: Mapping[str, torch.Tensor],
        images: DecodedImages,
        whole_bytes: int,
    ) -> Batch:
        rows = images.rows(self._on_error)
        data: dict[str, Any] = {}
        for name, value in batch.items():
            if isinstance(value, StagedColumn):
                data |= assemble_column(value, images, rows, self.device)
                continue
            if isinstance(value, RaggedColumn):
                content = columns.get(name)
                block = value.block.to(self.device) if content is None else restore(content, value.block, whole_bytes)
                data |= value.arranged(block, rows)
                continue
            if name in columns:
                data[name] = restore(columns[name], value, whole_bytes)
            elif isinstance(value, list):
                data[name] = [each.to(self.device) if isinstance(each, torch.Tensor) else each for each in value]
            else:
                data[name] = value.to(self.device) if isinstance(value, torch.Tensor) else value
            if rows is not None:
                data[name] = data[name][rows] if isinstance(value, torch.Tensor) else [value[row] for row in rows]
        return assemble_batch(batch, data, rows, images, self._on_error)


def _fill(memory: torch.Tensor, pieces: Iterable[tuple[Piece, ByteRange]]) -> None:
    # numpy copies on this thread without the GIL; torch would split each copy over cores that are decoding.
    host = memory.numpy()
    for piece, place in pieces:
        host[place.start : place.end].reshape(piece.content.shape)[...] = piece.content


def _cut(memory: torch.Tensor, place: ByteRange) -> torch.Tensor:
    return memory[place.start : place.end]


P = TypeVar("P")
R = TypeVar("R")


def decode_each(decode: Callable[[Sequence[P]], Sequence[R]], items: Sequence[P]) -> list[R | Undecodable]:
    """Decodes every item that can be decoded, by halving the list after a failure.

    Args:
        decode: Function that decodes all items, or raises `Undecodable`.
        items: Items in order.

    Returns:
        Result or error of each item, in order.
    """
    if not items:
        return []
    try:
        return list(decode(items))
    except Undecodable as error:
        if len(items) == 1:
            return [error]
    middle = len(items) // 2
    return decode_each(decode, items[:middle]) + decode_each(decode, items[middle:])
