"""Reads the headers of arrays and uncompressed images in other formats, without their elements.

The walk of an adopted source reads headers to derive column types, and
`concurrent_loader.storage.shards.format.foreign_codecs` reads them to decode values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.shards.format.array_codecs import MAX_DIMS
from concurrent_loader.storage.stores.objects import Buffer

__all__ = [
    "HEADERS",
    "LITDATA_NUMPY_DTYPES",
    "LITDATA_TORCH_DTYPES",
    "MAX_HEADER_BYTES",
    "ArrayHeader",
    "pil_fields",
    "read_header",
]

MAX_HEADER_BYTES = 2 + 8 * MAX_DIMS
"""Longest header of any encoding."""


class ArrayHeader(NamedTuple):
    """Describes an array in another format.

    Attributes:
        dtype: Name of the dtype; empty if the source does not state it.
        shape: Shape of the array.
        start: Number of bytes before the elements.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int


_MDS_DTYPES = MappingProxyType(
    {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32"}
    | {64: "uint64", 65: "int64", 66: "float64"}
)

LITDATA_TORCH_DTYPES: Mapping[int, str] = MappingProxyType(
    {0: "float32", 1: "float32", 2: "float64", 3: "float64", 8: "float16", 9: "float16", 11: "uint8", 12: "int8"}
    | {13: "int16", 14: "int16", 15: "int32", 16: "int32", 17: "int64", 18: "int64", 19: "bool", 20: "uint16"}
)
"""Numbers of the dtypes of tensors in LitData. Complex numbers and bfloat16 have no column type."""

LITDATA_NUMPY_DTYPES: Mapping[int, str] = MappingProxyType(
    {0: "int8", 1: "int16", 2: "int32", 3: "int64", 4: "uint8", 5: "uint16", 6: "uint32", 7: "uint64"}
    | {8: "float16", 9: "float32", 10: "float64", 13: "bool"}
)
"""Numbers of the dtypes of NumPy arrays in LitData. Complex numbers and objects have no column type."""

_PIL_MODES: Mapping[str, tuple[str, int]] = MappingProxyType(
    dict.fromkeys(("L", "P"), ("|u1", 1))
    | dict.fromkeys(("LA", "La", "PA"), ("|u1", 2))
    | dict.fromkeys(("RGB", "YCbCr", "HSV", "LAB"), ("|u1", 3))
    | dict.fromkeys(("RGBA", "RGBa", "RGBX", "CMYK"), ("|u1", 4))
    | {"1": ("|b1", 1), "I": ("<i4", 1), "F": ("<f4", 1), "I;16": ("<u2", 1), "I;16L": ("<u2", 1), "I;16B": (">u2", 1)}
)


def read_header(encoding: str, data: Buffer) -> ArrayHeader | None:
    """Reads the header of an array, for which the first `MAX_HEADER_BYTES` of the value suffice.

    Returns:
        The header, or None if values of this encoding have none.

    Raises:
        FormatError: The header is cut off or invalid.

    Example:
        >>> from concurrent_loader.storage.shards.format.foreign_headers import read_header
        >>> read_header("mds/ndarray", bytes([33, 2 << 2, 3, 4]) + bytes(48))
        ArrayHeader(dtype='int32', shape=(3, 4), start=4)
    """
    read = HEADERS.get(encoding)
    if read is None:
        return None
    try:
        header = read(memoryview(data).cast("B"))
    except (struct.error, IndexError) as error:
        raise FormatError("an array ends within its header", got=f"{len(data)} bytes") from error
    if len(header.shape) > MAX_DIMS:
        raise FormatError("an array has too many dimensions", expected=f"<= {MAX_DIMS}", got=len(header.shape))
    return header


def _num_dims(number: int) -> int:
    if number > MAX_DIMS:  # before a shape of that many dimensions is read
        raise FormatError("an array has too many dimensions", expected=f"<= {MAX_DIMS}", got=number)
    return number


def _mds_ndarray(data: memoryview) -> ArrayHeader:
    dtype = _MDS_DTYPES.get(data[0])
    if dtype is None:
        raise FormatError("the dtype of an MDS array is unknown", expected=sorted(_MDS_DTYPES), got=data[0])
    _, shape, start = _mds_shaped(data[1:])
    return ArrayHeader(dtype, shape, start + 1)


def _mds_shaped(data: memoryview) -> ArrayHeader:
    num_dims = _num_dims(data[0] >> 2)
    code = "BHIQ"[data[0] & 3]
    shape = struct.unpack_from(f"<{num_dims}{code}", data, 1)
    return ArrayHeader("", shape, 1 + struct.calcsize(f"<{num_dims}{code}"))


def _litdata_tensor(data: memoryview) -> ArrayHeader:
    number, num_dims = struct.unpack_from(">II", data)
    shape = struct.unpack_from(f">{_num_dims(num_dims)}I", data, 8)
    return ArrayHeader(_litdata_dtype(LITDATA_TORCH_DTYPES, number), shape, 8 + 4 * num_dims)


def _litdata_numpy(data: memoryview) -> ArrayHeader:
    number, num_dims = struct.unpack_from("<II", data)
    shape = struct.unpack_from(f"<{_num_dims(num_dims)}I", data, 8)
    return ArrayHeader(_litdata_dtype(LITDATA_NUMPY_DTYPES, number), shape, 8 + 4 * num_dims)


def _litdata_dtype(names: Mapping[int, str], number: int) -> str:
    if number not in names:
        raise FormatError("the dtype of a LitData array has no column type", expected=sorted(names), got=number)
    return names[number]


def _pil(data: memoryview) -> ArrayHeader:
    mode, width, height, start = pil_fields(data)
    dtype, bands = _PIL_MODES[mode]
    return ArrayHeader(np.dtype(dtype).name, (height, width) if bands == 1 else (height, width, bands), start)


def pil_fields(data: memoryview) -> tuple[str, int, int, int]:
    """Returns mode, width, height and start of the rows of an uncompressed image of Pillow.

    Raises:
        FormatError: The mode is unknown.
        struct.error: The bytes end within the header.
    """
    width, height, mode_bytes = struct.unpack_from("<III", data)
    start = 12 + mode_bytes
    mode = bytes(data[12 : min(start, 28)]).decode("ascii", "replace")
    if mode_bytes > 16 or mode not in _PIL_MODES:
        raise FormatError("the mode of an uncompressed image is unknown", expected="|".join(_PIL_MODES), got=mode)
    return mode, width, height, start


HEADERS: Mapping[str, Callable[[memoryview], ArrayHeader]] = MappingProxyType(
    {
        "mds/ndarray": _mds_ndarray,
        "mds/shaped": _mds_shaped,
        "litdata/tensor": _litdata_tensor,
        "litdata/numpy": _litdata_numpy,
        "pil": _pil,
    }
)
"""Name of an encoding → function that reads its header."""
