"""Decompresses the chunks of LitData whose compressed pieces are smaller than the chunk.

LitData compresses a chunk as a whole, in batches of items, or item by item. In the latter two forms the offsets of the
items are not compressed. These functions return the chunk that LitData would have written without compression, so that
one walk reads all forms. A batched chunk is little-endian::

    "LDFZ01\\0\\0", u16 version 1, u16 flags, u32 n, u32 items per frame, u32 frames
    u32 offsets[n + 1]                                  of the items, in the decompressed items
    frames: u32 first item, u32 items, u64 start, u32 length, u32 decompressed length
    zstd frames
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import zstandard

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.stores.objects import Buffer

__all__ = ["unpack_batches", "unpack_items"]

_MAGIC = b"LDFZ01\0\0"
_HEADER = struct.Struct("<8sHHIII")
_FRAME = struct.Struct("<IIQII")
_U32 = struct.Struct("<I")
_MAX_CHUNK_BYTES = (1 << 32) - 1


def unpack_batches(chunk: Buffer, *, max_bytes: int) -> bytes:
    """Returns the uncompressed form of a chunk with ``compression_level="batch"``.

    Args:
        chunk: Whole chunk.
        max_bytes: Upper bound of the result.

    Raises:
        FormatError: The chunk is damaged, or its uncompressed form is larger than ``max_bytes``.
    """
    view = memoryview(chunk).cast("B")
    if len(view) < _HEADER.size:
        raise FormatError("a chunk ends within its header", got=len(view))
    magic, version, _, num_items, _, num_frames = _HEADER.unpack_from(view)
    if (magic, version) != (_MAGIC, 1):
        raise FormatError("a chunk is not of LitData's batched form", expected=(_MAGIC, 1), got=(magic, version))
    table = _HEADER.size + 4 * (num_items + 1)
    end_of_table = table + _FRAME.size * num_frames
    if end_of_table > len(view):
        raise FormatError("a chunk states more items or frames than fit", expected=end_of_table, got=len(view))
    offsets = np.frombuffer(view, "<u4", num_items + 1, _HEADER.size)
    frames = []
    next_item = raw_bytes = 0
    position = end_of_table
    for first, count, start, length, raw in _FRAME.iter_unpack(view[table:end_of_table]):
        if first != next_item or not count or start < position or start + length > len(view):
            raise FormatError("the frames of a chunk overlap, or leave out items", sample=first, got=start)
        next_item, position, raw_bytes = first + count, start + length, raw_bytes + raw
        frames.append((view[start:position], raw))
    if next_item != num_items:
        raise FormatError("the frames of a chunk have another number of items", expected=num_items, got=next_item)
    if int(offsets[0]) != 0 or bool((offsets[1:] < offsets[:-1]).any()):
        raise FormatError("the offsets of a chunk's items descend, or do not begin at 0", got=int(offsets[0]))
    if int(offsets[-1]) != raw_bytes:
        raise FormatError("the frames of a chunk have another length than its items", expected=int(offsets[-1]),
                          got=raw_bytes)  # fmt: skip
    return _classic(offsets, (_decompress(frame, raw) for frame, raw in frames), raw_bytes, max_bytes)


def unpack_items(chunk: Buffer, *, max_bytes: int) -> bytes:
    """Returns the uncompressed form of a chunk with ``compression_level="sample"``.

    Args:
        chunk: Whole chunk.
        max_bytes: Upper bound of the result.

    Raises:
        FormatError: The chunk is damaged, or its uncompressed form is larger than ``max_bytes``.
    """
    view = memoryview(chunk).cast("B")
    num_items = _U32.unpack_from(view)[0] if len(view) >= 4 else 0
    if 4 * (num_items + 2) > len(view):
        raise FormatError("a chunk states more items than fit", expected=4 * (num_items + 2), got=len(view))
    ends = np.frombuffer(view, "<u4", num_items + 1, 4).tolist()
    if ends[0] != 4 * (num_items + 2) or ends[-1] != len(view) or any(end < start for start, end in pairwise(ends)):
        raise FormatError("the offsets of a chunk descend, or contradict its length", got=(ends[0], ends[-1]))
    frames = [view[start:end] for start, end in pairwise(ends)]
    sizes = [_raw_bytes(frame) for frame in frames]
    offsets = np.cumsum([0, *sizes], dtype=np.uint64)
    items = (_decompress(frame, size) for frame, size in zip(frames, sizes, strict=True))
    return _classic(offsets, items, sum(sizes), max_bytes)


def _classic(
    offsets: np.ndarray[tuple[int, ...], np.dtype[np.unsignedinteger]],
    pieces: Iterator[bytes],
    raw_bytes: int,
    max_bytes: int,
) -> bytes:
    start = 4 * (len(offsets) + 1)
    if start + raw_bytes > min(max_bytes, _MAX_CHUNK_BYTES):
        raise FormatError("a chunk is too large without compression", expected=f"<= {max_bytes}", got=raw_bytes)
    table = (offsets.astype(np.uint64) + np.uint64(start)).astype("<u4").tobytes()
    return b"".join((_U32.pack(len(offsets) - 1), table, *pieces))


def _raw_bytes(frame: memoryview) -> int:
    try:
        size = zstandard.get_frame_parameters(frame).content_size
    except zstandard.ZstdError as error:
        raise FormatError("an item is not a zstd frame", got=bytes(frame[:8])) from error
    if size == zstandard.CONTENTSIZE_UNKNOWN:
        raise FormatError("an item's zstd frame does not state its size: import the data instead")
    return int(size)


def _decompress(frame: memoryview, raw_bytes: int) -> bytes:
    # zstandard ignores `max_output_size` if the frame states its size, so that is checked first.
    if _raw_bytes(frame) != raw_bytes:
        raise FormatError("a zstd frame states another size", expected=raw_bytes, got=_raw_bytes(frame))
    try:
        raw = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FormatError("a zstd frame cannot be decompressed") from error
    if len(raw) != raw_bytes:
        raise FormatError("a zstd frame has another size than it states", expected=raw_bytes, got=len(raw))
    return raw
