"""What decode threads hand to the device stage: pictures that are still encoded, in their batch's order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.augment import Augment
from concurrent_loader.decode import DEFAULT_MAX_PIXELS, Backend, Box
from concurrent_loader.decode.header import Buffer
from concurrent_loader.lossless import TilePlan
from concurrent_loader.shared_memory import empty

__all__ = ["StagedColumn", "StagedPicture"]


@dataclass(frozen=True, slots=True)
class StagedPicture:
    """One sample's picture on its way to the device.

    Attributes:
        sample: Its number in the data set.
        key: Of the shard or object that it lies in.
        height: Of the upright picture, or of the part of it that its plan has decoded.
        width: Likewise.
        codec: The device's that decodes it; empty if it is decoded already.
        data: Its verified encoded bytes; None if it is decoded, or lies in its column's block.
        start: Where its bytes begin in the block.
        end: Where they end.
        orientation: By EXIF; 1 where nothing is to be turned.
        picture: (C, H, W) on the CPU if it was decoded there, cropped to its final size if there is a box.
        box: Of what is decoded, upright, that becomes the sample's; None for all of it.
        draws: What the sample has drawn for its column's augmentation; nothing without one.
        plan: Of a picture that was prepared for the device: what lies in its bytes.
    """

    sample: int
    key: str
    height: int
    width: int
    codec: str = ""
    data: Buffer | None = None
    start: int = 0
    end: int = 0
    orientation: int = 1
    picture: torch.Tensor | None = None
    box: Box | None = None
    draws: tuple[float, ...] = ()
    plan: TilePlan | None = None


@dataclass(frozen=True, slots=True)
class StagedColumn:
    """A batch's pictures before they are on the device.

    Attributes:
        name: Of the column.
        column_type: As its schema says.
        mode: ``"rgb"``, ``"gray"`` or ``"unchanged"``.
        size: Height and width that boxes are resized to; None where pictures stay as they are.
        pictures: In the batch's order.
        augment: What is done to the crops; None where nothing is.
        block: (n,) uint8, the encoded bytes of all of them if they came from another process.
        backend: Of the decoders that try on the CPU what the device refuses.
        max_pixels: What they refuse, too.
    """

    name: str
    column_type: str
    mode: str
    size: tuple[int, int] | None
    pictures: tuple[StagedPicture, ...]
    augment: Augment | None = None
    block: torch.Tensor | None = None
    backend: Backend = "auto"
    max_pixels: int = DEFAULT_MAX_PIXELS

    def __len__(self) -> int:
        return len(self.pictures)

    def payload(self, picture: StagedPicture) -> npt.NDArray[np.uint8]:
        """Returns the bytes that go to a picture's decoder, where they are."""
        if picture.data is not None:
            return np.frombuffer(picture.data, np.uint8)
        assert self.block is not None
        return self.block.numpy()[picture.start : picture.end]

    def encoded(self, picture: StagedPicture) -> npt.NDArray[np.uint8]:
        """Returns of these the encoded picture, which is all of them unless it was prepared."""
        return self.payload(picture)[0 if picture.plan is None else picture.plan.facts_bytes :]

    def packed(self) -> StagedColumn:
        """Returns the column with all encoded bytes in one block, in shared memory where a worker makes the batch."""
        encoded = [picture for picture in self.pictures if picture.data is not None]
        block = empty((sum(memoryview(each.data).nbytes for each in encoded if each.data is not None),), torch.uint8)
        into, position = block.numpy(), 0
        pictures: list[StagedPicture] = []
        for picture in self.pictures:
            if picture.data is None:
                pictures.append(picture)
                continue
            payload = self.payload(picture)
            end = position + len(payload)
            into[position:end] = payload
            pictures.append(replace(picture, data=None, start=position, end=end))
            position = end
        return replace(self, pictures=tuple(pictures), block=block)
