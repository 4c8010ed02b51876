"""Reads the table of offsets that begins a shard of MosaicML Streaming and a chunk of LitData.

Both begin with the number of samples and the samples' offsets: ``u32 n``, ``u32 offsets[n + 1]``. Sample ``i`` is
``[offsets[i], offsets[i + 1])``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from concurrent_loader.storage.adopt.protocol import ObjectReader, SparseReader
from concurrent_loader.storage.errors import FormatError

__all__ = ["num_samples", "sample_ranges"]

_U32 = struct.Struct("<I")
_BLOCK = 1 << 18


def num_samples(reader: ObjectReader, expected: int | None) -> int:
    """Reads the number of samples.

    Raises:
        FormatError: The number differs from the index, or the object is too short for as many offsets.
    """
    (count,) = _U32.unpack(reader.read(0, 4))
    if expected is not None and count != expected:
        raise FormatError("the number of samples differs from the index", key=reader.name, expected=expected, got=count)
    if 4 * (count + 2) > reader.size:
        raise FormatError(
            "the object is too short for its number of samples", key=reader.name,
            expected=f">= {4 * (count + 2)} bytes", got=reader.size,
        )  # fmt: skip
    return int(count)


def sample_ranges(reader: ObjectReader, count: int, min_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields start and end of each sample, reading the table in blocks of 1 MiB.

    Args:
        reader: Bytes of the object.
        count: Number of samples, from `num_samples`.
        min_bytes: Smallest number of bytes of a sample.

    Raises:
        FormatError: Offsets descend, overlap the table or exceed the object; or bytes are left after the last sample.
    """
    end_of_table = 4 * (count + 2)
    previous = end_of_table
    for first in range(0, count + 1, _BLOCK):
        last = min(count + 1, first + _BLOCK)
        offsets = np.frombuffer(reader.read(4 * (1 + first), 4 * (1 + last)), "<u4").astype(np.int64)
        if first == 0 and int(offsets[0]) < end_of_table:
            raise FormatError(
                "the samples overlap the table of offsets", key=reader.name, sample=0,
                expected=f">= {end_of_table}", got=int(offsets[0]),
            )  # fmt: skip
        lengths = np.diff(offsets, prepend=offsets[0] if first == 0 else previous)
        lengths[0] = max(lengths[0], min_bytes) if first == 0 else lengths[0]  # the first offset ends no sample
        wrong = np.flatnonzero((lengths < min_bytes) | (offsets > reader.size))
        if len(wrong):
            sample = max(0, first + int(wrong[0]) - 1)
            raise FormatError(
                "the offset of a sample is impossible: descending, too small, or behind the end of the object",
                key=reader.name, sample=sample, expected=f"<= {reader.size}", got=int(offsets[wrong[0]]),
            )  # fmt: skip
        starts = offsets.tolist()
        if isinstance(reader, SparseReader):
            reader.expect(starts)
        if first:
            yield previous, starts[0]
        yield from pairwise(starts)
        previous = starts[-1]
    if previous != reader.size:
        raise FormatError(
            "bytes follow the last sample, or the last offset is wrong", key=reader.name,
            expected=previous, got=reader.size,
        )  # fmt: skip
