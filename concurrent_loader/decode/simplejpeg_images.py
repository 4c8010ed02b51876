"""simplejpeg behind the registry: an optional extra, libjpeg-turbo with little around it; for plain JPEGs alone.

It applies no EXIF rotation and leaves CMYK as it is stored: turned pictures and those go to Pillow.
"""

from __future__ import annotations

import simplejpeg
import torch

from concurrent_loader.decode import pillow_images
from concurrent_loader.decode.header import Buffer, ImageHeader
from concurrent_loader.errors import DecodeError

__all__ = ["FORMATS", "decode"]

FORMATS = frozenset({"jpeg"})


def decode(data: Buffer, header: ImageHeader, mode: str) -> torch.Tensor:
    """Decodes a JPEG: (C, H, W) uint8. ``mode`` is "RGB", "GRAY" or "UNCHANGED".

    Raises:
        DecodeError: The data is damaged or of a kind that the library does not know.
    """
    if header.orientation != 1 or header.num_channels not in (1, 3):
        return pillow_images.decode(data, header, mode)
    colours = "GRAY" if mode == "GRAY" or (mode == "UNCHANGED" and header.num_channels == 1) else "RGB"
    try:
        pixels = simplejpeg.decode_jpeg(data, colours)
    except (RuntimeError, ValueError) as error:
        raise DecodeError("damaged jpeg data", got=str(error)[:200]) from error
    return torch.from_numpy(pixels).permute(2, 0, 1)
