"""Makes the decoder of a column: chooses the libraries, and refuses images that no library should see."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from concurrent_loader.decode.backends.libraries import Backend, load_decode
from concurrent_loader.decode.header import Buffer, ImageHeader, check_size, parse_header
from concurrent_loader.errors import DecodeError
from concurrent_loader.storage.errors import ConfigurationError
from concurrent_loader.storage.images import COLUMN_FORMATS, DEFAULT_MAX_PIXELS, FORMATS

__all__ = ["DEFAULT_MAX_PIXELS", "Decoder", "check_header", "formats_of", "make_decoder"]

Decoder = Callable[[Any], torch.Tensor]
"""A function of ``bytes``, or of a ``memoryview`` if its type hint says so, to a tensor."""

_MODES = {"rgb": "RGB", "gray": "GRAY", "unchanged": "UNCHANGED"}
_FORMATS = {
    **{column_type: frozenset(formats) for column_type, formats in COLUMN_FORMATS.items()},
    "image": frozenset(FORMATS),
    "bytes": frozenset(FORMATS),
}


def make_decoder(
    spec: str | Decoder,
    column_type: str,
    *,
    backend: Backend = "auto",
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> Decoder:
    """Makes a function that decodes the values of an image column.

    Images are (C, H, W) uint8 and upright: the EXIF orientation is applied. More than 8 bits are scaled to 8 bits, but
    ``"unchanged"`` keeps the 16 bits of a PNG as uint16. Palettes are expanded. Alpha is dropped without blending,
    except for ``"unchanged"``. Libraries agree exactly on RGB, and within one level on gray made from color. The
    strides depend on the library.

    Args:
        spec: ``"rgb"`` (C = 3), ``"gray"`` (C = 1), ``"unchanged"`` (C = 1 for gray, 2 for gray and alpha, 3 for RGB, 4
            for RGBA or CMYK), or a function of the encoded bytes that replaces the decoder. The function gets
            ``bytes``, or a ``memoryview`` without a copy if its parameter has that type hint.
        column_type: Type of the column: ``"jpeg"``, ``"png"``, ``"webp"``, ``"avif"``, ``"gif"`` or
            ``"image/lossless"``; or ``"image"`` or ``"bytes"``, which may hold several formats.
        backend: Image library for all formats that it decodes; Pillow decodes the others. The default ``"auto"`` takes
            the preferred library that is installed.
        max_pixels: Maximum number of pixels (default 178,956,970). Decoding may take 2 GiB of memory, or 12 bytes for
            each of these pixels if that is more. A larger image is refused before memory is allocated.

    Returns:
        A function from a bytes-like object to a tensor. It raises `DecodeError`, and releases the GIL while it decodes.

    Raises:
        ConfigurationError: An argument is invalid, or the library is not installed.

    Thread-safety: The decoder may be called from any number of threads.

    Example:
        >>> from pathlib import Path
        >>> from concurrent_loader.decode import make_decoder
        >>> decode = make_decoder("rgb", "jpeg")
        >>> decode(Path("images/cat/0.jpg").read_bytes()).shape[0]
        3
    """
    if callable(spec):
        return _wrapped(spec)
    if spec not in _MODES:
        raise ConfigurationError("decode must be 'rgb', 'gray', 'unchanged' or a function", got=spec)
    if max_pixels < 1:
        raise ConfigurationError("max_pixels must be positive", got=max_pixels)
    mode, formats = _MODES[spec], formats_of(column_type)
    decode = load_decode(formats, backend)

    def decode_image(data: Buffer) -> torch.Tensor:
        header = parse_header(data)
        check_header(header, formats, max_pixels, memoryview(data).nbytes)
        return decode(data, header, mode)

    return decode_image


def formats_of(column_type: str) -> frozenset[str]:
    """Returns the names of the formats that the values of a column may have.

    Raises:
        ConfigurationError: The column does not hold images.
    """
    if column_type not in _FORMATS:
        raise ConfigurationError("only image columns can be decoded", expected=sorted(_FORMATS), got=column_type)
    return _FORMATS[column_type]


def check_header(header: ImageHeader, formats: frozenset[str], max_pixels: int, num_bytes: int) -> None:
    """Refuses an image that no decoder should see.

    Raises:
        DecodeError: The format is not one of the column's, the image is too large or an animation, or its file is too
            short for its size.
    """
    if header.format not in formats:
        raise DecodeError(
            "the format of the image does not match its column", expected=sorted(formats), got=header.format
        )
    check_size(header, num_bytes, max_pixels)
    if header.animated:
        raise DecodeError(
            "an animation is more than one image; pass a function of your own in decode=", got=header.format
        )


def _wanted_type(function: Callable[..., object]) -> Callable[[Buffer], Buffer]:
    """Returns what makes the argument of a function: ``memoryview`` if its type hint says so, otherwise ``bytes``."""
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):  # a function in C
        return bytes
    hint = None if first is None else first.annotation
    return memoryview if hint in (memoryview, "memoryview") else bytes


def _wrapped(function: Callable[[Any], torch.Tensor]) -> Decoder:
    convert = _wanted_type(function)

    def decode_by_function(data: Buffer) -> torch.Tensor:
        try:
            return function(convert(data))
        except DecodeError:
            raise
        except Exception as error:
            raise DecodeError(f"the decode function failed: {type(error).__name__}: {error}") from error

    return decode_by_function
