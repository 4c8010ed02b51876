"""Codecs of values that stay in another format's file, and are decoded when they are read.

A column of an adopted dataset has such a codec if the source stores its values in a form of its own: arrays with the
source's header, arrays without any header, uncompressed images. `foreign_codec` returns the codec of a column by the
name of its encoding. These codecs only decode: nothing is ever written in another format.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.errors import FormatError, SchemaError
from concurrent_loader.storage.shards.format.array_codecs import FixedArrayCodec
from concurrent_loader.storage.shards.format.foreign_headers import HEADERS, pil_fields, read_header
from concurrent_loader.storage.shards.format.npy_codec import NpyCodec
from concurrent_loader.storage.shards.format.protobuf_lists import decode_floats, decode_ints, split_bytes
from concurrent_loader.storage.shards.format.value_codecs import Codec
from concurrent_loader.storage.stores.objects import Buffer

__all__ = ["BARE_ARRAY", "foreign_codec", "split_list"]

BARE_ARRAY = "raw/1d"
"""Encoding of the elements of a one-dimensional array without any header."""

_U32 = struct.Struct("<I")
_MAX_ARRAY_BYTES = (1 << 63) - 1


# -- codecs ------------------------------------------------------------------------------------------------------------


class _ForeignCodec(Codec):
    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype

    def encode(self, value: object) -> NoReturn:
        raise SchemaError(
            "values cannot be written in the form of another format: convert the dataset to native shards first",
            got=type(value).__name__,
        )

    def _array(self, data: Buffer, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Returns the elements as an array, after checking that there are as many as the shape says."""
        if math.prod(max(1, dim) for dim in shape) * dtype.itemsize > _MAX_ARRAY_BYTES:
            raise FormatError("an array's shape is impossible", got=shape)
        array: npt.NDArray[Any] = FixedArrayCodec(dtype, shape).decode(data)
        return array


class _HeaderCodec(_ForeignCodec):
    """Decodes arrays that begin with their shape, and perhaps with their dtype."""

    def __init__(self, encoding: str, dtype: np.dtype[Any]) -> None:
        super().__init__(dtype)
        self._encoding = encoding

    def decode(self, data: Buffer) -> npt.NDArray[Any]:
        header = read_header(self._encoding, data)
        assert header is not None
        if header.dtype not in ("", self._dtype.name):
            raise FormatError("an array has another dtype", expected=self._dtype.name, got=header.dtype)
        return self._array(memoryview(data).cast("B")[header.start :], self._dtype, header.shape)


