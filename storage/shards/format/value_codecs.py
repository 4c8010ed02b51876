"""Codecs that turn one value of a sample into stored bytes and back, one for each family of types.

`concurrent_loader.storage.shards.format.array_codecs` has the codecs of arrays. A codec knows neither its column's name
nor the shard: `concurrent_loader.storage.shards.format.schema` and the index add these to errors. Encoding raises
`SchemaError` for a value that would not be read back equal. Decoding raises `FormatError` for invalid bytes, before it
allocates memory.
"""

from __future__ import annotations

import os
import reprlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from concurrent_loader.storage.errors import FormatError, SchemaError
from concurrent_loader.storage.images import ImageFormat, find_format
from concurrent_loader.storage.media import MediaFormat, find_media_format
from concurrent_loader.storage.stores.objects import Buffer

__all__ = [
    "MAX_JSON_DEPTH",
    "MAX_SMALL_VALUE_BYTES",
    "BoolCodec",
    "BytesCodec",
    "Codec",
    "FloatCodec",
    "ImageCodec",
    "IntegerCodec",
    "JsonCodec",
    "MediaCodec",
    "StrCodec",
    "max_exact_integer",
    "value_error",
]

MAX_JSON_DEPTH = 256
"""Far below every decoder's recursion limit, so that any Python version can read what another one wrote."""

MAX_SMALL_VALUE_BYTES = 64 << 20
"""Upper bound of one encoded str or json value; larger values belong in a bytes column."""


_BYTES = (bytes, bytearray)  # as tuples, because `isinstance` with a union takes four times as long
_BUFFERS = (*_BYTES, memoryview)


class Codec(ABC):
    """Encodes one value and decodes it."""

    @abstractmethod
    def encode(self, value: object) -> bytes:
        """Returns the stored bytes; raises `SchemaError` for an unsuitable value."""

    def pieces(self, value: object) -> Sequence[Buffer]:
        """Returns the bytes of `encode` in pieces; a codec of large values overrides this to avoid copies."""
        return (self.encode(value),)

    @abstractmethod
    def decode(self, data: Buffer) -> Any:
        """Returns the encoded value; raises `FormatError` for invalid bytes."""

    def decode_many(self, data: Iterable[Buffer]) -> list[Any]:
        """Returns encoded values; a codec of small values overrides this to spare calls."""
        return [self.decode(each) for each in data]


def value_error(what: str, value: object, *, expected: object = None) -> SchemaError:
    """Returns the error for an unsuitable value, which is shown shortened."""
    return SchemaError(what, expected=expected, got=f"{type(value).__name__} {reprlib.repr(value)}")


def _unwrap(value: object) -> object:
    """Returns the scalar in a 0-dimensional array or tensor, and any other value unchanged."""
    if isinstance(value, np.generic) or not hasattr(value, "__array__"):
        return value
    array = np.asarray(value)
    return array[()] if array.ndim == 0 and not np.ma.isMaskedArray(value) else value


# -- bytes and images ----------------------------------------------------------------------------------------------


class BytesCodec(Codec):
    """Stores bytes unchanged."""

    def encode(self, value: object) -> bytes:
        """Returns the bytes; copies only memory that the caller may still change."""
        return bytes(self.pieces(value)[0])

    def pieces(self, value: object) -> tuple[Buffer]:
        """Returns the bytes without a copy."""
        if isinstance(value, _BYTES):
            return (value,)
        if isinstance(value, memoryview):
            return (value.cast("B") if value.c_contiguous and value.nbytes else bytes(value),)
        raise value_error("a bytes column accepts bytes, bytearray or memoryview", value)

    def decode(self, data: Buffer) -> bytes:
        """Returns the bytes; does not copy a ``bytes`` object."""
        return bytes(data)


