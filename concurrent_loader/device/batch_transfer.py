"""Collects the bytes of a batch that a slot carries, and restores columns from them on the device."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.batch.batch import Batch
from concurrent_loader.batch.ragged import RaggedColumn
from concurrent_loader.device.codecs import CODECS
from concurrent_loader.device.staged_images import StagedColumn

__all__ = ["BatchBytes", "Piece", "restore"]

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Piece:
    """References some bytes of a batch, wherever they are.

    Attributes:
        column: Column of the bytes.
        content: uint8 array of any shape and strides.
        position: Position of the image in the batch; None for a whole column of numbers.
        encoded: Whether the bytes are an image that the device decodes.
    """

    column: str
    content: Bytes
    position: int | None = None
    encoded: bool = False


@dataclass(slots=True)
class BatchBytes:
    """References the bytes of a batch.

    Attributes:
        copied: Pieces that are copied to the device.
        kept: Pieces that the decoder of the device reads from host memory.
    """

    copied: list[Piece] = field(default_factory=list)
    kept: list[Piece] = field(default_factory=list)

    @classmethod
    def of(cls, batch: Batch) -> BatchBytes:
        """Collects the pieces of a batch without copying them."""
        batch_bytes = cls()
        for name, value in batch.items():
            if isinstance(value, StagedColumn):
                batch_bytes._add_images(value)
            elif isinstance(value, RaggedColumn):
                if value.block.numel():
                    batch_bytes.copied.append(Piece(name, value.block.view(torch.uint8).numpy()))
            elif isinstance(value, torch.Tensor) and is_plain(value):
                content = value.permute(_order(value)).contiguous().reshape(-1)
                batch_bytes.copied.append(Piece(name, content.view(torch.uint8).numpy()))
        return batch_bytes

    def _add_images(self, column: StagedColumn) -> None:
        for position, image in enumerate(column.images):
            if image.pixels is not None:
                pixels = image.pixels
                if pixels.dtype != torch.uint8:
                    pixels = pixels.contiguous().reshape(-1).view(torch.uint8)
                self.copied.append(Piece(column.name, pixels.numpy(), position))
                continue
            pieces = self.kept if CODECS[image.codec].reads == "host" else self.copied
            pieces.append(Piece(column.name, column.payload(image), position, encoded=True))


def is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is dense numbers on the CPU; torch moves all other tensors itself."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.numel() > 0
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
    )


def restore(content: torch.Tensor, like: torch.Tensor, whole_bytes: int) -> torch.Tensor:
    """Restores a column from its bytes on the device.

    Args:
        content: Bytes of the column, (n,) uint8, a part of the copy of a slot.
        like: Column on the CPU, whose dtype, shape and memory order the result gets.
        whole_bytes: Length of the copy in bytes.

    Returns:
        A view of the copy if the column is more than half of it, otherwise new memory. Keeping the labels of an epoch
        therefore does not keep its images.
    """
    order = _order(like)
    shape = [like.shape[dim] for dim in order]
    back = [order.index(dim) for dim in range(like.dim())]
    value = content.view(like.dtype).view(shape).permute(back)
    return value if 2 * content.numel() > whole_bytes else value.clone()


def _order(tensor: torch.Tensor) -> list[int]:
    """Returns the dimensions in memory order, outermost first."""
    strides = tensor.stride()
    return sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], dim))
