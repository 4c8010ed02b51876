"""torchvision behind the registry: for machines without torchcodec. What it does otherwise, or badly, goes to Pillow.

torchvision deprecated its Python functions in favour of torchcodec (0.29) and warns in every call. Warning filters
belong to the process and are no place for a thread to make exceptions in, so the operators below those functions are
called; they are the same in all releases from 0.26 on.

Its PNG decoder is not used: one flipped bit in the compressed data is enough to end the process with a segmentation
fault (seen with torchvision 0.29.2), and Pillow is as fast. Its AVIF decoder is a package of its own.
"""

from __future__ import annotations

import torch
import torchvision.io  # noqa: F401 - registers the operators

from concurrent_loader.decode import pillow_images
from concurrent_loader.decode.encoded import as_tensor
from concurrent_loader.decode.faults import library_fault
from concurrent_loader.decode.gray import to_gray
from concurrent_loader.decode.header import Buffer, ImageHeader

__all__ = ["FORMATS", "decode"]

FORMATS = frozenset({"jpeg", "webp"})

_MODES = {"UNCHANGED": 0, "GRAY": 1, "RGB": 3}


def decode(data: Buffer, header: ImageHeader, mode: str) -> torch.Tensor:
    """Decodes an image: (C, H, W) uint8. ``mode`` is "RGB", "GRAY" or "UNCHANGED".

    Raises:
        DecodeError: The data is damaged or of a kind that the library does not know.
    """
    if _is_for_pillow(header, mode):
        return pillow_images.decode(data, header, mode)
    if header.format == "webp" and mode == "GRAY":
        return torch.from_numpy(to_gray(decode(data, header, "RGB").numpy()))
    encoded = as_tensor(data)
    try:
        if header.format == "webp":
            pixels = torch.ops.image.decode_webp(encoded, _MODES[mode])
        else:
            pixels = torch.ops.image.decode_jpeg(encoded, _MODES[mode], True)
    except (RuntimeError, ValueError) as error:
        raise library_fault(header.format, error, str(error).strip().splitlines()[0][-200:]) from error
    return pixels  # type: ignore[no-any-return]


def _is_for_pillow(header: ImageHeader, mode: str) -> bool:
    """Whether torchvision differs from torchcodec: EXIF of WebP, inverted CMYK."""
    if header.format == "webp":
        return header.exif
    return header.num_channels == 4 and mode == "UNCHANGED"