class ImageCodec(BytesCodec):
    """Stores an encoded image unchanged, after checking that its first bytes match the column's type.

    Args:
        formats: Names of the allowed formats, from `concurrent_loader.storage.images.FORMATS`.
    """

    _NOUN: ClassVar[str] = "image"

    def __init__(self, formats: tuple[str, ...]) -> None:
        self._formats = formats

    def pieces(self, value: object) -> tuple[Buffer]:
        """Returns the file's bytes unchanged, without a copy."""
        if not isinstance(value, _BUFFERS):
            advice = _image_advice(value)
            raise value_error(f"this column accepts the bytes of an encoded {self._NOUN}{advice}", value)
        (data,) = super().pieces(value)
        found = self._find(data)
        if found is None or found.name not in self._formats:
            raise SchemaError(
                f"the value does not begin like an {self._NOUN} of this type",
                expected="|".join(self._formats),
                got=found.name if found else f"{bytes(data[:12])!r}, {len(data)} bytes",
            )
        return (data,)

    def _find(self, data: Buffer) -> ImageFormat | MediaFormat | None:
        return find_format(data)


class MediaCodec(ImageCodec):
    """Stores an audio or video file unchanged, after checking that its first bytes match the column's type.

    Args:
        formats: Names of the allowed formats, from `concurrent_loader.storage.media.MEDIA_FORMATS`.
    """

    _NOUN = "audio or video file"

    def _find(self, data: Buffer) -> MediaFormat | None:
        return find_media_format(data)


def _image_advice(value: object) -> str:
    """Returns advice on how to get the encoded bytes from a value that is often passed by mistake."""
    if isinstance(value, str | os.PathLike):
        return ": pass Path(path).read_bytes(), not the path"
    if hasattr(value, "save") and hasattr(value, "getdata"):  # avoids importing Pillow
        return (
            ": pass path.read_bytes() of the file, or save an image without a file into an io.BytesIO by "
            "image.save(buffer, format=...) and pass buffer.getvalue()"
        )
    if hasattr(value, "__array__"):
        return ': pass path.read_bytes() of the file; or use a "uint8[...]" column for arrays of pixels'
    return ""


# -- small variable-width values -------------------------------------------------------------------------------------


class StrCodec(Codec):
    """Stores text as UTF-8."""

    def encode(self, value: object) -> bytes:
        """Returns the text as UTF-8; rejects lone surrogates."""
        if not isinstance(value, str):
            raise value_error("a str column accepts str", value)
        try:
            data = value.encode()
        except UnicodeEncodeError as error:
            raise value_error("text must be valid Unicode", value) from error
        return _check_small(data)

    def decode(self, data: Buffer) -> str:
        """Returns the text."""
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise FormatError("a str value is not UTF-8") from error

    def decode_many(self, data: Iterable[Buffer]) -> list[str]:
        """Returns texts."""
        try:
            return [str(each, "utf-8") for each in data]
        except UnicodeDecodeError as error:
            raise FormatError("a str value is not UTF-8") from error


class JsonCodec(Codec):
    """Stores a JSON value as UTF-8 text with sorted keys and without blanks."""

    def encode(self, value: object) -> bytes:
        """Returns the text of a value, if decoding the text gives an equal value.

        This comparison rejects everything that JSON would change: NaN and infinities (null), tuples and sets (lists),
        dates, bytes and enums (text), dataclasses (dicts).
        """
        try:
            data = msgspec.json.encode(value, order="deterministic")
            same = bool(msgspec.json.decode(data) == value)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise value_error(
                "a json column accepts JSON values: None, bool, numbers, str, lists, dicts", value
            ) from error
        if not same:
            raise value_error(
                "a json value would not be read back equal: it must not hold NaN, tuples, sets, dates or bytes", value
            )
        if _is_deep(data):
            raise SchemaError("a json value is nested too deeply", expected=f"at most {MAX_JSON_DEPTH} levels")
        return _check_small(data)

    def decode(self, data: Buffer) -> Any:
        """Returns the value."""
        data = bytes(data)
        if _is_deep(data):
            raise FormatError("a json value is nested too deeply", expected=f"at most {MAX_JSON_DEPTH} levels")
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise FormatError("a json value is not JSON") from error


def _check_small(data: bytes) -> bytes:
    if len(data) > MAX_SMALL_VALUE_BYTES:
        raise SchemaError("the value is too long for its column", expected=f"<= {MAX_SMALL_VALUE_BYTES}", got=len(data))
    return data


