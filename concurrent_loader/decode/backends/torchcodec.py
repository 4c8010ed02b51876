"""Decodes images with torchcodec, which needs no FFmpeg for images and always applies the EXIF orientation.

Pillow decodes AVIFs with alpha or gray, because torchcodec blends alpha with black and expands gray to three channels.
Gray from WebP and AVIF is computed here, because torchcodec takes 27 bytes of memory per pixel for it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torchcodec import decoders

from concurrent_loader.decode.backends import pillow
from concurrent_loader.decode.backends.buffer_view import as_tensor
from concurrent_loader.decode.backends.gray import to_gray
from concurrent_loader.decode.backends.libraries import LIBRARIES
from concurrent_loader.decode.backends.library_errors import library_error
from concurrent_loader.storage.images import Buffer, ImageHeader

__all__ = ["FORMATS", "decode"]

# Releases that only decode videos have none of these functions; `libraries.py` then chooses another library.
_DECODERS: dict[str, Callable[..., torch.Tensor]] = {
    name: getattr(decoders, f"decode_{name}") for name in LIBRARIES["torchcodec"].formats
}
FORMATS = frozenset(_DECODERS)
_WASTEFUL_GRAY = frozenset({"webp", "avif"})


def decode(data: Buffer, header: ImageHeader, mode: str) -> torch.Tensor:
    """Decodes an image to (C, H, W) uint8, or uint16 for 16-bit PNGs. ``mode`` is "RGB", "GRAY" or "UNCHANGED".

    Raises:
        DecodeError: The data is damaged, or the library does not support it.
    """
    if header.format == "avif" and header.num_channels != 3:
        return pillow.decode(data, header, mode)
    if header.format == "jpeg" and header.orientation != 1:  # torchcodec looks only into the first APP1 segment
        return pillow.decode(data, header, mode)
    if mode == "GRAY" and header.format in _WASTEFUL_GRAY:
        return torch.from_numpy(to_gray(decode(data, header, "RGB").numpy()))
    options = {"output_dtype": torch.uint16} if header.bits == 16 and mode == "UNCHANGED" else {}
    try:
        return _DECODERS[header.format](as_tensor(data), mode=mode, **options)
    except (RuntimeError, ValueError) as error:
        raise library_error(header.format, error, _last_words(error)) from error


def _last_words(error: Exception) -> str:
    """Returns the message of the library without the C++ source position in front of it."""
    return str(error).strip().splitlines()[0].rpartition(", ")[2][:200]
