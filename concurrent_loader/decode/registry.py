"""Makes the decoder of a column: which formats, which channels, and what a library may be asked to swallow."""

from __future__ import annotations

from collections.abc import Callable

import torch

from concurrent_loader.decode.header import Buffer, ImageHeader, check_size, parse_header
from concurrent_loader.decode.libraries import ENCODINGS, Backend, load_decode
from concurrent_loader.errors import DecodeError
from storage.errors import ConfigurationError
from storage.images import DEFAULT_MAX_PIXELS

__all__ = ["DEFAULT_MAX_PIXELS", "Decoder", "check_header", "formats_of", "make_decoder"]

Decoder = Callable[[Buffer], torch.Tensor]

_MODES = {"rgb": "RGB", "gray": "GRAY", "unchanged": "UNCHANGED"}
_ANY = frozenset(ENCODINGS)
_FORMATS = {
    **{name: frozenset({name}) for name in ENCODINGS},
    "image": _ANY,
    "bytes": _ANY,
    "image/lossless": frozenset({"lossless"}),
}


def make_decoder(
    spec: str | Decoder,
    column_type: str,
    *,
    backend: Backend = "auto",
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> Decoder:
    """Makes the function that turns a column's encoded values into pictures.

    Pictures are (C, H, W) uint8 and upright: the EXIF orientation has been applied. More than 8 bits are scaled to 8,
    but ``"unchanged"`` keeps a 16-bit PNG's: uint16. Palettes are spread out, alpha is dropped (not blended) where it
    was not asked for. Libraries agree to within one level of gray made from colour. Strides are the library's: often
    the channels of a pixel lie together.

    Args:
        spec: ``"rgb"`` (C = 3), ``"gray"`` (C = 1), ``"unchanged"`` (1 gray, 2 gray and alpha, 3 RGB, 4 RGBA or
            CMYK), or a function of the encoded bytes (bytes-like) that replaces all of this.
        column_type: ``"jpeg"``, ``"png"``, ``"webp"``, ``"avif"``, ``"gif"``, ``"image/lossless"``; or
            ``"image"``, ``"bytes"``, where the first bytes tell.
        backend: As for `concurrent_loader.decode.libraries.load_decode`.
        max_pixels: A larger picture is refused before memory is allocated for it, and one that may take
            more than 2 GiB of memory, or than 12 bytes for each of these pixels.

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
    mode, formats = _MODES[spec], formats_of(column_type)
    decode = load_decode(formats, backend)

    def decode_image(data: Buffer) -> torch.Tensor:
        header = parse_header(data)
        check_header(header, formats, max_pixels, memoryview(data).nbytes)
        return decode(data, header, mode)

    return decode_image


def formats_of(column_type: str) -> frozenset[str]:
    """The formats that a column's values may have.

    Raises:
        ConfigurationError: It is no column of images.
    """
    if column_type not in _FORMATS:
        raise ConfigurationError("only columns of images can be decoded", expected=sorted(_FORMATS), got=column_type)
    return _FORMATS[column_type]


def check_header(header: ImageHeader, formats: frozenset[str], max_pixels: int, num_bytes: int) -> None:
    """Refuses what a decoder must not get to see.

    Raises:
        DecodeError: Another format, too many pixels, too much memory, a file too short for them, or an animation.
    """
    if header.format not in formats:
        raise DecodeError("the image is of another format than its column", expected=sorted(formats), got=header.format)
    check_size(header, num_bytes, max_pixels)
    if header.animated:
        raise DecodeError(
            "an animated image is not one picture; decode it by a function of your own", got=header.format
        )


def _wrapped(function: Decoder) -> Decoder:
    def decode_by_function(data: Buffer) -> torch.Tensor:
        try:
            return function(data)
        except DecodeError:
            raise
        except Exception as error:
            raise DecodeError(f"the decode function failed: {type(error).__name__}: {error}") from error

    return decode_by_function
