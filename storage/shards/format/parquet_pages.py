"""Reads the sizes that a Parquet file states, before pyarrow allocates memory for them.

Parquet's headers are structs of Thrift's compact protocol. Only the numbers in them are kept. The sizes in a footer
bound nothing: pyarrow allocates what the header of each page states, and a page of a few bytes can repeat a value of a
dictionary a billion times. Therefore the headers of all pages are read here first. So are the places of the columns:
pyarrow's Python classes for them abort the process if a footer contradicts itself. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.stores.objects import Buffer

__all__ = ["ChunkCost", "ColumnChunk", "StatedGroup", "StatedSizes", "chunk_cost", "read_sizes"]

_BOOL_TRUE, _BOOL_FALSE, _I8, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_INTEGERS = (4, 5, 6)  # i16, i32, i64: varints with the sign in the lowest bit
_MAX_DEPTH = 16
_MAX_STRUCTS = 1_000_000
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


class ColumnChunk(NamedTuple):
    """The place of the chunk of a column, as the footer states it.

    Attributes:
        start: First byte: of the dictionary, or of the first page.
        length: Number of bytes.
        raw_bytes: Size of the pages, decompressed.
        num_values: Number of values, nulls included.
        is_outside: Whether the chunk is in another file, or encrypted.
    """

    start: int
    length: int
    raw_bytes: int
    num_values: int
    is_outside: bool


class StatedGroup(NamedTuple):
    """A row group, as the footer states it.

    Attributes:
        num_rows: Number of rows.
        chunks: Chunks of all columns.
    """

    num_rows: int
    chunks: list[ColumnChunk]


class StatedSizes(NamedTuple):
    """What a footer states.

    Attributes:
        depth: Number of levels of nested columns.
        groups: Row groups in their order.
    """

    depth: int
    groups: list[StatedGroup]


def chunk_cost(data: memoryview, num_values: int) -> ChunkCost:
    """Returns what decoding the chunk of a column may cost, from the headers of its pages.

    Args:
        data: All bytes of the chunk.
        num_values: Number of values that the footer states.

    Raises:
        FormatError: The chunk is damaged, or its pages disagree with the footer.
    """
    reader = _Reader(data)
    seen = num_bytes = dictionary = repeated = 0
    while seen < num_values:
        header = reader.struct()
        kind, raw, stored = (_number(header, field) for field in (1, 2, 3))
        if stored > len(data) - reader.at:
            raise FormatError("a page is cut off", start=reader.at, expected=stored, got=len(data) - reader.at)
        reader.at += stored
        num_bytes += raw
        if kind == _DICTIONARY_PAGE:
            dictionary = raw
        elif kind in (_DATA_PAGE, _DATA_PAGE_V2):
            page = _struct(header, 5 if kind == _DATA_PAGE else 8)
            seen += _number(page, 1)
            encoding = _number(page, 2 if kind == _DATA_PAGE else 4)
            if encoding in _DICTIONARY_ENCODINGS:
                repeated = max(repeated, dictionary)
            elif encoding == _DELTA_BYTE_ARRAY:
                repeated = max(repeated, raw)
        elif kind != _INDEX_PAGE:
            raise FormatError("a page is of an unknown kind", start=reader.at, got=kind)
    if seen != num_values:
        raise FormatError("pages and footer disagree on the number of values", expected=num_values, got=seen)
    return ChunkCost(seen, num_bytes, repeated)


def read_sizes(footer: Buffer) -> StatedSizes:
    """Returns depth, row groups and places of columns that a footer states.

    Raises:
        FormatError: The footer is damaged, or has more than a million structs.
    """
    fields = _Reader(memoryview(footer).cast("B")).struct()
    groups = []
    for group in _structs(fields, 4):
        chunks = [_chunk(each) for each in _structs(group, 1)]
        groups.append(StatedGroup(_number(group, 3), chunks))
    return StatedSizes(_depth(_structs(fields, 2)), groups)


def _chunk(chunk: _Struct) -> ColumnChunk:
    if 8 in chunk:  # metadata for decryption
        return ColumnChunk(0, 0, 0, 0, is_outside=True)
    facts = _struct(chunk, 3)
    start = _number(facts, 9)
    dictionary = facts.get(11)
    if isinstance(dictionary, int) and 0 < dictionary < start:
        start = dictionary
    return ColumnChunk(start, _number(facts, 7), _number(facts, 6), _number(facts, 5), is_outside=1 in chunk)


def _depth(schema: list[_Struct]) -> int:
    open_children: list[int] = []
    deepest = 0
    for element in schema:
        while open_children and open_children[-1] == 0:
            open_children.pop()
        if open_children:
            open_children[-1] -= 1
        children = element.get(5)
        if isinstance(children, int) and children > 0:
            open_children.append(children)
            deepest = max(deepest, len(open_children))
    return deepest


_Value = object
_Struct = dict[int, _Value]
"""Values by field: numbers, structs, and lists of structs; None in place of any other value."""


def _number(fields: _Struct, field: int) -> int:
    value = fields.get(field)
    if not isinstance(value, int) or value < 0:
        raise FormatError("a header lacks a number, or has a negative one", got=value)
    return value


def _struct(fields: _Struct, field: int) -> _Struct:
    value = fields.get(field)
    if not isinstance(value, dict):
        raise FormatError("a header lacks a part", got=field)
    return value


def _structs(fields: _Struct, field: int) -> list[_Struct]:
    value = fields.get(field)
    if not isinstance(value, list):
        raise FormatError("a header lacks a list", got=field)
    return value


class _Reader:
    """Reads structs of Thrift's compact protocol, one after another."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._num_structs = 0
        self.at = 0

    def struct(self, depth: int = 0) -> _Struct:
        """Returns the next struct."""
        self._num_structs += 1
        if depth > _MAX_DEPTH or self._num_structs > _MAX_STRUCTS:
            raise FormatError("a header is nested too deeply, or too large", start=self.at)
        fields: _Struct = {}
        field = 0
        while True:
            head = self._byte()
            kind = head & 15
            if kind == 0:
                return fields
            field = field + (head >> 4) if head >> 4 else self._integer()
            fields[field] = self._value(kind, depth)

    def _value(self, kind: int, depth: int) -> _Value:
        if kind in (_BOOL_TRUE, _BOOL_FALSE):
            return None
        if kind in _INTEGERS:
            return self._integer()
        if kind in (_BINARY, _I8, _DOUBLE):
            self._skip(self._varint() if kind == _BINARY else 1 if kind == _I8 else 8)
            return None
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind not in (_LIST, _SET):  # Parquet's structs have no maps
            raise FormatError("a header has a field of an unknown kind", start=self.at, got=kind)
        if depth > _MAX_DEPTH:
            raise FormatError("a header is nested too deeply", start=self.at)
        head = self._byte()
        each = head & 15
        count = self._varint() if head >> 4 == 15 else head >> 4
        if count > len(self._data) - self.at:  # each element takes at least one byte
            raise FormatError("a list in a header is cut off", start=self.at, got=count)
        if each == _STRUCT:
            return [self.struct(depth + 1) for _ in range(count)]
        if each in (_BOOL_TRUE, _BOOL_FALSE):
            self._skip(count)
        else:
            for _ in range(count):
                self._value(each, depth + 1)
        return None

    def _skip(self, num_bytes: int) -> None:
        if num_bytes > len(self._data) - self.at:
            raise FormatError("a value in a header is cut off", start=self.at, expected=num_bytes)
        self.at += num_bytes

    def _byte(self) -> int:
        if self.at >= len(self._data):
            raise FormatError("a header is cut off", start=self.at)
        self.at += 1
        return self._data[self.at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise FormatError("a number in a header has more than 64 bits", start=self.at)

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
