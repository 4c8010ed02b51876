"""The block of one small column (str, json): offsets and data of all values, compressed if that saves space.

::

    raw     u32 offsets[n + 1] | data
    zstd    u32 offsets[n + 1] | u32 raw lengths[n] | a frame for each non-empty value

The dictionary of the frames, if any, is a separate block.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.shards.format.compression import Decompressor, are_simple, compress_values
from concurrent_loader.storage.shards.format.layout import MAX_SMALL_COLUMN_BYTES
from concurrent_loader.storage.shards.format.schema import Column
from concurrent_loader.storage.shards.format.value_codecs import MAX_SMALL_VALUE_BYTES

__all__ = ["EncodedColumn", "SmallColumn", "encode_column"]

_U32 = np.dtype("<u4")


@dataclass(frozen=True, slots=True)
class EncodedColumn:
    """The stored form of a small column.

    Attributes:
        codec: ``raw`` or ``zstd``.
        data: Bytes of the block.
        dictionary: Bytes of the dictionary's block; None without a dictionary.
    """

    codec: str
    data: bytes
    dictionary: bytes | None = None


def encode_column(values: Sequence[bytes]) -> EncodedColumn:
    """Lays out the encoded values of a column, raw or compressed, whichever is better."""
    compressed = compress_values(values, overhead_bytes=_U32.itemsize)
    if compressed is None:
        return EncodedColumn("raw", b"".join((_offsets(values), *values)))
    raw_lengths = np.fromiter(map(len, values), _U32, len(values)).tobytes()
    data = b"".join((_offsets(compressed.frames), raw_lengths, *compressed.frames))
    return EncodedColumn("zstd", data, compressed.dictionary)


def _offsets(values: Sequence[bytes]) -> bytes:
    return np.fromiter(itertools.accumulate(map(len, values), initial=0), _U32, len(values) + 1).tobytes()


class SmallColumn:
    """Decodes the values of one small column on demand.

    Thread-safety: All methods may be called from any thread; one thread at a time decompresses.

    Args:
        column: Column of the values.
        codec: ``raw`` or ``zstd``.
        data: Block without padding; its digest is already checked.
        dictionary: Bytes of the dictionary's block, or None.
        num_samples: Number of samples in the shard.
        valid: (n,) bool, whether each sample has a value; None, the default, if all have one.

    Raises:
        FormatError: Offsets and lengths do not fit the block, or exceed the format's limits.
    """

    def __init__(
        self,
        column: Column,
        *,
        codec: str,
        data: memoryview,
        dictionary: memoryview | None,
        num_samples: int,
        valid: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        self._column = column
        self._valid = valid
        self._num_samples = num_samples
        start = _U32.itemsize * (num_samples + 1)
        lengths_start = start
        if codec == "zstd":
            start += _U32.itemsize * num_samples
        if len(data) < start:
            raise FormatError(
                "a small column's block is too short for its offsets", expected=f">= {start}", got=len(data)
            )
        self._offsets = np.frombuffer(data, _U32, num_samples + 1)
        self._data = data[start:]
        stored_lengths = self._offsets[1:].astype(np.int64) - self._offsets[:-1]
        ends_meet = int(self._offsets[0]) == 0 and int(self._offsets[-1]) == len(self._data)
        if not ends_meet or (num_samples and int(stored_lengths.min()) < 0):
            raise FormatError("a small column's offsets do not fit its data", got=len(self._data))
        self._raw_lengths: npt.NDArray[Any] | None = None
        self._decompressor: Decompressor | None = None
        self._simple: bool | None = None  # whether all frames are; checked when many values are first asked for
        self._lock = Lock()
        if codec == "zstd":
            self._raw_lengths = np.frombuffer(data, _U32, num_samples, lengths_start) if num_samples else stored_lengths
            self._decompressor = Decompressor(None if dictionary is None else bytes(dictionary))
        _check_lengths(stored_lengths if self._raw_lengths is None else self._raw_lengths)
        if valid is not None and stored_lengths[~valid].any():
            raise FormatError("a null has bytes")

    def value(self, row: int) -> Any:
        """Returns one value, or None for a null.

        Raises:
            FormatError: The bytes are not a value of this column's type.
        """
        if self._valid is not None and not self._valid[row]:
            return None
        data = self._data[int(self._offsets[row]) : int(self._offsets[row + 1])]
        try:
            if self._decompressor is None or self._raw_lengths is None:
                return self._column.decode(data)
            with self._lock:  # zstd contexts have state, and zstandard releases the GIL
                raw = self._decompressor.decompress(data, raw_bytes=int(self._raw_lengths[row]))
            return self._column.decode(raw)
        except FormatError as error:
            error.locate(sample=row)
            raise

    def values(self, rows: npt.NDArray[np.int64] | None = None) -> list[Any]:
        """Decodes the values of given rows, all rows by default, and decompresses them together.

        Raises:
            FormatError: The bytes of a row are not a value of this column's type.
        """
        rows = np.arange(self._num_samples) if rows is None else rows
        try:
            values: list[Any] = self._column.decode_many(self.encoded(rows))
        except FormatError:
            return [self.value(row) for row in rows.tolist()]  # one by one, for an error that names the row
        if self._valid is not None:
            for at in np.flatnonzero(~self._valid[rows]).tolist():
                values[at] = None
        return values

    def encoded(self, rows: npt.NDArray[np.int64]) -> Sequence[bytes | memoryview]:
        """Returns the decompressed bytes of given rows: UTF-8 text. A null has no bytes.

        Raises:
            FormatError: The bytes of a row do not decompress.
        """
        starts = self._offsets[rows].astype(np.int64)
        ends = self._offsets[1:][rows].astype(np.int64)
        if self._decompressor is None or self._raw_lengths is None:
            return [self._data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        sizes = self._raw_lengths[rows]
        filled = np.flatnonzero(ends - starts)
        if len(filled) < len(rows):
            if sizes.sum() != sizes[filled].sum():
                raise FormatError("a compressed value has no bytes")
            starts, ends, sizes = starts[filled], ends[filled], sizes[filled]
        with self._lock:  # zstd contexts have state, and zstandard releases the GIL
            if self._simple is None:  # once for the column: checking the rows of each batch takes three times as long
                self._simple = are_simple(self._data, self._offsets[:-1], self._offsets[1:], self._raw_lengths)
            simple = self._simple or are_simple(self._data, starts, ends, sizes)
            found = self._decompressor.decompress_many(self._data, starts, ends, sizes, simple=simple)
        if len(filled) == len(rows):
            return found
        values: list[bytes | memoryview] = [b""] * len(rows)
        for at, value in zip(filled.tolist(), found, strict=True):
            values[at] = value
        return values


def _check_lengths(raw_lengths: npt.NDArray[Any]) -> None:
    """Rejects a decompression bomb: no value and no column may exceed the format's limits."""
    if not len(raw_lengths):
        return
    longest, total = int(raw_lengths.max()), int(raw_lengths.sum(dtype=np.int64))
    if longest > MAX_SMALL_VALUE_BYTES:
        raise FormatError("a small value is too long", expected=f"<= {MAX_SMALL_VALUE_BYTES}", got=longest)
    if total > MAX_SMALL_COLUMN_BYTES:
        raise FormatError("a small column is too long", expected=f"<= {MAX_SMALL_COLUMN_BYTES}", got=total)
