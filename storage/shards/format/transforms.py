"""Decompresses ranges of adopted objects that become the payload of a virtual shard.

A virtual shard states the length of its payload, so no more memory is allocated, whatever a compressed range claims.
"""

from __future__ import annotations

import bz2
import io
import zlib
from collections.abc import Callable

import zstandard

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.stores.objects import Buffer

__all__ = ["TRANSFORMS", "transform"]

_MAX_WINDOW_BYTES = 1 << 27


def _zstd(data: Buffer, max_bytes: int) -> bytes:
    reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).stream_reader(
        io.BytesIO(data), read_across_frames=True
    )
    return reader.read(max_bytes)


def _gzip(data: Buffer, max_bytes: int) -> bytes:
    return zlib.decompressobj(wbits=31).decompress(data, max_bytes)


def _bz2(data: Buffer, max_bytes: int) -> bytes:
    return bz2.BZ2Decompressor().decompress(data, max_bytes)


TRANSFORMS: dict[str, Callable[[Buffer, int], bytes]] = {"zstd": _zstd, "gz": _gzip, "bz2": _bz2}
"""Functions by name: (range, largest number of bytes to return) -> the first bytes of the payload."""


def transform(name: str, data: Buffer, *, max_bytes: int) -> bytes:
    """Returns the payload that a compressed range holds.

    Args:
        name: Name of the transform, a key of `TRANSFORMS`.
        data: The whole range.
        max_bytes: Largest size of the payload.

    Raises:
        FormatError: The transform is unknown, the range is damaged, or the payload is larger than ``max_bytes``.
    """
    if name not in TRANSFORMS:
        raise FormatError(
            "an object's compression cannot be read in place; import the samples with their own library "
            "(`concurrent-loader ingest python MODULE:FUNCTION`)",
            expected=sorted(TRANSFORMS), got=name,
        )  # fmt: skip
    try:
        payload = TRANSFORMS[name](data, max_bytes + 1)
    except (OSError, EOFError, ValueError, zlib.error, zstandard.ZstdError) as error:
        raise FormatError(f"a compressed range does not decompress: {error}") from error
    if len(payload) > max_bytes:
        raise FormatError("a compressed range holds more than its index states", expected=max_bytes)
    return payload
