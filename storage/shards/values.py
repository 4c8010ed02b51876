"""How one value of a sample becomes the bytes that a shard stores, and comes back: one codec for each family of types.
(Arrays have a file of their own, `storage.shards.arrays`.)

A codec knows neither its column's name nor the shard; `storage.shards.columns` adds the one, the index the other.
Encoding raises `SchemaError` for a value that would not come back as it went in; decoding raises `FormatError` for
bytes that no encoder writes, before it allocates anything.
"""

from __future__ import annotations

import os
import reprlib
import struct
from typing import Any, Protocol

import msgspec
import numpy as np

from storage.errors import FormatError, SchemaError
from storage.lossless.layout import MAGIC
from storage.stores.protocol import Buffer

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
    "StrCodec",
    "max_exact_integer",
    "misfit",
]

MAX_JSON_DEPTH = 256
"""Far below every decoder's recursion limit, so that what one Python writes the next one reads."""

MAX_SMALL_VALUE_BYTES = 64 << 20
"""Of one encoded str or json value; what is larger belongs into a bytes column."""


class Codec(Protocol):
    """Bytes of one value and back."""

    def encode(self, value: object) -> bytes:
        """Returns what is stored, or raises `SchemaError`."""
        ...

    def decode(self, data: Buffer) -> Any:
        """Returns what was encoded, or raises `FormatError`."""
        ...


def misfit(what: str, value: object, *, expected: object = None) -> SchemaError:
    """Makes the error that says which value did not fit, cut to a readable length."""
    return SchemaError(what, expected=expected, got=f"{type(value).__name__} {reprlib.repr(value)}")


def _unwrap(value: object) -> object:
    """Takes the scalar out of a 0-dimensional array or tensor; anything else stays what it is."""
    if isinstance(value, np.generic) or not hasattr(value, "__array__"):
        return value
    array = np.asarray(value)
    return array[()] if array.ndim == 0 and not np.ma.isMaskedArray(value) else value


# -- bytes and images ----------------------------------------------------------------------------------------------


class BytesCodec:
    """Any bytes, stored as they are."""

    def encode(self, value: object) -> bytes:
        """Returns the bytes; copies only what could change under the caller's hands."""
        return bytes(self.pieces(value)[0])

    def pieces(self, value: object) -> tuple[Buffer]:
        """Returns the bytes without a copy."""
        if isinstance(value, bytes | bytearray):
            return (value,)
        if isinstance(value, memoryview):
            return (value.cast("B") if value.c_contiguous and value.nbytes else bytes(value),)
        raise misfit("a bytes column takes bytes, bytearray or memoryview", value)

    def decode(self, data: Buffer) -> bytes:
        """Returns the bytes; those that already are ``bytes`` are not copied."""
        return bytes(data)


_SNIFFED_BYTES = 16


def _sniff_image(data: bytes) -> str | None:
    if data[:3] == b"\xff\xd8\xff":
        return "jpeg"
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return "png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[4:12] in (b"ftypavif", b"ftypavis", b"ftypmif1"):
        return "avif"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "gif"
    if data[: len(MAGIC)] == MAGIC:
        return "lossless"
    return None


class ImageCodec(BytesCodec):
    """An encoded image, stored as it is once its first bytes agree with the column.

    Args:
        formats: Of ``jpeg``, ``png``, ``webp``, ``avif``, ``gif``, ``lossless``.
    """

    def __init__(self, formats: tuple[str, ...]) -> None:
        self._formats = formats

    def pieces(self, value: object) -> tuple[Buffer]:
        """Returns the image's bytes unchanged, without a copy."""
        if not isinstance(value, bytes | bytearray | memoryview):
            raise misfit(f"an image column takes the bytes of an encoded image{_image_advice(value)}", value)
        (data,) = super().pieces(value)
        found = _sniff_image(bytes(data[:_SNIFFED_BYTES]))
        if found not in self._formats:
            raise SchemaError(
                "the first bytes are not those of an image of this type",
                expected="|".join(self._formats),
                got=found or f"{bytes(data[:12])!r}, {len(data)} bytes",
            )
        return (data,)


def _image_advice(value: object) -> str:
    """Names the way from what people pass instead of an image's bytes to these bytes."""
    if isinstance(value, str | os.PathLike):
        return ": pass Path(path).read_bytes(), not the path"
    if hasattr(value, "save") and hasattr(value, "getdata"):  # Pillow is not imported for this
        return (
            ": pass path.read_bytes() of the file, or, of an image that is in no file, what image.save(buffer, "
            "format=...) wrote into an io.BytesIO"
        )
    if hasattr(value, "__array__"):
        return ': pass path.read_bytes() of the file; arrays of pixels go into a "uint8[...]" column'
    return ""


