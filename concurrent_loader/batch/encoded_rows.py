"""Packs the values of a column from their stored bytes, without an array for each value.

This is the fast path of ``ragged={column: "packed"}`` for arrays of one dimension, text and bytes. Other values go
through `concurrent_loader.batch.ragged`, with the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
        rows: Bytes of each value.
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
        if column.dtype is not None:
            views = [memoryview(each) for each in stored]
            if any(len(view) < _HEADER_BYTES for view in views):
                return None
            heads = np.frombuffer(b"".join([view[:_HEADER_BYTES] for view in views]), np.uint64).reshape(-1, 2)
            lengths = np.fromiter(map(len, views), np.uint64, len(views)) - np.uint64(_HEADER_BYTES)
            fits = (heads[:, 0] == _ONE_DIMENSION) & (heads[:, 1] == lengths // np.uint64(column.dtype.itemsize))
            if not fits.all() or (lengths % np.uint64(column.dtype.itemsize)).any():
                return None
            return cls([view[_HEADER_BYTES:] for view in views], column.dtype)
        return cls(stored, _BYTES) if column.type == "bytes" or _is_utf8(stored) else None

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Returns each value as a read-only array."""
        return [np.frombuffer(bytes(row), self.dtype) for row in self.rows]

    def packed(self, name: str) -> dict[str, torch.Tensor]:
        """Returns the packed column and its companions, as `concurrent_loader.batch.ragged.arrange` does."""
        lengths = np.fromiter(map(len, self.rows), np.int64, len(self.rows)) // self.dtype.itemsize
        native = np.empty(0, self.dtype.newbyteorder("="))
        whole = empty((int(lengths.sum()),), torch.from_numpy(native).dtype)
        whole.numpy()[...] = np.frombuffer(b"".join(self.rows), self.dtype)
        return {name: whole, **packed_offsets(name, lengths)}


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
        return EncodedRows([rows[at] for at in order], parts[0].dtype)
    values = [value for part in parts for value in (part.arrays() if isinstance(part, EncodedRows) else part)]
    return [values[at] for at in order]


def _is_utf8(stored: Sequence[Any]) -> bool:
    """Returns whether each value is UTF-8: all of them together are, and none begins within a character."""
    whole = b"".join(stored)
    try:
        str(whole, "utf-8")
    except UnicodeDecodeError:
        return False
    lengths = np.fromiter(map(len, stored), np.int64, len(stored))
    firsts = np.frombuffer(whole, np.uint8)[(np.cumsum(lengths) - lengths)[lengths > 0]]
    return not bool((firsts & 0xC0 == 0x80).any())
