"""What of a batch goes into a slot, and what becomes of it on the device: pure, but for the bytes that it points at."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.batch import Batch
from concurrent_loader.device.pictures import StagedColumn
from concurrent_loader.device.screening import CODECS

__all__ = ["Load", "Piece", "restore"]

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of a batch, wherever they are now.

    Attributes:
        column: That they belong to.
        content: uint8 of any shape and strides.
        position: Of the picture in the batch; None for a whole column of numbers.
        encoded: Whether it is a picture that the device decodes.
    """

    column: str
    content: Bytes
    position: int | None = None
    encoded: bool = False


@dataclass(slots=True)
class Load:
    """A batch's bytes.

    Attributes:
        copied: What goes to the device.
        kept: What the device's decoder reads from the host's memory.
    """

    copied: list[Piece] = field(default_factory=list)
    kept: list[Piece] = field(default_factory=list)

    @classmethod
    def of(cls, batch: Batch) -> Load:
        """Collects them; nothing is copied."""
        load = cls()
        for name, value in batch.items():
            if isinstance(value, StagedColumn):
                load._add_pictures(value)
            elif isinstance(value, torch.Tensor) and is_plain(value):
                content = value.permute(_order(value)).contiguous().reshape(-1)
                load.copied.append(Piece(name, content.view(torch.uint8).numpy()))
        return load

    def _add_pictures(self, column: StagedColumn) -> None:
        for position, picture in enumerate(column.pictures):
            if picture.picture is not None:
                pixels = picture.picture
                if pixels.dtype != torch.uint8:
                    pixels = pixels.contiguous().reshape(-1).view(torch.uint8)
                self.copied.append(Piece(column.name, pixels.numpy(), position))
                continue
            pieces = self.kept if CODECS[picture.codec].reads == "host" else self.copied
            pieces.append(Piece(column.name, column.payload(picture), position, encoded=True))


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its numbers, on the CPU; what is not, torch moves in its own way."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.numel() > 0
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
    )


def restore(content: torch.Tensor, like: torch.Tensor, whole_bytes: int) -> torch.Tensor:
    """Makes a column of its bytes on the device.

    Args:
        content: (n,) uint8, part of the copy of a whole slot.
        like: The column on the CPU, whose dtype, shape and order of dimensions the result gets.
        whole_bytes: Of the whole copy.

    Returns:
        A view of the copy, if the column is most of it. Otherwise memory of its own: who keeps the labels of an epoch
        does not keep its pictures.
    """
    order = _order(like)
    shape = [like.shape[dim] for dim in order]
    back = [order.index(dim) for dim in range(like.dim())]
    value = content.view(like.dtype).view(shape).permute(back)
    return value if 2 * content.numel() > whole_bytes else value.clone()


def _order(tensor: torch.Tensor) -> list[int]:
    """The dimensions as they lie in memory, the outermost first."""
    strides = tensor.stride()
    return sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], dim))
