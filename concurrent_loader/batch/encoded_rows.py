"""Packs the values of a column from their stored bytes, without an array for each value.

This is the fast path of ``ragged={column: "packed"}`` for arrays of one dimension, text and bytes. Other values go
through `concurrent_loader.batch.ragged`, with the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.batch.ragged import packed_offsets
from concurrent_loader.batch.shared_memory import empty
from concurrent_loader.storage.shards.format.schema import Column

__all__ = ["EncodedRows", "can_pack_encoded", "gather_rows"]

_HEADER_BYTES = 16  # of a stored array of one dimension; see `RaggedArrayCodec`
_ONE_DIMENSION = np.frombuffer(b"\1\0\0\0\0\0\0\0", np.uint64)[0]
_BYTES = np.dtype(np.uint8)


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """The numbers of each value, as bytes.

    Attributes:
        rows: Bytes of each value, without its header.
        dtype: Little-endian dtype of the numbers.
    """

    rows: Sequence[Any]
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of(cls, column: Column, stored: Sequence[Any]) -> Self | None:
        """Returns the rows of verified payload, or of text; None if a value must be decoded by itself.

        Args:
            column: Column for which `can_pack_encoded` is true.
            stored: Stored bytes of each value.
        """
        if column.dtype is None:
            return cls(stored, _BYTES) if column.type == "bytes" or _is_utf8(stored) else None
        sizes = _sizes(stored)
        if (sizes < _HEADER_BYTES).any():
            return None
        heads = np.frombuffer(b"".join([row[:_HEADER_BYTES] for row in stored]), np.uint64).reshape(-1, 2)
        counts, rest = np.divmod(sizes - _HEADER_BYTES, column.dtype.itemsize)
        fits = (heads[:, 0] == _ONE_DIMENSION) & (heads[:, 1] == counts.astype(np.uint64)) & (rest == 0)
        return cls([row[_HEADER_BYTES:] for row in stored], column.dtype) if fits.all() else None

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Returns each value as a read-only array."""
        return [np.frombuffer(bytes(row), self.dtype) for row in self.rows]

    def packed(self, name: str) -> dict[str, torch.Tensor]:
        """Returns the packed column and its companions, as `concurrent_loader.batch.ragged.arrange` does."""
        numbers = np.frombuffer(b"".join(self.rows), self.dtype)
        native = np.empty(0, self.dtype.newbyteorder("="))
        packed = empty((len(numbers),), torch.from_numpy(native).dtype)
        packed.numpy()[...] = numbers
        lengths = _sizes(self.rows) // self.dtype.itemsize
        return {name: packed, **packed_offsets(name, lengths)}


def can_pack_encoded(column: Column) -> bool:
    """Returns whether values of a column may be packed from their stored bytes: they are valid whatever these are."""
    if column.dtype is not None:
        return column.shape is None and not column.optional and column.dtype.kind != "b"
    return column.type in ("str", "bytes")


def gather_rows(parts: Sequence[Any], order: Sequence[int]) -> Any:
    """Returns the values of several slices in another order.

    Args:
        parts: Values of each slice: `EncodedRows`, or a list of arrays if one of its values could not be packed.
        order: For each row of the result, its number among all values.
    """
    if all(isinstance(part, EncodedRows) for part in parts):
        rows = [row for part in parts for row in part.rows]
        return replace(parts[0], rows=[rows[at] for at in order])
    values = [value for part in parts for value in (part.arrays() if isinstance(part, EncodedRows) else part)]
    return [values[at] for at in order]


def _sizes(rows: Sequence[Any]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(len, rows), np.int64, len(rows))


def _is_utf8(stored: Sequence[Any]) -> bool:
    """Returns whether each value is UTF-8: all of them together are, and none begins within a character."""
    sizes, whole = _sizes(stored), np.frombuffer(b"".join(stored), np.uint8)
    try:
        str(whole.data, "utf-8")
    except UnicodeDecodeError:
        return False
    firsts = whole[(np.cumsum(sizes) - sizes)[sizes > 0]]
    return not bool((firsts & 0xC0 == 0x80).any())
