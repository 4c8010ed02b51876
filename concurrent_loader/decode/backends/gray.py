"""Converts color images to gray with a fixed amount of extra memory, for libraries that cannot or that waste memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["to_gray"]

_STRIP_PIXELS = 1 << 18


def to_gray(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Converts (3, H, W) uint8 to (1, H, W) uint8: ITU-R BT.601 luma, rounded as Pillow rounds it."""
    _, height, width = pixels.shape
    gray = np.empty((1, height, width), np.uint8)
    rows = max(1, _STRIP_PIXELS // width)
    for top in range(0, height, rows):
        red, green, blue = pixels[:, top : top + rows].astype(np.uint32)
        gray[0, top : top + rows] = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16
    return gray
