"""torchcodec behind the registry: the first choice; it needs no FFmpeg for images and always turns them upright.

What it does otherwise goes to Pillow: of an AVIF it blends alpha with black, and spreads gray over three channels.
Gray of WebP and AVIF is made here: the library takes 27 bytes of memory a pixel for it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torchcodec import decoders

from concurrent_loader.decode import pillow_images
from concurrent_loader.decode.encoded import as_tensor
from concurrent_loader.decode.faults import library_fault
from concurrent_loader.decode.gray import to_gray
from concurrent_loader.decode.header import Buffer, ImageHeader

__all__ = ["FORMATS", "decode"]

# By name: releases that decode videos only have none of these, and the registry then goes on to torchvision.
_DECODERS: dict[str, Callable[..., torch.Tensor]] = {
    name: getattr(decoders, f"decode_{name}") for name in ("jpeg", "png", "webp", "avif")
}
FORMATS = frozenset(_DECODERS)
_WASTEFUL_GRAY = frozenset({"webp", "avif"})


def decode(data: Buffer, header: ImageHeader, mode: str) -> torch.Tensor:
    """Decodes an image: (C, H, W) uint8; uint16 of 16-bit PNGs. ``mode`` is "RGB", "GRAY" or "UNCHANGED".

    Raises:
        DecodeError: The data is damaged or of a kind that the library does not know.
    """
    if header.format == "avif" and header.num_channels != 3:
        return pillow_images.decode(data, header, mode)
    if mode == "GRAY" and header.format in _WASTEFUL_GRAY:
        return torch.from_numpy(to_gray(decode(data, header, "RGB").numpy()))
    options = {"output_dtype": torch.uint16} if header.bits == 16 and mode == "UNCHANGED" else {}
    try:
        return _DECODERS[header.format](as_tensor(data), mode=mode, **options)
    except (RuntimeError, ValueError) as error:
        raise library_fault(header.format, error, _last_words(error)) from error


def _last_words(error: Exception) -> str:
    """The library's message without the C++ source position before it."""
    return str(error).strip().splitlines()[0].rpartition(", ")[2][:200]
