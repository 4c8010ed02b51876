"""Decodes images with torchvision, for machines without torchcodec. Pillow decodes what torchvision does differently.

torchvision 0.29 deprecated its Python functions in favor of torchcodec and warns in every call. Warning filters are
process-wide, and a thread must not change them. This module therefore calls the operators below those functions, which
are the same in all releases from 0.26 on.

torchvision's PNG decoder is not used: one flipped bit in the compressed data can end the process with a segmentation
fault (seen with torchvision 0.29.2), and Pillow is as fast. The AVIF decoder is a separate package.
"""

from __future__ import annotations

import torch
import torchvision.io  # noqa: F401 - registers the operators

from concurrent_loader.decode.backends import pillow
from concurrent_loader.decode.backends.buffer_view import as_tensor
from concurrent_loader.decode.backends.gray import to_gray
from concurrent_loader.decode.backends.library_errors import library_error
from concurrent_loader.storage.images import Buffer, ImageHeader

__all__ = ["FORMATS", "decode"]

FORMATS = frozenset({"jpeg", "webp"})

_MODES = {"UNCHANGED": 0, "GRAY": 1, "RGB": 3}


def decode(data: Buffer, header: ImageHeader, mode: str) -> torch.Tensor:
    """Decodes an image to (C, H, W) uint8. ``mode`` is "RGB", "GRAY" or "UNCHANGED".

    Raises:
        DecodeError: The data is damaged, or the library does not support it.
    """
    if _needs_pillow(header, mode):
        return pillow.decode(data, header, mode)
    if header.format == "webp" and mode == "GRAY":
        return torch.from_numpy(to_gray(decode(data, header, "RGB").numpy()))
    encoded = as_tensor(data)
    try:
        if header.format == "webp":
            pixels = torch.ops.image.decode_webp(encoded, _MODES[mode])
        else:
            pixels = torch.ops.image.decode_jpeg(encoded, _MODES[mode], False)
    except (RuntimeError, ValueError) as error:
        raise library_error(header.format, error, str(error).strip().splitlines()[0][-200:]) from error
    return pixels  # type: ignore[no-any-return]


def _needs_pillow(header: ImageHeader, mode: str) -> bool:
    """Returns whether torchvision differs: EXIF in WebP, EXIF that is not in the first segment, inverted CMYK."""
    if header.format == "webp":
        return header.exif
    return header.orientation != 1 or (header.num_channels == 4 and mode == "UNCHANGED")
