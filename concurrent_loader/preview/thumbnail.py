"""Makes small images for a page: decodes within the loader's limits, shrinks, and colors masks."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from concurrent_loader.decode import make_decoder
from concurrent_loader.errors import DecodeError
from concurrent_loader.preview.picture_columns import as_pixels
from concurrent_loader.storage.shards.format.schema import Column

__all__ = ["Thumbnail", "image_thumbnail", "mask_thumbnail"]

_SIDE = 256  # pixels of the longer side
_QUALITY = 80
_MAX_ARRAY_PIXELS = 64 << 20


class Thumbnail:
    """A small image, and the size of the image that it was made from.

    Attributes:
        data_url: The image as a ``data:`` URL.
        width: Width of the whole image in pixels.
        height: Height of the whole image in pixels.
    """

    def __init__(self, image: Image.Image, *, is_mask: bool = False) -> None:
        self.width, self.height = image.size
        scale = min(1.0, _SIDE / max(image.size))
        size = (max(1, round(self.width * scale)), max(1, round(self.height * scale)))
        stream = io.BytesIO()
        if is_mask:
            image.resize(size, Image.Resampling.NEAREST).save(stream, "PNG", optimize=True)
        else:
            image.resize(size, Image.Resampling.BOX).save(stream, "JPEG", quality=_QUALITY)
        kind = "png" if is_mask else "jpeg"
        self.data_url = f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"


def image_thumbnail(column: Column, value: Any) -> Thumbnail:
    """Makes the thumbnail of an image: encoded bytes, or an array of pixels.

    Raises:
        DecodeError: The value is not an image, is damaged, or exceeds the loader's limits.
    """
    pixels = _pixels(column, value, "rgb")
    if pixels.dtype != np.uint8:
        pixels = _stretched(pixels)
    return Thumbnail(Image.fromarray(pixels).convert("RGB"))


def mask_thumbnail(column: Column, value: Any) -> Thumbnail:
    """Makes the thumbnail of a mask: one color per class, and transparent where the class is 0.

    No values are interpolated.

    Raises:
        DecodeError: The value is not an image, is damaged, or exceeds the loader's limits.
    """
    pixels = _pixels(column, value, "unchanged")
    if pixels.ndim == 3:
        colors = pixels[:, :, :3].astype(np.uint8)
        background = ~colors.any(axis=2)
    else:
        classes = pixels.astype(np.int64)
        colors, background = _palette(classes), classes == 0
    alpha = np.where(background, 0, 255).astype(np.uint8)
    return Thumbnail(Image.fromarray(np.dstack([colors, alpha]), "RGBA"), is_mask=True)


def _pixels(column: Column, value: Any, mode: str) -> npt.NDArray[Any]:
    if isinstance(value, bytes):
        decoded = make_decoder(mode, column.base_type)(value).numpy()
        pixels = np.moveaxis(decoded, 0, 2)
        return np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2] < 3 else pixels)
    found = as_pixels(np.asarray(value))
    if found is None or found.shape[0] * found.shape[1] > _MAX_ARRAY_PIXELS:
        raise DecodeError("the array is not an image of at most 64 million pixels", got=np.asarray(value).shape)
    return np.ascontiguousarray(found)


def _stretched(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    wide = pixels.astype(np.float64)
    low, high = float(wide.min()), float(wide.max())
    return ((wide - low) * (255 / (high - low) if high > low else 0)).astype(np.uint8)


def _palette(classes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Returns a color (H, W, 3) for each class; neighboring numbers get very different hues."""
    hues = (np.arange(256) * 0.618034) % 1.0
    channels = [np.clip(np.abs((hues * 6 + shift) % 6 - 3) - 1, 0, 1) for shift in (0, 4, 2)]
    table = (55 + 200 * np.stack(channels, axis=1)).astype(np.uint8)
    return table[classes % 256]
