"""Packs the values of a column from their stored bytes, without an array for each value.

This is the fast path of ``ragged={column: "packed"}`` for arrays of one dimension, text and bytes. Other values go
through `concurrent_loader.batch.ragged`, with the same result.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from concurrent_loader.batch.ragged import packed_offsets
from concurrent_loader.batch.shared_memory import empty
from concurrent_loader.storage.shards.format.schema import Column

__all__ = ["EncodedRows", "can_pack_encoded", "gather_rows"]

_logger = logging.getLogger(__name__)

_native: Any = None
if sys.byteorder == "little":  # as the stored numbers are
    try:  # built where there is a C compiler
        _native = import_module("concurrent_loader.batch._packed_rows")
    except ImportError as _error:
        _logger.info("columns are packed by NumPy, because the native module cannot be loaded: %s", _error)

Counts = npt.NDArray[np.int64]

_HEADER_BYTES = 16  # of a stored array of one dimension; see `RaggedArrayCodec`
_ONE_DIMENSION = np.frombuffer(b"\1\0\0\0\0\0\0\0", np.uint64)[0]
_BYTES = np.dtype(np.uint8)


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """The numbers of each value, as bytes.

    Attributes:
        rows: Stored bytes of each value.
        dtype: Little-endian dtype of the numbers.
        header_bytes: Size of the header before the numbers of each value.
        counts: (n,) int64, how many numbers each value has.
    """

    rows: Sequence[Any]
    dtype: np.dtype[Any]
    header_bytes: int
    counts: Counts

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of(cls, column: Column, stored: Sequence[Any]) -> Self | None:
        """Returns the rows of verified payload, or of text; None if a value must be decoded by itself.

        Args:
            column: Column for which `can_pack_encoded` is true.
            stored: Stored bytes of each value.
        """
        dtype, header_bytes = (_BYTES, 0) if column.dtype is None else (column.dtype, _HEADER_BYTES)
        counts = _count_numbers(stored, header_bytes, dtype.itemsize)
        if counts is None or (column.type == "str" and not _is_utf8(stored, counts)):
            return None
        return cls(stored, dtype, header_bytes, counts)

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Returns each value as a read-only array."""
        return [np.frombuffer(bytes(row), self.dtype, offset=self.header_bytes) for row in self.rows]

    def packed(self, name: str) -> dict[str, torch.Tensor]:
        """Returns the packed column and its companions, as `concurrent_loader.batch.ragged.arrange` does."""
        native = np.empty(0, self.dtype.newbyteorder("="))
        packed = empty((int(self.counts.sum()),), torch.from_numpy(native).dtype)
        if _native is not None:
            _native.join_into(packed.numpy(), self.rows, self.header_bytes)
        else:
            packed.numpy()[...] = np.frombuffer(b"".join([row[self.header_bytes :] for row in self.rows]), self.dtype)
        return {name: packed, **packed_offsets(name, self.counts)}


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
        counts = np.concatenate([part.counts for part in parts])[order]
        return replace(parts[0], rows=[rows[at] for at in order], counts=counts)
    values = [value for part in parts for value in (part.arrays() if isinstance(part, EncodedRows) else part)]
    return [values[at] for at in order]


def _count_numbers(rows: Sequence[Any], header_bytes: int, item_bytes: int) -> Counts | None:
    """Returns how many numbers each value has; None if one is no array of one dimension."""
    if _native is not None:
        counts = _native.count_numbers(rows, header_bytes, item_bytes)
        return None if counts is None else np.frombuffer(counts, np.int64).copy()
    sizes = np.fromiter(map(len, rows), np.int64, len(rows))
    if not header_bytes:
        return sizes
    if (sizes < header_bytes).any():
        return None
    heads = np.frombuffer(b"".join([row[:header_bytes] for row in rows]), np.uint64).reshape(-1, 2)
    found, rest = np.divmod(sizes - header_bytes, item_bytes)
    fits = (heads[:, 0] == _ONE_DIMENSION) & (heads[:, 1] == found.astype(np.uint64)) & (rest == 0)
    return found if fits.all() else None


def _is_utf8(stored: Sequence[Any], sizes: Counts) -> bool:
    """Returns whether each value is UTF-8: all of them together are, and none begins within a character."""
    whole = np.frombuffer(b"".join(stored), np.uint8)
    try:
        str(whole.data, "utf-8")
    except UnicodeDecodeError:
        return False
    firsts = whole[(np.cumsum(sizes) - sizes)[sizes > 0]]
    return not bool((firsts & 0xC0 == 0x80).any())