def _is_deep(text: bytes) -> bool:
    """Returns whether JSON text is nested deeper than allowed, without recursion."""
    if len(text) <= MAX_JSON_DEPTH or text.count(b"[") + text.count(b"{") <= MAX_JSON_DEPTH:  # nearly always true
        return False
    depth = 0
    inside = escaped = False
    for byte in text:
        if inside:
            if escaped:
                escaped = False
            elif byte == 0x5C:  # backslash
                escaped = True
            elif byte == 0x22:  # quote
                inside = False
        elif byte == 0x22:
            inside = True
        elif byte in b"[{":
            depth += 1
            if depth > MAX_JSON_DEPTH:
                return True
        elif byte in b"]}":
            depth -= 1
    return False


# -- scalars -----------------------------------------------------------------------------------------------------------


class BoolCodec(Codec):
    """Stores True or False, and rejects values that only behave like them."""

    def encode(self, value: object) -> bytes:
        """Returns one byte, 0 or 1."""
        if type(value) is not bool:
            value = _unwrap(value)
            if not isinstance(value, bool | np.bool_):
                raise value_error("a bool column accepts bool", value)
        return b"\x01" if value else b"\x00"

    def decode(self, data: Buffer) -> bool:
        """Returns the bool."""
        if bytes(data) not in (b"\x00", b"\x01"):
            raise FormatError("a bool is one byte, 0 or 1", got=bytes(data[:8]))
        return data[0] == 1


def _number_advice(value: object) -> str:
    if not isinstance(value, str):
        return ""
    return ': map texts to integers (labels.index(text)), or use the column type "str"'


class IntegerCodec(Codec):
    """Stores integers in the range of a dtype."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._struct = struct.Struct(_STRUCT_CODES[dtype.name])

    def encode(self, value: object) -> bytes:
        """Returns the little-endian bytes of an int in range; rejects bools and floats."""
        if type(value) is not int:
            value = _unwrap(value)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole and not (isinstance(value, np.generic) and value.dtype.kind in "iu"):
                raise value_error(
                    f"an integer column accepts int{_number_advice(value)}", value, expected=self._dtype.name
                )
            value = int(value)  # type: ignore[call-overload]
        try:
            return self._struct.pack(value)
        except struct.error as error:
            raise value_error("the integer is out of range", value, expected=self._dtype.name) from error

    def decode(self, data: Buffer) -> int:
        """Returns the int."""
        return int(_unpack(self._struct, data))


class FloatCodec(Codec):
    """Stores floats, rounded to the column's precision; values of the column's dtype keep every bit."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._struct = struct.Struct(_STRUCT_CODES[dtype.name])
        self._max_exact = max_exact_integer(dtype)

    def encode(self, value: object) -> bytes:
        """Returns the little-endian bytes of a float, or of an int that is exact in this precision.

        Rejects a finite number that would become an infinity.
        """
        if type(value) is not float:
            value = _unwrap(value)
            if isinstance(value, np.generic) and value.dtype == self._dtype:
                return value.tobytes()
            value = self._number(value)
        try:
            return self._struct.pack(value)
        except OverflowError as error:
            raise value_error("the number is out of range", value, expected=self._dtype.name) from error

    def decode(self, data: Buffer) -> float:
        """Returns the float."""
        return float(_unpack(self._struct, data))

    def _number(self, value: object) -> float:
        if isinstance(value, float) or (isinstance(value, np.floating) and value.dtype.itemsize <= 8):
            return float(value)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if whole or (isinstance(value, np.generic) and value.dtype.kind in "iu"):
            number = int(value)  # type: ignore[call-overload]
            if abs(number) > self._max_exact:
                raise value_error("the integer is not exact in this precision", value, expected=self._dtype.name)
            return float(number)
        raise value_error(
            f"a float column accepts float, or int if that is exact{_number_advice(value)}",
            value, expected=self._dtype.name,
        )  # fmt: skip


_STRUCT_CODES = {
    "int8": "<b",
    "int16": "<h",
    "int32": "<i",
    "int64": "<q",
    "uint8": "<B",
    "uint16": "<H",
    "uint32": "<I",
    "uint64": "<Q",
    "float16": "<e",
    "float32": "<f",
    "float64": "<d",
}


def _unpack(form: struct.Struct, data: Buffer) -> Any:
    if len(data) != form.size:
        raise FormatError("a number has the wrong length", expected=form.size, got=len(data))
    return form.unpack(data)[0]


def max_exact_integer(dtype: np.dtype[Any]) -> int:
    """Returns the largest n for which a float dtype represents every integer from 0 to n."""
    return int(2 ** (np.finfo(dtype).nmant + 1))
