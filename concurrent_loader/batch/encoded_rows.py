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
        rows: Stored bytes of each value.
        dtype: Little-endian dtype of the numbers.
        header_bytes: Bytes in front of the numbers of each value.
    """

    rows: Sequence[Any]
    dtype: np.dtype[Any]
    header_bytes: int = 0

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
        whole, starts, sizes = _joined(stored)
        if (sizes < _HEADER_BYTES).any():
            return None
        heads = whole[starts[:, None] + np.arange(_HEADER_BYTES)].view(np.uint64)
        counts, rest = np.divmod(sizes - _HEADER_BYTES, column.dtype.itemsize)
        fits = (heads[:, 0] == _ONE_DIMENSION) & (heads[:, 1] == counts.astype(np.uint64)) & (rest == 0)
        return cls(stored, column.dtype, _HEADER_BYTES) if fits.all() else None

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Returns each value as a read-only array."""
        return [np.frombuffer(bytes(row)[self.header_bytes :], self.dtype) for row in self.rows]

    def packed(self, name: str) -> dict[str, torch.Tensor]:
        """Returns the packed column and its companions, as `concurrent_loader.batch.ragged.arrange` does."""
        whole, starts, sizes = _joined(self.rows)
        numbers = whole.view(self.dtype)
        lengths = (sizes - self.header_bytes) // self.dtype.itemsize
        native = np.empty(0, self.dtype.newbyteorder("="))
        packed = empty((int(lengths.sum()),), torch.from_numpy(native).dtype)
        if self.header_bytes:
            # A header is as long as some numbers, whose places are left out.
            keep = np.ones(len(numbers), bool)
            keep[starts[:, None] // self.dtype.itemsize + np.arange(self.header_bytes // self.dtype.itemsize)] = False
            numbers = numbers[keep]
        packed.numpy()[...] = numbers
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


def _joined(stored: Sequence[Any]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the bytes of all values together, and the start and size of each."""
    sizes = np.fromiter(map(len, stored), np.int64, len(stored))
    return np.frombuffer(b"".join(stored), np.uint8), np.cumsum(sizes) - sizes, sizes


def _is_utf8(stored: Sequence[Any]) -> bool:
    """Returns whether each value is UTF-8: all of them together are, and none begins within a character."""
    whole, starts, sizes = _joined(stored)
    try:
        str(whole.data, "utf-8")
    except UnicodeDecodeError:
        return False
    firsts = whole[starts[sizes > 0]]
    return not bool((firsts & 0xC0 == 0x80).any())