class _PilCodec(_HeaderCodec):
    """Decodes uncompressed images of Pillow: width, height, length of the mode, mode, rows."""

    def decode(self, data: Buffer) -> npt.NDArray[Any]:
        view = memoryview(data).cast("B")
        header = read_header("pil", view)
        assert header is not None
        if header.dtype != self._dtype.name:
            raise FormatError("an image has another dtype", expected=self._dtype.name, got=header.dtype)
        mode, rows = pil_fields(view)[0], view[header.start :]
        if mode == "1":  # eight pixels in a byte, and each row begins with a byte
            height, width = header.shape
            packed = self._array(rows, np.dtype(np.uint8), (height, -(-width // 8)))
            pixels = np.unpackbits(packed, axis=1, count=width).view(np.bool_)
        elif mode == "I;16B":
            pixels = self._array(rows, np.dtype(">u2"), header.shape).astype("<u2")
        else:
            return self._array(rows, self._dtype, header.shape)
        return _read_only(pixels)


class _FlatCodec(_ForeignCodec):
    """Decodes arrays of one dimension without a header."""

    def decode(self, data: Buffer) -> npt.NDArray[Any]:
        count, rest = divmod(len(data), self._dtype.itemsize)
        if rest:
            raise FormatError("an array has part of an element", expected=self._dtype.name, got=f"{len(data)} bytes")
        return self._array(data, self._dtype, (count,))


class _FloatListCodec(_ForeignCodec):
    """Decodes the protobuf message ``FloatList``."""

    def decode(self, data: Buffer) -> npt.NDArray[Any]:
        return _read_only(decode_floats(memoryview(data).cast("B")))


class _IntListCodec(_ForeignCodec):
    """Decodes the protobuf message ``Int64List``."""

    def decode(self, data: Buffer) -> npt.NDArray[Any]:
        return _read_only(decode_ints(memoryview(data).cast("B")))


class _ByteListCodec(_ForeignCodec):
    """Returns the protobuf message ``BytesList`` as it is; `split_list` splits it."""

    def decode(self, data: Buffer) -> bytes:
        return bytes(data)


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array = array if array.flags.aligned else array.copy()
    array.flags.writeable = False
    return array


def _header_codec(encoding: str) -> Callable[[np.dtype[Any]], Codec]:
    return lambda dtype: _HeaderCodec(encoding, dtype)


_CODECS: Mapping[str, Callable[[np.dtype[Any]], Codec]] = MappingProxyType(
    {
        BARE_ARRAY: _FlatCodec,
        **{name: _header_codec(name) for name in HEADERS if name != "pil"},
        "pil": lambda dtype: _PilCodec("pil", dtype),
        "tfrecord/floats": _FloatListCodec,
        "tfrecord/ints": _IntListCodec,
        "tfrecord/bytes": _ByteListCodec,
    }
)

_ONLY_TYPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"tfrecord/floats": ("float32[...]",), "tfrecord/ints": ("int64[...]",), "tfrecord/bytes": ("bytes",)}
)


def foreign_codec(encoding: str, type_: str) -> Codec:
    """Returns the codec of values that another format encoded.

    Args:
        encoding: Name of the encoding, such as ``"litdata/tensor"``.
        type_: Type of the column: a ragged array such as ``"int64[...]"``, ``"bytes"`` for ``"tfrecord/bytes"``, or any
            array for ``"npy"``.

    Raises:
        SchemaError: The encoding is unknown, or has no values of this type.

    Example:
        >>> from concurrent_loader.storage.shards.format.foreign_codecs import foreign_codec
        >>> foreign_codec("raw/1d", "int32[...]").decode(bytes([1, 0, 0, 0, 2, 0, 0, 0])).tolist()
        [1, 2]
    """
    if encoding == "npy":
        return NpyCodec(type_)
    make = _CODECS.get(encoding)
    if make is None:
        raise SchemaError(
            "the encoding of a column is unknown: a newer release may know it",
            expected="|".join(("npy", *_CODECS)), got=encoding[:80],
        )  # fmt: skip
    is_ragged = type_.endswith("[...]")
    if not (type_ in _ONLY_TYPES[encoding] if encoding in _ONLY_TYPES else is_ragged):
        raise SchemaError("a column's encoding does not fit its type", expected=type_, got=encoding)
    try:
        dtype = np.dtype(type_.removesuffix("[...]") if is_ragged else np.uint8).newbyteorder("<")
    except TypeError as error:
        raise SchemaError("unknown dtype of an array", got=type_[:80]) from error
    return make(dtype)


# -- lists of byte strings ---------------------------------------------------------------------------------------------


def split_list(form: str, data: Buffer) -> list[memoryview]:
    """Splits a value that holds several byte strings, such as the images of an MDS column ``list[jpeg]``.

    Args:
        form: ``"mds/list"`` (``list[jpeg]``, ``list[png]``, ``list[pil]``), ``"jpeg_array"`` (MDS and LitData), or
            ``"tfrecord/bytes"``.
        data: Value of the bytes column.

    Raises:
        FormatError: The bytes are not a list of this form.

    Example:
        >>> from concurrent_loader.storage.shards.format.foreign_codecs import split_list
        >>> [bytes(part) for part in split_list("jpeg_array", bytes([1, 0, 0, 0, 2, 0, 0, 0]) + b"ab")]
        [b'ab']
    """
    view = memoryview(data).cast("B")
    if form == "tfrecord/bytes":
        return split_bytes(view)
    starts = {"jpeg_array": 0, "mds/list": 4}
    if form not in starts:
        raise FormatError("the form of a list is unknown", expected="mds/list|jpeg_array|tfrecord/bytes", got=form)
    start = starts[form]
    if len(view) < start + 4:
        raise FormatError("a list ends within its header", got=f"{len(view)} bytes")
    (count,) = _U32.unpack_from(view, start)
    position = start + 4 + 4 * count
    if position > len(view):
        raise FormatError("a list states more elements than fit", expected=f"<= {len(view) // 4}", got=count)
    parts = []
    for (size,) in _U32.iter_unpack(view[start + 4 : position]):
        parts.append(view[position : position + size])
        position += size
    if position != len(view):
        raise FormatError("the sizes of a list's elements contradict its length", expected=len(view), got=position)
    return parts
