"""Codecs of arrays, with one shape for all samples or with a shape per sample.

Numbers are little-endian, in C order. An array is accepted only if storing it changes no number. A decoded array is a
read-only view of the bytes that were read.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import FormatError, SchemaError
from concurrent_loader.storage.shards.format.value_codecs import Codec, max_exact_integer, value_error
from concurrent_loader.storage.stores.objects import Buffer

__all__ = ["MAX_DIMS", "FixedArrayCodec", "RaggedArrayCodec", "converts_safely"]

MAX_DIMS = 32
"""The limit of NumPy 1."""

_MAX_ARRAY_BYTES = (1 << 63) - 1


class FixedArrayCodec(Codec):
    """Stores arrays of one dtype and shape: the numbers in C order, little-endian."""

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._dtype = dtype
        self._shape = shape
        self._num_bytes = math.prod(shape) * dtype.itemsize

    def encode(self, value: object) -> bytes:
        """Returns the bytes of an array or nested list of exactly this shape."""
        return b"".join(self.pieces(value))

    def pieces(self, value: object) -> tuple[Buffer]:
        """Returns the bytes of `encode`, without copying an array of this dtype."""
        array = _to_array(value, self._dtype)
        if array.shape != self._shape:
            raise SchemaError("the array does not have the column's shape", expected=self._shape, got=array.shape)
        return (_memory(array),)

    def decode(self, data: Buffer) -> npt.NDArray[Any]:
        """Returns a read-only array, copied only if the memory is not aligned."""
        if len(data) != self._num_bytes:
            raise FormatError("an array has the wrong length", expected=self._num_bytes, got=len(data))
        return _view(data, self._dtype, self._shape, 0)


class RaggedArrayCodec(Codec):
    """Stores arrays of one dtype and any shape.

    The bytes are: u8 number of dimensions, 7 zero bytes, u64 per dimension, the numbers.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype

    def encode(self, value: object) -> bytes:
        """Returns the shape and the numbers of an array or nested list."""
        return b"".join(self.pieces(value))

    def pieces(self, value: object) -> tuple[Buffer, Buffer]:
        """Returns the shape and the numbers, without copying an array of this dtype."""
        array = _to_array(value, self._dtype)
        if array.ndim > MAX_DIMS:
            raise SchemaError("the array has too many dimensions", expected=f"<= {MAX_DIMS}", got=array.ndim)
        return struct.pack(f"<B7x{array.ndim}Q", array.ndim, *array.shape), _memory(array)

    def decode(self, data: Buffer) -> npt.NDArray[Any]:
        """Returns a read-only array, copied only if the memory is not aligned."""
        num_dims = data[0] if len(data) else 0
        start = 8 + 8 * num_dims
        if num_dims > MAX_DIMS or len(data) < start or bytes(data[1:8]) != bytes(7):
            raise FormatError("a ragged array does not begin with a valid shape", got=bytes(data[:8]))
        shape = struct.unpack_from(f"<{num_dims}Q", data, 8)
        # Zeros count as ones here, because NumPy rejects shapes whose other dimensions overflow, even if one is zero.
        if math.prod(max(1, dim) for dim in shape) * self._dtype.itemsize > _MAX_ARRAY_BYTES:
            raise FormatError("a ragged array's shape is impossible", got=shape)
        expected = start + math.prod(shape) * self._dtype.itemsize
        if len(data) != expected:
            raise FormatError("a ragged array does not have the length of its shape", expected=expected, got=len(data))
        return _view(data, self._dtype, shape, start)


def _memory(array: npt.NDArray[Any]) -> Buffer:
    """Returns the bytes of a C-ordered array, as a view of its memory."""
    return array.reshape(-1).view(np.uint8).data if array.size else b""


