"""Defines what decode threads pass to the device stage: images that are still encoded, in batch order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.augment import Augment
from concurrent_loader.batch.ragged import Ragged
from concurrent_loader.batch.shared_memory import empty
from concurrent_loader.decode import DEFAULT_MAX_PIXELS, Backend, Box
from concurrent_loader.decode.header import Buffer
from concurrent_loader.lossless import TilePlan

__all__ = ["StagedColumn", "StagedImage", "turn_upright"]


@dataclass(frozen=True, slots=True)
class StagedImage:
    """Stores the image of one sample on its way to the device.

    Attributes:
        sample: Sample number in the dataset.
        key: Key of the shard or object that contains the image.
        height: Height of the upright image, or of the part that its plan decodes, in pixels.
        width: Width of the upright image, or of the part that its plan decodes, in pixels.
        codec: Codec of the device that decodes the image; empty if the image is decoded.
        data: Verified encoded bytes; None if the image is decoded, or its bytes are in the block of the column.
        start: Offset of the first byte in the block.
        end: Offset after the last byte in the block.
        orientation: EXIF orientation; 1 is upright.
        pixels: (C, H, W) on the CPU if the image was decoded there, cropped to its final size if there is a box.
        box: Part of the decoded, upright image to crop; None for the whole image.
        draws: Random numbers for the augmentation of the column; empty without one.
        plan: Plan of an image that was prepared for the device.
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
    pixels: torch.Tensor | None = None
    box: Box | None = None
    draws: tuple[float, ...] = ()
    plan: TilePlan | None = None


@dataclass(frozen=True, slots=True)
class StagedColumn:
    """Stores the images of a batch before they are on the device.

    Attributes:
        name: Name of the column.
        column_type: Type of the column in the schema.
        mode: ``"rgb"``, ``"gray"`` or ``"unchanged"``.
        size: Height and width of the crops in pixels; None if images are not cropped.
        images: Images in batch order.
        augment: Augmentation of the crops; None without one.
        block: Encoded bytes of all images, (n,) uint8, if another process sent them.
        backend: Image library that decodes on the CPU what the device refuses.
        max_pixels: Maximum number of pixels when the CPU decodes.
        ragged: Arrangement of whole images. None stacks images of one size, and keeps a list of others.
    """

    name: str
    column_type: str
    mode: str
    size: tuple[int, int] | None
    images: tuple[StagedImage, ...]
    augment: Augment | None = None
    block: torch.Tensor | None = None
    backend: Backend = "auto"
    max_pixels: int = DEFAULT_MAX_PIXELS
    ragged: Ragged | None = None

    def __len__(self) -> int:
        return len(self.images)

    def payload(self, image: StagedImage) -> npt.NDArray[np.uint8]:
        """Returns the bytes for an image's decoder, without copying them."""
        if image.data is not None:
            return np.frombuffer(image.data, np.uint8)
        assert self.block is not None
        return self.block.numpy()[image.start : image.end]

    def encoded(self, image: StagedImage) -> npt.NDArray[np.uint8]:
        """Returns the encoded image within the payload: all of it unless the image was prepared."""
        return self.payload(image)[0 if image.plan is None else image.plan.facts_bytes :]

    def packed(self) -> StagedColumn:
        """Returns the column with all encoded bytes in one block, in shared memory in a worker process."""
        encoded = [image for image in self.images if image.data is not None]
        block = empty((sum(memoryview(each.data).nbytes for each in encoded if each.data is not None),), torch.uint8)
        into, position = block.numpy(), 0
        images: list[StagedImage] = []
        for image in self.images:
            if image.data is None:
                images.append(image)
                continue
            payload = self.payload(image)
            end = position + len(payload)
            into[position:end] = payload
            images.append(replace(image, data=None, start=position, end=end))
            position = end
        return replace(self, images=tuple(images), block=block)


def turn_upright(image: torch.Tensor, orientation: int) -> torch.Tensor:
    """Applies an EXIF orientation.

    Args:
        image: (C, H, W) as stored.
        orientation: EXIF orientation, 1 to 8 (TIFF 6.0, tag 274: position of the stored row 0 and column 0).

    Returns:
        (C, H', W'), a view where possible.
    """
    if orientation >= 5:
        image = image.transpose(1, 2)
    turned = {2: (2,), 3: (1, 2), 4: (1,), 6: (2,), 7: (1, 2), 8: (1,)}.get(orientation)
    return image if turned is None else image.flip(turned)
