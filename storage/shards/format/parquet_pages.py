"""Reads the sizes that a Parquet file states, before pyarrow allocates memory for them.

Parquet's headers are structs of Thrift's compact protocol. Only the numbers in them are kept. The sizes in a footer
bound nothing: pyarrow allocates what the header of each page states, and a page of a few bytes can repeat a value of a
dictionary a billion times. Therefore the headers of all pages are read here first. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.stores.objects import Buffer

__all__ = ["ChunkCost", "chunk_cost", "schema_depth"]

_BOOL_TRUE, _BOOL_FALSE, _I8, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTEGERS = (4, 5, 6)  # i16, i32, i64: varints with the sign in the lowest bit
_MAX_DEPTH = 16
_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = range(4)
_DICTIONARY_ENCODINGS = (2, 8)  # PLAIN_DICTIONARY, RLE_DICTIONARY
_DELTA_BYTE_ARRAY = 7


@dataclass(frozen=True, slots=True)
class ChunkCost:
    """The memory that decoding the chunk of a column may need.

    Attributes:
        num_values: Number of values, nulls included.
        num_bytes: Size of all pages, decompressed.
        max_repeated: Upper bound of the size of a value that pages refer to without holding it; 0 if there is none.
    """

    num_values: int
    num_bytes: int
    max_repeated: int


def chunk_cost(data: memoryview, num_values: int) -> ChunkCost:
    """Returns what decoding the chunk of a column may cost, from the headers of its pages.

    Args:
        data: All bytes of the chunk.
        num_values: Number of values that the footer states.

    Raises:
        FormatError: The chunk is damaged, or its pages disagree with the footer.
    """
    at = seen = num_bytes = dictionary = repeated = 0
    while seen < num_values:
        header, at = _read_struct(data, at, 0)
        kind, raw, stored = (_number(header, field) for field in (1, 2, 3))
        if stored > len(data) - at:
            raise FormatError("a page is cut off", start=at, expected=stored, got=len(data) - at)
        at += stored
        num_bytes += raw
        if kind == _DICTIONARY_PAGE:
            dictionary = raw
        elif kind in (_DATA_PAGE, _DATA_PAGE_V2):
            page = header.get(5 if kind == _DATA_PAGE else 8)
            if not isinstance(page, dict):
                raise FormatError("a data page has no header", start=at)
            seen += _number(page, 1)
            encoding = _number(page, 2 if kind == _DATA_PAGE else 4)
            if encoding in _DICTIONARY_ENCODINGS:
                repeated = max(repeated, dictionary)
            elif encoding == _DELTA_BYTE_ARRAY:
                repeated = max(repeated, raw)
        elif kind != _INDEX_PAGE:
            raise FormatError("a page is of an unknown kind", start=at, got=kind)
    if seen != num_values:
        raise FormatError("pages and footer disagree on the number of values", expected=num_values, got=seen)
    return ChunkCost(seen, num_bytes, repeated)


def schema_depth(footer: Buffer) -> int:
    """Returns how deep the columns are nested, from the list of schema elements in a footer.

    Raises:
        FormatError: The footer is damaged.
    """
    data = memoryview(footer).cast("B")
    # The fields of a struct are written in ascending order: 1 is the version, 2 the schema.
    at = field = 0
    while field < 2:
        field, kind, at = _read_field(data, at, field)
        if field == 2 and kind == _LIST:
            break
        if kind == 0 or field >= 2:
            raise FormatError("the footer does not begin with a schema")
        _, at = _read_value(data, at, kind, 0)
    count, kind, at = _read_list_header(data, at)
    if kind != _STRUCT:
        raise FormatError("the footer's schema is not a list of elements", got=kind)
    open_children: list[int] = []
    deepest = 0
    for _ in range(count):
        while open_children and open_children[-1] == 0:
            open_children.pop()
        if open_children:
            open_children[-1] -= 1
        element, at = _read_struct(data, at, 0)
        children = element.get(5, 0)
        if isinstance(children, int) and children > 0:
            open_children.append(children)
            deepest = max(deepest, len(open_children))
    return deepest


_Value = int | dict[int, object] | None


def _number(header: dict[int, object], field: int) -> int:
    value = header.get(field)
    if not isinstance(value, int) or value < 0:
        raise FormatError("the header of a page lacks a number, or has a negative one", got=value)
    return value


def _byte(data: memoryview, at: int) -> int:
    if at >= len(data):
        raise FormatError("a header is cut off", start=at)
    return data[at]


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = _byte(data, at)
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise FormatError("a number in a header has more than 64 bits", start=at)


def _read_field(data: memoryview, at: int, last: int) -> tuple[int, int, int]:
    """Returns number and kind of the next field, and the position of its value; kind 0 ends a struct."""
    head = _byte(data, at)
    at += 1
    if head & 15 == 0:
        return last, 0, at
    if head >> 4:
        return last + (head >> 4), head & 15, at
    number, at = _read_varint(data, at)
    return (number >> 1) ^ -(number & 1), head & 15, at


def _read_struct(data: memoryview, at: int, depth: int) -> tuple[dict[int, object], int]:
    """Returns the numbers and structs of a struct by field, and the position behind it."""
    if depth > _MAX_DEPTH:
        raise FormatError("a header is nested too deeply", start=at)
    fields: dict[int, object] = {}
    field = 0
    while True:
        field, kind, at = _read_field(data, at, field)
        if kind == 0:
            return fields, at
        value, at = _read_value(data, at, kind, depth)
        if value is not None:
            fields[field] = value


def _read_list_header(data: memoryview, at: int) -> tuple[int, int, int]:
    head = _byte(data, at)
    at += 1
    count = head >> 4
    if count == 15:
        count, at = _read_varint(data, at)
    if count > len(data) - at:  # each element takes at least one byte
        raise FormatError("a list in a header is cut off", start=at, got=count)
    return count, head & 15, at


def _read_value(data: memoryview, at: int, kind: int, depth: int) -> tuple[_Value, int]:
    if kind in (_BOOL_TRUE, _BOOL_FALSE):
        return None, at
    if kind in _INTEGERS:
        value, at = _read_varint(data, at)
        return (value >> 1) ^ -(value & 1), at
    if kind == _BINARY:
        length, at = _read_varint(data, at)
        if length > len(data) - at:
            raise FormatError("a text in a header is cut off", start=at, expected=length)
        return None, at + length
    if kind == _STRUCT:
        return _read_struct(data, at, depth + 1)
    if kind in (_I8, _DOUBLE):
        return None, at + (1 if kind == _I8 else 8)
    if kind not in (_LIST, _SET):  # Parquet's structs have no maps
        raise FormatError("a header has a field of an unknown kind", start=at, got=kind)
    if depth > _MAX_DEPTH:
        raise FormatError("a header is nested too deeply", start=at)
    count, each, at = _read_list_header(data, at)
    for _ in range(count):
        if each in (_BOOL_TRUE, _BOOL_FALSE):
            at += 1
        else:
            _, at = _read_value(data, at, each, depth + 1)
    return None, at
