"""Decodes JPEGs with simplejpeg, an optional thin wrapper around libjpeg-turbo.

simplejpeg does not apply the EXIF orientation and returns CMYK as stored, so Pillow decodes rotated and CMYK images.
"""

from __future__ import annotations

import simplejpeg
import torch

from concurrent_loader.decode.backends import pillow
from concurrent_loader.errors import DecodeError
from concurrent_loader.storage.images import Buffer, ImageHeader

__all__ = ["FORMATS", "decode"]

FORMATS = frozenset({"jpeg"})


def decode(data: Buffer, header: ImageHeader, mode: str) -> torch.Tensor:
    """Decodes a JPEG to (C, H, W) uint8. ``mode`` is "RGB", "GRAY" or "UNCHANGED".

    Raises:
        DecodeError: The data is damaged, or the library does not support it.
    """
    if header.orientation != 1 or header.num_channels not in (1, 3):
        return pillow.decode(data, header, mode)
    colors = "GRAY" if mode == "GRAY" or (mode == "UNCHANGED" and header.num_channels == 1) else "RGB"
    try:
        pixels = simplejpeg.decode_jpeg(data, colors)
    except (RuntimeError, ValueError) as error:
        raise DecodeError("damaged jpeg data", got=str(error)[:200]) from error
    return torch.from_numpy(pixels).permute(2, 0, 1)
