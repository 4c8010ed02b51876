"""Decodes lossless images (docs/how-to/lossless.md), whole or only the tiles that a crop touches."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.decode.backends.gray import to_gray
from concurrent_loader.errors import DecodeError
from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.images import Buffer, ImageHeader
from concurrent_loader.storage.lossless import decode as decode_lossless

__all__ = ["FORMATS", "decode", "decode_box"]

FORMATS = ("lossless",)
_ANY_SIZE = 1 << 62  # the caller has checked the header's size against max_pixels


def decode(data: Buffer, header: ImageHeader, mode: str) -> torch.Tensor:
    """Decodes an image to (C, H, W) uint8, or uint16 for "UNCHANGED". ``mode`` is "RGB", "GRAY" or "UNCHANGED".

    Raises:
        DecodeError: The data is damaged.
    """
    return decode_box(data, None, mode)


def decode_box(data: Buffer, box: tuple[int, int, int, int] | None, mode: str) -> torch.Tensor:
    """Decodes only the tiles of an image that touch the box (top, left, height, width), as `decode` does.

    Raises:
        DecodeError: The data is damaged.
    """
    try:
        pixels = decode_lossless(data, box=box, alpha=mode == "UNCHANGED", max_pixels=_ANY_SIZE)
    except FormatError as error:
        raise DecodeError(error.what, expected=error.expected, got=error.got) from error
    if mode != "UNCHANGED":
        pixels = _in_eight_bits(pixels)
        if mode == "RGB" and len(pixels) == 1:
            pixels = np.repeat(pixels, 3, axis=0)
        elif mode == "GRAY" and len(pixels) == 3:
            pixels = to_gray(pixels)
    return torch.from_numpy(pixels)


def _in_eight_bits(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Scales 16 bits to 8, rounded to nearest."""
    if pixels.dtype == np.uint16:
        scaled = np.empty(pixels.shape, np.uint8)
        for row in range(pixels.shape[1]):  # row by row, to save memory
            scaled[:, row] = (pixels[:, row].astype(np.uint32) + 128) // 257
        return scaled
    return pixels
