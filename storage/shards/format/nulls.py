"""Nulls of optional columns: their bitmap in a shard, and how values with nulls look in memory. No I/O.

Numbers and arrays of one shape are a ``numpy.ma.MaskedArray``, whose nulls are masked; other values are lists with
None. The fill value of a masked array is the default in batches: 0, False, or NaN for floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import FormatError

__all__ = [
    "default_value",
    "joined",
    "masked",
    "null_rows",
    "pack_validity",
    "parse_validity",
    "plain_values",
    "with_none",
]

Mask = npt.NDArray[np.bool_]


def pack_validity(nulls: Sequence[int], num_samples: int) -> bytes:
    """Returns the block of a column: bit ``i % 8`` of byte ``i // 8`` is 1 if sample ``i`` has a value.

    Args:
        nulls: Rows of the nulls.
        num_samples: Number of samples in the shard.
    """
    valid = np.ones(num_samples, np.bool_)
    valid[list(nulls)] = False
    return np.packbits(valid, bitorder="little").tobytes()


def parse_validity(block: memoryview, num_samples: int, *, shard: str | None, column: str) -> Mask:
    """Returns whether each sample has a value: (n,) bool, read-only.

    Raises:
        FormatError: The block has another length, no null, or bits after the last sample.
    """
    if len(block) != (num_samples + 7) // 8:
        raise FormatError(
            "a bitmap does not have the length of its samples", shard=shard, column=column,
            expected=(num_samples + 7) // 8, got=len(block),
        )  # fmt: skip
    bits = np.unpackbits(np.array(block, np.uint8), bitorder="little")
    valid: Mask = bits[:num_samples].view(np.bool_)
    if bits[num_samples:].any() or bool(valid.all()):
        raise FormatError("a bitmap must have a null, and zeros after the last sample", shard=shard, column=column)
    valid.flags.writeable = False
    return valid


def masked(values: Any, valid: Mask | None = None) -> Any:
    """Returns values (n, *shape) as a masked array.

    Args:
        values: Array, or a masked array, which is returned as it is.
        valid: (n,) bool, whether each row has a value; by default all have one.
    """
    if isinstance(values, np.ma.MaskedArray):
        return values
    nulls = np.zeros(len(values), np.bool_) if valid is None else ~valid
    mask = np.broadcast_to(nulls.reshape(-1, *(1 for _ in values.shape[1:])), values.shape)
    return np.ma.MaskedArray(values, mask=mask.copy(), fill_value=default_value(values.dtype))


def default_value(dtype: np.dtype[Any]) -> bool | int | float:
    """Returns what stands for a null in a batch: NaN for floats, False for bools, 0 for integers."""
    return {"f": np.nan, "b": False}.get(dtype.kind, 0)


def null_rows(values: npt.NDArray[Any]) -> Mask:
    """Returns whether each row of an array is null, which means that all of its numbers are masked: (n,) bool."""
    mask = np.ma.getmask(values)
    if mask is np.ma.nomask:
        return np.zeros(len(values), np.bool_)
    return np.asarray(np.asarray(mask).reshape(len(values), -1).all(axis=1))


def joined(parts: Sequence[Any], *, optional: bool) -> Any:
    """Returns arrays (n, *shape), at least one, as one array; as a masked array if the column is optional.

    numpy's own ``concatenate`` drops masks.
    """
    if not optional and not any(isinstance(part, np.ma.MaskedArray) for part in parts):
        return np.concatenate(parts)
    valid = np.concatenate([~null_rows(part) for part in parts])
    return masked(np.concatenate([np.ma.getdata(part) for part in parts]), valid)


def with_none(values: Any) -> Any:
    """Returns the rows of a masked array as a list with None for nulls; other values unchanged."""
    if not isinstance(values, np.ma.MaskedArray):
        return values
    return [None if null else each for each, null in zip(values.data, null_rows(values).tolist(), strict=True)]


def plain_values(values: Any) -> Any:
    """Returns a column as ``dataset[i]`` shows it: Python numbers, and None for nulls; arrays (n, ...) unchanged."""
    if isinstance(values, np.ndarray) and values.ndim == 1:
        return values.tolist()  # of a masked array, None
    return with_none(values)
