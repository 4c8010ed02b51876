"""Decodes nested lists and dicts of LitData, whose serializer is called ``json`` but mostly writes a binary form.

A value is JSON text, or a tag byte and its content, little-endian::

    0  JSON        u32 length, text                    6  records     u32 n, u32 keys, texts, n rows (see below)
    1  texts       u32 n, n texts                      7  text        u32 length, UTF-8
    2  integers    u32 n, i64[n]                       8  integer     i64
    3  floats      u32 n, f64[n]                       9  float       f64
    4  bools       u32 n, u8[n]                        10 bool        u8
    5  dict        u32 n, n times text and value       11 null

A row of records has, for each key, a tag (16 null, 17 text, 18 integer, 19 float, 20 bool) and its content.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.shards.format.value_codecs import MAX_JSON_DEPTH, MAX_SMALL_VALUE_BYTES

__all__ = ["parse_nested"]

_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")
_F64 = struct.Struct("<d")
_FIRST_JSON_CHARACTER = 0x21
_MAX_MEMORY_BYTES = 128 << 20
"""Upper bound of the estimated memory of a value; a dict takes 200 bytes, and an empty one 5 bytes in the file."""
_NUMBER_BYTES, _TEXT_BYTES, _BOOL_BYTES, _ENTRY_BYTES = 40, 80, 8, 200


def parse_nested(data: memoryview) -> object:
    """Returns a value of the serializer ``json``.

    Raises:
        FormatError: The bytes are not such a value, or it is too large or nested too deeply.

    Example:
        >>> from concurrent_loader.storage.adopt.formats.litdata_json import parse_nested
        >>> parse_nested(memoryview(bytes([2, 1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0])))
        [5]
    """
    if len(data) > MAX_SMALL_VALUE_BYTES:
        raise FormatError("a nested value is too long", expected=f"<= {MAX_SMALL_VALUE_BYTES}", got=len(data))
    cursor = _Cursor(data)
    if not len(data) or data[0] >= _FIRST_JSON_CHARACTER:
        return cursor.json(len(data))
    value = cursor.value(0)
    if cursor.position != len(data):
        raise FormatError("bytes follow a nested value", expected=cursor.position, got=len(data))
    return value


class _Cursor:
    """Reads one value after another. Every count is checked against the bytes that are left."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._memory_bytes = 0
        self.position = 0

    def value(self, depth: int) -> Any:
        if depth > MAX_JSON_DEPTH:
            raise FormatError("a nested value is nested too deeply", expected=f"at most {MAX_JSON_DEPTH} levels")
        match self._byte():
            case 0:
                return self.json(self._u32())
            case 1:
                return [self._text() for _ in range(self._count(4, _TEXT_BYTES))]
            case 2:
                return list(struct.unpack(f"<{(count := self._count(8, _NUMBER_BYTES))}q", self._take(8 * count)))
            case 3:
                return list(struct.unpack(f"<{(count := self._count(8, _NUMBER_BYTES))}d", self._take(8 * count)))
            case 4:
                return [byte != 0 for byte in self._take(self._count(1, _BOOL_BYTES))]
            case 5:
                return {self._text(): self.value(depth + 1) for _ in range(self._count(5, _ENTRY_BYTES))}
            case 6:
                return self._records()
            case tag if 7 <= tag <= 10:
                return self._scalar(tag + 10)
            case 11:
                return None
            case tag:
                raise FormatError("a nested value has an unknown tag", got=tag)

    def json(self, length: int) -> Any:
        try:
            return msgspec.json.decode(self._take(length))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise FormatError("a nested value is not JSON") from error

    def _records(self) -> list[dict[str, Any]]:
        num_rows, num_keys = self._u32(), self._count(4, _TEXT_BYTES)
        keys = [self._text() for _ in range(num_keys)]
        if not keys or num_rows * num_keys > len(self._data) - self.position:
            raise FormatError("nested records state more rows than fit", got=num_rows)
        self._account(num_rows * num_keys * _ENTRY_BYTES)
        return [{key: self._scalar(self._byte()) for key in keys} for _ in range(num_rows)]

    def _scalar(self, tag: int) -> Any:
        match tag:
            case 16:
                return None
            case 17:
                return self._text()
            case 18:
                return _I64.unpack(self._take(8))[0]
            case 19:
                return _F64.unpack(self._take(8))[0]
            case 20:
                return self._bool()
            case _:
                raise FormatError("a nested record has an unknown tag", got=tag)

    def _take(self, length: int) -> memoryview:
        start, self.position = self.position, self.position + length
        if self.position > len(self._data):
            raise FormatError("a nested value ends early", expected=self.position, got=len(self._data))
        return self._data[start : self.position]

    def _byte(self) -> int:
        return self._take(1)[0]

    def _u32(self) -> int:
        return int(_U32.unpack(self._take(4))[0])

    def _count(self, min_bytes: int, memory_bytes: int) -> int:
        """Returns a number of elements, of which each has at least so many bytes and takes so much memory."""
        count = self._u32()
        if count * min_bytes > len(self._data) - self.position:
            raise FormatError("a nested value states more elements than fit", got=count)
        self._account(count * memory_bytes)
        return count

    def _account(self, memory_bytes: int) -> None:
        self._memory_bytes += memory_bytes
        if self._memory_bytes > _MAX_MEMORY_BYTES:
            raise FormatError("a nested value has too many elements", expected=f"<= {_MAX_MEMORY_BYTES} bytes")

    def _bool(self) -> bool:
        return self._byte() != 0

    def _text(self) -> str:
        try:
            return str(self._take(self._u32()), "utf-8")
        except UnicodeDecodeError as error:
            raise FormatError("a nested text is not UTF-8") from error