def _view(data: Buffer, dtype: np.dtype[Any], shape: tuple[int, ...], start: int) -> npt.NDArray[Any]:
    count = math.prod(shape)
    # np.frombuffer rejects an empty remainder of a buffer.
    flat = np.frombuffer(data, dtype=dtype, count=count, offset=start) if count else np.empty(0, dtype)
    if dtype.kind == "b" and count and flat.view(np.uint8).max() > 1:
        raise FormatError("a bool is one byte, 0 or 1")
    array = (flat if flat.flags.aligned else flat.copy()).reshape(shape)
    array.flags.writeable = False
    return array


def _to_array(value: object, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Returns a C-ordered array of exactly this dtype; raises `SchemaError` if a number could change.

    The dtype of an array (or of any object with ``__array__``, such as a tensor) must convert safely: to the same kind
    and without narrowing. Python numbers and nested lists have no dtype: integers must fit, floats are rounded.
    """
    if isinstance(value, list | tuple | bool | int | float) and not isinstance(value, np.generic):
        try:
            array = np.array(value)
        except (ValueError, TypeError, OverflowError) as error:
            raise value_error("the list is not a rectangular array of numbers", value, expected=dtype.name) from error
        array = _cast_python_numbers(_without_promotion(array, value, dtype), dtype)
    elif hasattr(value, "__array__"):
        if np.ma.isMaskedArray(value):
            raise value_error("a masked array would lose its mask", value)
        array = np.asarray(value)
        if not converts_safely(array.dtype, dtype):
            raise SchemaError("the array's dtype does not convert safely", expected=dtype.name, got=str(array.dtype))
        array = array.astype(dtype, order="C", copy=False)
    else:
        raise value_error("an array column accepts arrays and nested lists of numbers", value, expected=dtype.name)
    if dtype.kind == "b":
        array = array.view(np.uint8) != 0  # a view of other memory may hold a True that is not 1
    return array


def converts_safely(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Returns whether an array's dtype fits a column: no number of the array could change."""
    if source.kind not in "biuf" or (source.kind == "b") != (target.kind == "b"):
        return False
    if source.kind in "iu" and target.kind == "f" and source.itemsize == 8:
        return False  # NumPy considers int64 to float64 safe, but integers above 2**53 change
    return bool(np.can_cast(source, target, "safe"))


def _without_promotion(array: npt.NDArray[Any], value: object, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Returns the integers of a list that NumPy has made floats, because of their range or of a float among them.

    Raises:
        SchemaError: An integer would change.
    """
    if array.dtype.kind != "f" or not array.size:
        return array
    limit = max_exact_integer(dtype) if dtype.kind == "f" else 2**53
    if dtype.kind == "f" and not (np.abs(array) >= limit).any():
        return array
    numbers = np.array(value, object)
    whole = [number for number in numbers.ravel().tolist() if isinstance(number, int) and not isinstance(number, bool)]
    if dtype.kind == "f":
        if any(abs(number) > limit for number in whole):
            raise SchemaError("integers of the list are out of range", expected=dtype.name)
        return array
    if len(whole) < numbers.size:
        return array  # refused, because floats are among them
    if not np.iinfo(dtype).min <= min(whole) <= max(whole) <= np.iinfo(dtype).max:
        raise SchemaError("integers of the list are out of range", expected=dtype.name)
    return numbers.astype(dtype)


def _cast_python_numbers(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if not array.size:
        return np.empty(array.shape, dtype)  # NumPy gives [] the dtype float64
    kinds = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}[dtype.kind]
    if array.dtype.kind not in kinds:
        raise SchemaError("the list holds numbers of another kind", expected=dtype.name, got=str(array.dtype))
    if array.dtype.kind in "iu":
        low, high = int(array.min()), int(array.max())
        if dtype.kind == "f":
            fits = max(-low, high) <= max_exact_integer(dtype)
        else:
            fits = np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max
        if not fits:
            raise SchemaError("integers of the list are out of range", expected=dtype.name, got=f"{low} to {high}")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype, order="C")
    if dtype.kind == "f" and bool((np.isfinite(array) & ~np.isfinite(cast)).any()):
        raise SchemaError("numbers of the list are out of range", expected=dtype.name)
    return cast
