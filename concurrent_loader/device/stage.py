"""The device stage: takes a batch as the decode threads leave it, and makes the batch that the consumer gets.

For each batch, on one thread: a slot of page-locked memory is filled with all that the device needs (compressed
pictures, pictures that CPU threads had to decode, labels and other columns); the stream is drained and the JPEGs are
decoded in one call; one copy takes the rest to the device; lossless pictures among it are decoded there by one launch;
crops and augmentation are launched; a ticket marks when all of that will be done. Nothing after the JPEGs is waited for
here.

Why the stream is drained first: nvJPEG's hardware engine does not heed the stream. Memory of the pictures before, freed
while their crops were still to be made, would be written to at once (pytorch/vision #9606, torchcodec #1634).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from concurrent_loader.batch import Batch
from concurrent_loader.broken import OnError
from concurrent_loader.decode import Box, make_crop_decoder, make_decoder
from concurrent_loader.device.backend import DeviceBackend, Undecodable
from concurrent_loader.device.decoding import decode_each
from concurrent_loader.device.layout import lay_out
from concurrent_loader.device.loads import Load, Piece, restore
from concurrent_loader.device.outcomes import Pictures, Staged, finished, mended
from concurrent_loader.device.pictures import StagedColumn, StagedPicture
from concurrent_loader.device.screening import CODECS
from concurrent_loader.device.slots import Slot, SlotRing
from concurrent_loader.errors import DecodeError
from concurrent_loader.stats import StageClock
from storage.ranges import ByteRange

__all__ = ["DeviceStage"]

NUM_SLOTS = 2  # one is filled while the device still reads from the other


class DeviceStage:
    """Moves batches to one device, in order. After an error it is only to be closed.

    Args:
        backend: The device.
        clock: Where the time goes.
        on_error: What becomes of samples whose pictures turn out broken here; see `concurrent_loader.broken`.
        num_slots: Batches that may be on their way at once.

    Thread-safety: one thread calls `stage`; `hand_over` is the consumer's.
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
        self._held: dict[int, list[torch.Tensor]] = {}  # slot → further memory that the device reads from with it

    @property
    def device(self) -> torch.device:
        """Where batches go."""
        return self._backend.device

    def stage(self, batch: Batch) -> Staged:
        """Starts everything that makes a batch on the device.

        Args:
            batch: Its tensors on the CPU, its pictures as `StagedColumn`.

        Raises:
            DecodeError: A picture that neither the device nor the CPU can decode; names the sample. Only if
                ``on_error`` is ``"raise"``.
            CollateError: Pictures that do not fit into one tensor.
            DeviceError: The device refused something.
        """
        backend, clock = self._backend, self._clock
        slot = self._slots.take(backend.wait)
        self._held[slot.number] = []
        load = Load.of(batch)
        layout = lay_out([piece.content.size for piece in load.copied], [piece.content.size for piece in load.kept])
        with clock.measure("fill"):
            memory = slot.memory(layout.num_bytes)
            _fill(memory, zip((*load.copied, *load.kept), (*layout.copied, *layout.kept), strict=True))
        clock.add("device bytes", layout.num_bytes)
        pictures = Pictures()
        columns: dict[str, torch.Tensor] = {}
        for value in batch.values():
            if isinstance(value, StagedColumn):
                pictures.num_samples = len(value)
        encoded = [(piece, _cut(memory, place)) for piece, place in zip(load.kept, layout.kept, strict=True)]
        self._decode(batch, encoded, pictures, slot)
        if layout.copied_bytes:
            whole, encoded = backend.copy(memory[: layout.copied_bytes]), []
            for piece, place in zip(load.copied, layout.copied, strict=True):
                content = _cut(whole, place)
                if piece.position is None:
                    columns[piece.column] = content
                elif piece.encoded:
                    encoded.append((piece, content))
                else:
                    picture = batch[piece.column].pictures[piece.position]
                    pixels = content.view(picture.picture.dtype).view(picture.picture.shape)
                    pictures.made[piece.column, piece.position] = pixels, picture.box
                    clock.add("pictures decoded by the CPU", 1)
            self._decode(batch, encoded, pictures, slot)
        with clock.measure("device augment"):
            made = backend.run(
                lambda: self._put_together(batch, columns, pictures, layout.copied_bytes),
                what="cropping and augmenting a batch",
            )
        ticket = backend.ticket()
        self._slots.sent(slot, ticket)
        return Staged(made, ticket, pictures.errors(batch))

    def hand_over(self, staged: Staged) -> Batch:
        """Returns a batch, once the caller's stream has been told to wait for it; call it on the consumer's thread."""
        values = [each for value in staged.batch.values() for each in (value if isinstance(value, list) else [value])]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        self._backend.hand_over(staged.ticket, tensors)
        return staged.batch

    def close(self) -> None:
        """Waits for the device, and lets go of all memory. Idempotent."""
        try:
            self._backend.close()
        finally:
            self._held.clear()
            self._slots.forget()

    # -- pictures --------------------------------------------------------------------------------------------------

    def _decode(
        self,
        batch: Batch,
        encoded: Sequence[tuple[Piece, torch.Tensor]],
        into: Pictures,
        slot: Slot,
    ) -> None:
        """Decodes what the device can, each column and codec in one call, and has the CPU try the rest."""
        groups: dict[tuple[str, str], list[tuple[StagedPicture, int, torch.Tensor]]] = {}
        for piece, payload in encoded:
            assert piece.position is not None
            picture = batch[piece.column].pictures[piece.position]
            groups.setdefault((piece.column, picture.codec), []).append((picture, piece.position, payload))
        for (name, codec), members in groups.items():
            with self._clock.measure("device decode"):
                outcomes = decode_each(partial(self._decode_many, codec, batch[name].mode), members)
            for (picture, position, _), outcome in zip(members, outcomes, strict=True):
                if isinstance(outcome, Undecodable) or tuple(outcome.shape[1:]) != (picture.height, picture.width):
                    self._rescue(batch[name], picture, position, into, slot)
                else:
                    into.made[name, position] = outcome, picture.box
                    self._clock.add("pictures decoded by the device", 1)

    def _decode_many(
        self, codec: str, mode: str, members: Sequence[tuple[StagedPicture, int, torch.Tensor]]
    ) -> list[torch.Tensor]:
        if CODECS[codec].reads == "host":
            self._backend.drain()
        pictures = [picture for picture, _, _ in members]
        return self._backend.decode(
            codec,
            [payload for _, _, payload in members],
            [picture.orientation for picture in pictures],
            mode,
            [picture.plan for picture in pictures],
        )

    def _rescue(self, column: StagedColumn, picture: StagedPicture, position: int, into: Pictures, slot: Slot) -> None:
        """Decodes on the CPU what the device did not like: what a library there can read is a picture everywhere."""
        data = column.encoded(picture).data
        box = picture.box
        options: dict[str, Any] = {"backend": column.backend, "max_pixels": column.max_pixels}
        try:
            if box is None or column.size is None:
                pixels = make_decoder(column.mode, column.column_type, **options)(data).contiguous()
            else:
                drawn = box if picture.plan is None else picture.plan.located(box)
                box = Box(0, 0, *column.size)
                pixels = torch.empty((3, *column.size), dtype=torch.uint8)
                make_crop_decoder(column.column_type, **options)(data, lambda _, __: drawn, pixels.numpy())
        except DecodeError as error:
            error.locate(column=column.name, sample=picture.sample, key=picture.key)
            if self._on_error == "raise":
                raise
            into.broken[position] = error.with_traceback(None)
            return
        self._clock.add("pictures decoded by the CPU", 1)
        host = self._backend.host_memory(pixels.numel())  # no device takes more than 8 bits
        host.numpy()[:] = pixels.numpy().reshape(-1)
        self._held[slot.number].append(host)
        into.made[column.name, position] = self._backend.copy(host).view(pixels.shape), box

    def _put_together(
        self,
        batch: Batch,
        columns: Mapping[str, torch.Tensor],
        pictures: Pictures,
        whole_bytes: int,
    ) -> Batch:
        rows = pictures.rows(self._on_error)
        data: dict[str, Any] = {}
        for name, value in batch.items():
            if isinstance(value, StagedColumn):
                data[name] = finished(value, pictures, rows, self.device)
                continue
            if name in columns:
                data[name] = restore(columns[name], value, whole_bytes)
            else:
                data[name] = value.to(self.device) if isinstance(value, torch.Tensor) else value
            if rows is not None:
                data[name] = data[name][rows] if isinstance(value, torch.Tensor) else [value[row] for row in rows]
        return mended(batch, data, rows, pictures, self._on_error)


def _fill(memory: torch.Tensor, pieces: Iterable[tuple[Piece, ByteRange]]) -> None:
    # numpy copies on this thread alone, without the GIL; torch would split each copy over cores that are decoding.
    host = memory.numpy()
    for piece, place in pieces:
        host[place.start : place.end].reshape(piece.content.shape)[...] = piece.content


def _cut(memory: torch.Tensor, place: ByteRange) -> torch.Tensor:
    return memory[place.start : place.end]
