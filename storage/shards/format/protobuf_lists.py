"""Decodes the three lists of numbers and bytes in TensorFlow's examples, without a protobuf library.

The lists are the messages ``BytesList``, ``FloatList`` and ``Int64List``. Each has one repeated field, number 1.
Writers may pack numbers (all in one chunk) or not (a tag before each).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import FormatError

__all__ = ["decode_floats", "decode_ints", "read_varint", "split_bytes"]

_TAG_VARINT = 0x08
_TAG_FIXED32 = 0x0D
_TAG_CHUNK = 0x0A
_VARINT_BLOCK = 1 << 16
_MAX_SHORT_BYTES = 64
"""Lists up to this length, such as labels, are decoded faster without NumPy."""


def read_varint(view: memoryview, position: int) -> tuple[int, int]:
    """Returns an unsigned varint of at most 64 bits and the position after it.

    Raises:
        FormatError: The bytes end within the varint, or it has more than 64 bits.

    Example:
        >>> from concurrent_loader.storage.shards.format.protobuf_lists import read_varint
        >>> read_varint(memoryview(bytes([0xAC, 0x02])), 0)
        (300, 2)
    """
    if position < len(view) and view[position] < 0x80:
        return view[position], position + 1
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(view):
            raise FormatError("a protobuf message ends within a number", got=position)
        byte = view[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> 64:
                break
            return number, position
    raise FormatError("a protobuf number has more than 64 bits", got=position)


def split_bytes(view: memoryview) -> list[memoryview]:
    """Returns the elements of a ``BytesList``.

    Raises:
        FormatError: The bytes are not such a message.
    """
    parts = []
    position = 0
    while position < len(view):
        if view[position] != _TAG_CHUNK:
            raise FormatError("a list of bytes has an unknown field", got=view[position])
        position, part = _chunk(view, position + 1)
        parts.append(part)
    return parts


def decode_floats(view: memoryview) -> npt.NDArray[np.float32]:
    """Returns the elements of a ``FloatList``; a packed list is not copied.

    Raises:
        FormatError: The bytes are not such a message.
    """
    packed = _joined(view, _TAG_FIXED32)
    if len(packed) % 4:
        raise FormatError("a list of floats has part of an element", got=f"{len(packed)} bytes")
    return np.frombuffer(packed, "<f4")


def decode_ints(view: memoryview) -> npt.NDArray[np.int64]:
    """Returns the elements of an ``Int64List``.

    Raises:
        FormatError: The bytes are not such a message.
    """
    packed = memoryview(_joined(view, _TAG_VARINT))
    if len(packed) > _MAX_SHORT_BYTES:
        return _varints(np.frombuffer(packed, np.uint8))
    numbers = []
    position = 0
    while position < len(packed):
        number, position = read_varint(packed, position)
        numbers.append(number - (1 << 64) if number >> 63 else number)
    return np.array(numbers, np.int64)


def _chunk(view: memoryview, position: int) -> tuple[int, memoryview]:
    """Returns the end and the bytes of a chunk whose length is at a position."""
    length, start = read_varint(view, position)
    end = start + length
    if end > len(view):
        raise FormatError("a protobuf message ends early", expected=end, got=len(view))
    return end, view[start:end]


def _joined(view: memoryview, scalar_tag: int) -> memoryview | bytearray:
    """Returns the elements as one packed chunk."""
    if len(view) and view[0] == _TAG_CHUNK:
        end, chunk = _chunk(view, 1)
        if end == len(view):
            return chunk
    packed = bytearray()
    position = 0
    while position < len(view):
        if view[position] == _TAG_CHUNK:
            position, chunk = _chunk(view, position + 1)
        elif view[position] == scalar_tag:
            start = position + 1
            position = start + 4 if scalar_tag == _TAG_FIXED32 else read_varint(view, start)[1]
            chunk = view[start:position]
        else:
            raise FormatError("a list of numbers has an unknown field", got=view[position])
        packed += chunk
    return packed


def _varints(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    ends = np.flatnonzero(data < 0x80) + 1
    if len(data) and (not len(ends) or ends[-1] != len(data)):
        raise FormatError("a list of numbers ends within a number", got=len(data))
    numbers = np.empty(len(ends), np.uint64)
    first = 0
    while first < len(ends):  # in blocks, because the steps need 8 bytes or more for each byte
        start = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, start + _VARINT_BLOCK, side="right")))
        numbers[first:last] = _varint_block(data[start : ends[last - 1]], ends[first:last] - start)
        first = last
    return numbers.view(np.int64)


def _varint_block(data: npt.NDArray[np.uint8], ends: npt.NDArray[np.intp]) -> npt.NDArray[np.uint64]:
    starts = np.concatenate(([0], ends[:-1]))
    lengths = ends - starts
    if int(lengths.max()) > 10 or bool((data[ends[lengths == 10] - 1] > 1).any()):
        raise FormatError("a protobuf number has more than 64 bits")
    places = np.arange(len(data)) - np.repeat(starts, lengths)
    digits = (data & 0x7F).astype(np.uint64) << (7 * places).astype(np.uint64)
    numbers: npt.NDArray[np.uint64] = np.bitwise_or.reduceat(digits, starts)
    return numbers
