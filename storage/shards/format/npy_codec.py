"""Decodes arrays in NumPy's file format, ``.npy``, without NumPy's reader, which may unpickle.

The source is numpy.lib.format, versions 1.0 to 3.0: magic, version, length of the header, and a Python dict with the
dtype, the order and the shape. The dict is matched by a pattern instead of being evaluated.
"""

from __future__ import annotations

import math
import re
import struct
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import FormatError, SchemaError
from concurrent_loader.storage.shards.format.array_codecs import MAX_DIMS, FixedArrayCodec
from concurrent_loader.storage.shards.format.value_codecs import Codec, value_error
from concurrent_loader.storage.stores.objects import Buffer

__all__ = ["NpyCodec", "NpyHeader", "parse_npy_header"]

_MAGIC = b"\x93NUMPY"
_MAX_HEADER_BYTES = 4096
_MAX_ARRAY_BYTES = (1 << 63) - 1
_DICT = re.compile(
    rb"\{'descr': '([<>|=])([biuf])([1-8])', 'fortran_order': (True|False), 'shape': \(([0-9L, ]{0,1000})\),? ?\} *\n?"
)
_DTYPES = frozenset(
    ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
)


class NpyHeader(NamedTuple):
    """Describes an array.

    Attributes:
        dtype: Dtype in the file, perhaps big-endian.
        shape: Shape of the array.
        is_fortran: Whether the first index changes fastest.
        start: Number of bytes before the elements.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_fortran: bool
    start: int


def parse_npy_header(data: Buffer) -> NpyHeader:
    """Reads the header of an array; the elements may be missing.

    Raises:
        FormatError: The header is cut off or invalid, or the dtype is not one of numbers and bools. Objects, which are
            pickled, records, texts, dates and complex numbers have no column type.

    Example:
        >>> import io, numpy
        >>> from concurrent_loader.storage.shards.format.npy_codec import parse_npy_header
        >>> numpy.save(file := io.BytesIO(), numpy.zeros((3, 4), numpy.int16))
        >>> parse_npy_header(file.getvalue()).shape
        (3, 4)
    """
    view = memoryview(data).cast("B")
    if bytes(view[:6]) != _MAGIC:
        raise FormatError("the value is not a .npy file", got=bytes(view[:6]))
    try:
        version = view[6]
        length, start = (struct.unpack_from("<H", view, 8)[0], 10) if version == 1 else _long_length(version, view)
    except (struct.error, IndexError) as error:
        raise FormatError("a .npy file ends within its header", got=f"{len(view)} bytes") from error
    if length > _MAX_HEADER_BYTES or start + length > len(view):
        raise FormatError(
            "the header of a .npy file is too long", expected=f"<= {min(_MAX_HEADER_BYTES, len(view))}", got=length
        )
    dtype, shape, is_fortran = _parse_dict(bytes(view[start : start + length]))
    return NpyHeader(dtype, shape, is_fortran, start + length)


def _long_length(version: int, view: memoryview) -> tuple[int, int]:
    if version not in (2, 3):
        raise FormatError("the version of a .npy file is unknown", expected="1|2|3", got=version)
    return struct.unpack_from("<I", view, 8)[0], 12


@lru_cache(maxsize=256)  # the arrays of a dataset have few different headers
def _parse_dict(text: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    match = _DICT.fullmatch(text)
    if match is None:
        raise FormatError(
            "a .npy file has no array of numbers or bools; choose the column type bytes for other arrays",
            got=text[:100],
        )
    order, kind, width, is_fortran, dims = (group.decode() for group in match.groups())
    try:
        dtype = np.dtype(f"{order}{kind}{width}")
        shape = tuple(int(dim.strip().rstrip("L")) for dim in dims.split(",") if dim.strip())
    except (TypeError, ValueError) as error:
        raise FormatError("the dtype or the shape of a .npy file is invalid", got=text[:100]) from error
    if dtype.name not in _DTYPES or len(shape) > MAX_DIMS:
        raise FormatError("the dtype or the shape of a .npy file is invalid", got=text[:100])
    # Zeros count as ones, because NumPy rejects shapes whose other dimensions overflow, even if one is zero.
    if math.prod(max(1, dim) for dim in shape) * dtype.itemsize > _MAX_ARRAY_BYTES:
        raise FormatError("the shape of a .npy file is impossible", got=shape)
    return dtype, shape, is_fortran == "True"


class NpyCodec(Codec):
    """Decodes ``.npy`` files of one dtype, and of one shape unless the column is ragged.

    Args:
        type_: Type of an array column in canonical form, such as ``"float32[3,4]"`` or ``"float32[...]"``.

    Raises:
        SchemaError: The type is not one of arrays.

    Example:
        >>> import io, numpy
        >>> from concurrent_loader.storage.shards.format.npy_codec import NpyCodec
        >>> numpy.save(file := io.BytesIO(), numpy.arange(3, dtype=">i4"))
        >>> NpyCodec("int32[...]").decode(file.getvalue()).tolist()
        [0, 1, 2]
    """

    def __init__(self, type_: str) -> None:
        name, bracket, dims = type_.partition("[")
        if not bracket or name not in _DTYPES:
            raise SchemaError("a .npy file fits a column of arrays, or of bytes", expected="float32[...]", got=type_)
        self._dtype = np.dtype(name).newbyteorder("<")
        self._shape = None if dims == "...]" else tuple(int(dim) for dim in dims.removesuffix("]").split(","))

    def encode(self, value: object) -> bytes:
        """Raises `SchemaError`, because only other programs write ``.npy`` files."""
        raise value_error("values in .npy form are only read", value)

    def decode(self, data: Buffer) -> npt.NDArray[Any]:
        """Returns a read-only array in C order, copied only if the file has another order."""
        header = parse_npy_header(data)
        if header.dtype.name != self._dtype.name or self._shape not in (None, header.shape):
            expected = (self._dtype.name, "any shape" if self._shape is None else self._shape)
            raise FormatError(
                "the array does not have the column's dtype and shape", expected=expected,
                got=(header.dtype.name, header.shape),
            )  # fmt: skip
        stored = header.shape[::-1] if header.is_fortran else header.shape
        elements = memoryview(data).cast("B")[header.start :]
        array: npt.NDArray[Any] = FixedArrayCodec(header.dtype, stored).decode(elements)
        if header.is_fortran or header.dtype.byteorder == ">":
            array = (array.T if header.is_fortran else array).astype(self._dtype, order="C")
            array.flags.writeable = False
        return array
