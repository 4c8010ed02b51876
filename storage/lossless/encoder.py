"""Encodes pixels as a lossless image, for ingesting. Specification: docs/reference/lossless_format.md.

The same pixels give the same bytes, with or without the native module, if the version of zstd is the same.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from concurrent_loader.storage.errors import SchemaError
from concurrent_loader.storage.lossless.layout import GROUP_TILES, MAX_SIDE, PACKED, PLAIN, LosslessHeader
from concurrent_loader.storage.lossless.native import Native, native_module
from concurrent_loader.storage.lossless.tiles import GroupPlace, pack_group

__all__ = ["encode"]

# Level 1 is Huffman codes with few matches, because packed planes contain none. Level 3 was larger and slower.
_LEVEL = 1
_MAX_BYTES = (1 << 31) - 1


def encode(pixels: npt.NDArray[Any], *, compress: bool = True, native: Native = "auto") -> bytes:
    """Encodes an image.

    Args:
        pixels: (C, H, W) uint8 with 1 (gray), 2 (gray, alpha), 3 (RGB) or 4 (RGBA) channels, or uint16 with 1 channel.
        compress: Whether to compress groups with zstd (default). Without zstd, files are about a sixth larger, and the
            CPU need not decompress them for a GPU.
        native: Whether to use the native module. The default ``"auto"`` uses it if it was built.

    Returns:
        The encoded image: packed or plain samples, whichever is smaller.

    Raises:
        SchemaError: The shape or dtype of the array is not supported.
        ConfigurationError: ``native=True`` and the native module was not built.

    Thread-safety: May be called from any number of threads; the native module releases the GIL.

    Example:
        >>> import numpy as np
        >>> from concurrent_loader.storage.lossless import encode, parse_header
        >>> parse_header(encode(np.zeros((3, 48, 64), np.uint8))).shape
        (3, 48, 64)
    """
    module = native_module(native)
    _check(pixels)
    pixels = np.ascontiguousarray(pixels, dtype=pixels.dtype.newbyteorder("="))
    header = LosslessHeader(
        PACKED, pixels.shape[0], pixels.dtype.itemsize * 8, pixels.shape[2], pixels.shape[1], GROUP_TILES
    )
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=False) if compress else None
    table, bodies = bytearray(), []
    for tile_row in range(header.tiles_down):
        for tile_column in range(0, header.tiles_across, GROUP_TILES):
            num_tiles = min(GROUP_TILES, header.tiles_across - tile_column)
            head, top, second, rest = _packed(module, pixels, header, (tile_row, tile_column, num_tiles))
            coded_bytes = len(head) + len(top) + len(second)
            coded = _coded((head, top, second), coded_bytes, compressor)
            table += struct.pack("<III", len(coded), coded_bytes, len(rest))
            bodies += [coded, rest]
    packed_bytes = len(table) + sum(map(len, bodies))
    if packed_bytes >= header.num_bytes:
        plain = LosslessHeader(PLAIN, header.num_channels, header.bits, header.width, header.height, GROUP_TILES)
        return plain.to_bytes() + pixels.astype(pixels.dtype.newbyteorder("<"), copy=False).tobytes()
    return b"".join((header.to_bytes(), table, *bodies))


def _check(pixels: npt.NDArray[Any]) -> None:
    fits = pixels.ndim == 3 and (
        (pixels.dtype == np.uint8 and 1 <= pixels.shape[0] <= 4)
        or (pixels.dtype.newbyteorder("=") == np.uint16 and pixels.shape[0] == 1)
    )
    if not fits:
        raise SchemaError(
            "a lossless image must be (C, H, W) uint8 with 1 to 4 channels, or uint16 with 1",
            got=f"{pixels.dtype}{list(pixels.shape)}",
        )
    if not all(1 <= side <= MAX_SIDE for side in pixels.shape[1:]) or pixels.nbytes > _MAX_BYTES:
        raise SchemaError("a lossless image must have at least one pixel and at most 2 GiB", got=list(pixels.shape))


def _packed(
    module: Any, pixels: npt.NDArray[Any], header: LosslessHeader, group: tuple[int, int, int]
) -> tuple[bytes, bytes, bytes, bytes]:
    if module is None:
        return pack_group(pixels, GroupPlace(header, *group))
    shape = (header.num_channels, header.bits, header.height, header.width)
    return module.pack(pixels, shape, group)  # type: ignore[no-any-return]


def _coded(sections: tuple[bytes, ...], num_bytes: int, compressor: zstandard.ZstdCompressor | None) -> bytes:
    """Returns one zstd frame, or plain bytes if they are smaller.

    Each section has its own block, and so its own Huffman codes.
    """
    if compressor is not None:
        stream = compressor.compressobj(size=num_bytes)
        parts = []
        for section in sections:
            if section:
                parts += [stream.compress(section), stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)]
        frame = b"".join((*parts, stream.flush()))
        if len(frame) < num_bytes:
            return frame
    return b"".join(sections)
