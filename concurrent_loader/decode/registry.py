"""Chooses the decoder of a column: which library, which channels, and what it may be asked to swallow."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Literal

import torch

from concurrent_loader.decode.header import Buffer, ImageHeader, parse_header
from concurrent_loader.errors import DecodeError
from storage.errors import ConfigurationError

__all__ = [
    "DEFAULT_MAX_PIXELS",
    "Backend",
    "Decode",
    "Decoder",
    "available_backends",
    "check_header",
    "formats_of",
    "load_backend",
    "make_decoder",
]

Decoder = Callable[[Buffer], torch.Tensor]
Backend = Literal["auto", "torchcodec", "torchvision", "pil"]
Decode = Callable[[Buffer, ImageHeader, str], torch.Tensor]

DEFAULT_MAX_PIXELS = 178_956_970  # Pillow's: half a GiB of RGB

_MODES = {"rgb": "RGB", "gray": "GRAY", "unchanged": "UNCHANGED"}
_FORMATS = {
    "jpeg": frozenset({"jpeg"}),
    "png": frozenset({"png"}),
    "webp": frozenset({"webp"}),
    "image": frozenset({"jpeg", "png", "webp"}),
    "bytes": frozenset({"jpeg", "png", "webp"}),
}

# Besides being absent, a library may be too old, or built for another torch and fail to load.
_UNUSABLE = (ImportError, AttributeError, RuntimeError, OSError)

_logger = logging.getLogger(__name__)


def make_decoder(
    spec: str | Decoder,
    column_type: str,
    *,
    backend: Backend = "auto",
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> Decoder:
    """Makes the function that turns a column's encoded values into pictures.

    Pictures are (C, H, W) uint8 and upright: the EXIF orientation has been applied. 16-bit images are scaled to 8 bits,
    palettes spread out, alpha is dropped (not blended) where it was not asked for. Libraries agree to within one level
    of gray made from colour. Strides are the library's: often the channels of a pixel lie together.

    Args:
        spec: ``"rgb"`` (C = 3), ``"gray"`` (C = 1), ``"unchanged"`` (1 gray, 2 gray and alpha, 3 RGB, 4 RGBA or
            CMYK), or a function of the encoded bytes (bytes-like) that replaces all of this.
        column_type: ``"jpeg"``, ``"png"``, ``"webp"``; or ``"image"``, ``"bytes"``, where the first bytes tell.
        backend: ``"auto"`` is torchcodec, or torchvision where torchcodec is absent.
        max_pixels: A larger picture is refused before memory is allocated for it.

    Returns:
        A function from bytes-like to a tensor. It raises `DecodeError` and releases the GIL while it decodes.

    Raises:
        ConfigurationError: An argument that cannot work, or a library that is not installed.

    Thread-safety: The decoder may be called from any number of threads.
    """
    if callable(spec):
        return _wrapped(spec)
    if spec not in _MODES:
        raise ConfigurationError("decode must be 'rgb', 'gray', 'unchanged' or a function", got=spec)
    if max_pixels < 1:
        raise ConfigurationError("max_pixels must be positive", got=max_pixels)
    mode, formats, decode = _MODES[spec], formats_of(column_type), load_backend(backend)

    def decode_image(data: Buffer) -> torch.Tensor:
        header = parse_header(data)
        check_header(header, formats, max_pixels)
        return decode(data, header, mode)

    return decode_image


@cache
def available_backends() -> tuple[Backend, ...]:
    """Libraries that can be used here, the preferred one first."""
    names: tuple[Backend, ...] = ("torchcodec", "torchvision", "pil")
    return tuple(name for name in names if _importable(name))


def formats_of(column_type: str) -> frozenset[str]:
    """The formats that a column's values may have.

    Raises:
        ConfigurationError: It is no column of images.
    """
    if column_type not in _FORMATS:
        raise ConfigurationError("only columns of images can be decoded", expected=sorted(_FORMATS), got=column_type)
    return _FORMATS[column_type]


def check_header(header: ImageHeader, formats: frozenset[str], max_pixels: int) -> None:
    """Refuses what a decoder must not get to see.

    Raises:
        DecodeError: Another format, too many pixels, or an animation.
    """
    if header.format not in formats:
        raise DecodeError("the image is of another format than its column", expected=sorted(formats), got=header.format)
    if header.num_pixels > max_pixels:
        raise DecodeError(
            "the image is too large",
            expected=f"at most {max_pixels} pixels",
            got=f"{header.width} x {header.height}",
        )
    if header.animated:
        raise DecodeError("an animated WebP is not one picture; decode it by a function of your own")


def _wrapped(function: Decoder) -> Decoder:
    def decode_by_function(data: Buffer) -> torch.Tensor:
        try:
            return function(data)
        except DecodeError:
            raise
        except Exception as error:
            raise DecodeError(f"the decode function failed: {type(error).__name__}: {error}") from error

    return decode_by_function


def load_backend(backend: Backend) -> Decode:
    """Imports a library's decode function: (bytes, header, mode) → (C, H, W) uint8.

    Raises:
        ConfigurationError: There is no such library, or it cannot be used here.
    """
    if backend == "auto":
        return _import(available_backends()[0])
    if backend not in ("torchcodec", "torchvision", "pil"):
        raise ConfigurationError("backend must be 'auto', 'torchcodec', 'torchvision' or 'pil'", got=backend)
    try:
        return _import(backend)
    except _UNUSABLE as error:
        raise ConfigurationError("this image library cannot be used here", expected=backend, got=str(error)) from error


def _importable(backend: Backend) -> bool:
    try:
        _import(backend)
    except _UNUSABLE as error:
        _logger.info("images are not decoded by %s: %s", backend, error)
        return False
    return True


def _import(backend: str) -> Decode:
    if backend == "torchcodec":
        from concurrent_loader.decode import torchcodec_images

        return torchcodec_images.decode
    if backend == "torchvision":
        from concurrent_loader.decode import torchvision_images

        return torchvision_images.decode
    from concurrent_loader.decode import pillow_images

    return pillow_images.decode