# -- small variable-width values -------------------------------------------------------------------------------------


class StrCodec:
    """Text as UTF-8."""

    def encode(self, value: object) -> bytes:
        """Returns UTF-8; lone surrogates are refused."""
        if not isinstance(value, str):
            raise misfit("a str column takes str", value)
        try:
            data = value.encode()
        except UnicodeEncodeError as error:
            raise misfit("text must be valid Unicode", value) from error
        return _check_small(data)

    def decode(self, data: Buffer) -> str:
        """Returns the text."""
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise FormatError("a str value is not UTF-8") from error


class JsonCodec:
    """A JSON value as UTF-8 text with sorted keys and no blanks."""

    def encode(self, value: object) -> bytes:
        """Returns the text of a value that comes back equal.

        Comparing is what refuses, in one rule, everything that JSON would change on the way: NaN and infinities
        (null), tuples and sets (lists), dates, bytes and enums (text), dataclasses (dicts).
        """
        try:
            data = msgspec.json.encode(value, order="deterministic")
            same = bool(msgspec.json.decode(data) == value)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise misfit(
                "a json column takes what JSON can say: None, bool, numbers, str, lists, dicts", value
            ) from error
        if not same:
            raise misfit("a json value would not come back as it is: no NaN, tuples, sets, dates, bytes", value)
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
    """Whether JSON text nests deeper than allowed, without recursion."""
    if text.count(b"[") + text.count(b"{") <= MAX_JSON_DEPTH:  # nearly always: two memchr-like scans and done
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


class BoolCodec:
    """True or False, nothing that merely behaves like them."""

    def encode(self, value: object) -> bytes:
        """Returns one byte, 0 or 1."""
        if type(value) is not bool:
            value = _unwrap(value)
            if not isinstance(value, bool | np.bool_):
                raise misfit("a bool column takes bool", value)
        return b"\x01" if value else b"\x00"

    def decode(self, data: Buffer) -> bool:
        """Returns the bool."""
        if bytes(data) not in (b"\x00", b"\x01"):
            raise FormatError("a bool is one byte, 0 or 1", got=bytes(data[:8]))
        return data[0] == 1


def _number_advice(value: object) -> str:
    if not isinstance(value, str):
        return ""
    return ': map texts to integers (labels.index(text)), or give the column the type "str"'


class IntegerCodec:
    """Whole numbers that fit."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._struct = struct.Struct(_STRUCT_CODES[dtype.name])

    def encode(self, value: object) -> bytes:
        """Returns the little-endian bytes of an int in range (bools and floats are none)."""
        if type(value) is not int:
            value = _unwrap(value)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole and not (isinstance(value, np.generic) and value.dtype.kind in "iu"):
                raise misfit(f"an integer column takes int{_number_advice(value)}", value, expected=self._dtype.name)
            value = int(value)  # type: ignore[call-overload]
        try:
            return self._struct.pack(value)
        except struct.error as error:
            raise misfit("the integer is out of range", value, expected=self._dtype.name) from error

    def decode(self, data: Buffer) -> int:
        """Returns the int."""
        return int(_unpack(self._struct, data))


class FloatCodec:
    """Floating-point numbers, rounded to the column's precision; every bit pattern of its own dtype is kept."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._struct = struct.Struct(_STRUCT_CODES[dtype.name])
        self._max_exact = max_exact_integer(dtype)

    def encode(self, value: object) -> bytes:
        """Returns the little-endian bytes of a float, or of an int that is exact in this precision.

        A finite number that would become an infinity is refused.
        """
        if type(value) is not float:
            value = _unwrap(value)
            if isinstance(value, np.generic) and value.dtype == self._dtype:
                return value.tobytes()
            value = self._number(value)
        try:
            return self._struct.pack(value)
        except OverflowError as error:
            raise misfit("the number is out of range", value, expected=self._dtype.name) from error

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
                raise misfit("the integer is not exact in this precision", value, expected=self._dtype.name)
            return float(number)
        raise misfit(
            f"a float column takes float, or int where that is exact{_number_advice(value)}",
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
        raise FormatError("a number does not have its length", expected=form.size, got=len(data))
    return form.unpack(data)[0]


def max_exact_integer(dtype: np.dtype[Any]) -> int:
    """Returns up to which integer a float dtype has them all."""
    return int(2 ** (np.finfo(dtype).nmant + 1))
