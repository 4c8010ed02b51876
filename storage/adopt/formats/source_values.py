"""How another format stores the values of a column, and where the stored form of a column type is in them.

MDS and LitData name an encoding for each column. Each encoding is one of the kinds below, with its parameters.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from concurrent_loader.storage.adopt.formats.foreign_values import (
    BYTE_TYPES,
    SNIFFED_SAMPLES,
    array_type,
    array_types,
    image_type,
    parsed_column,
)
from concurrent_loader.storage.adopt.protocol import ForeignColumn, FoundSample, ObjectReader
from concurrent_loader.storage.errors import FormatError, SchemaError
from concurrent_loader.storage.ranges import ByteRange
from concurrent_loader.storage.shards.format.foreign_codecs import BARE_ARRAY
from concurrent_loader.storage.shards.format.foreign_headers import MAX_HEADER_BYTES, ArrayHeader, read_header
from concurrent_loader.storage.shards.format.schema import Column, ColumnKind

__all__ = ["LaidOutSample", "SourceValue", "ValueKind", "derive_columns", "walk_columns"]

Range = tuple[int, int]
ReadValue = Callable[[ObjectReader, Range], Any]
LaidOutSample = tuple[int, int, list[Range]]
"""Start and end of a sample, and the ranges of its values in the order of the source's columns."""

_MAX_NUMBER_CHARS = 4096
_MAGIC_BYTES = 12


class ValueKind(enum.Enum):
    """Kinds of encodings."""

    BYTES = "bytes"
    """Any bytes, such as an encoded image."""
    TEXT = "text"
    """UTF-8."""
    JSON = "json"
    """JSON in UTF-8."""
    STORED = "stored"
    """Exactly the stored form of one column type: a number, a bool, or an array of one shape."""
    INTEGER_TEXT = "integer text"
    """An integer in decimal digits."""
    FLOAT_TEXT = "float text"
    """A float in decimal digits."""
    ARRAY = "array"
    """An array that begins with its shape, and perhaps its dtype."""
    FLAT = "flat"
    """An array of one dimension and known dtype without a header."""
    IMAGE = "image"
    """An uncompressed image of Pillow."""
    LIST = "list"
    """Several byte strings, which `split_list` of the foreign codecs splits."""
    PARSED = "parsed"
    """A JSON value in the format's own encoding."""


@dataclass(frozen=True, slots=True)
class SourceValue:
    """Describes how a source stores the values of one column.

    Attributes:
        name: Name of the encoding in the source, for messages.
        kind: Kind of the encoding.
        type: Column type of STORED values; dtype of ARRAY and FLAT values, empty if each array states its own.
        header: Name of the encoding of ARRAY and IMAGE values in
            `concurrent_loader.storage.shards.format.foreign_codecs`.
        size: Number of bytes of every value; None if each value has its own length.
        parse: Function that decodes a PARSED value.
    """

    name: str
    kind: ValueKind
    type: str = ""
    header: str = ""
    size: int | None = None
    parse: Callable[[memoryview], object] | None = None

    def probe(self, reader: ObjectReader, value: Range) -> Any:
        """Returns what a type can be derived from: first bytes, the header of an array, or a number.

        Raises:
            FormatError: The value is damaged.
        """
        start, end = value
        match self.kind:
            case ValueKind.BYTES:
                return bytes(reader.read(start, min(end, start + _MAGIC_BYTES)))
            case ValueKind.INTEGER_TEXT:
                return _integer(reader, value)
            case ValueKind.ARRAY | ValueKind.FLAT | ValueKind.IMAGE:
                return self._header(reader, value)
        return None

    def derive(self, probes: Sequence[Any], *, key: str, column: str) -> ForeignColumn:
        """Derives the column, from the probes of the first values if the encoding leaves the type open.

        Raises:
            FormatError: The first values have different dtypes.
        """
        match self.kind:
            case ValueKind.TEXT:
                return ForeignColumn(type="str")
            case ValueKind.STORED:
                return ForeignColumn(type=self.type)
            case ValueKind.FLOAT_TEXT:
                return ForeignColumn(type="float64")
            case ValueKind.INTEGER_TEXT:
                return ForeignColumn(type="int64" if all(-(2**63) <= n < 2**63 for n in probes) else "str")
            case ValueKind.JSON | ValueKind.PARSED:
                return ForeignColumn(type="json")
            case ValueKind.LIST:
                return ForeignColumn(type="bytes")
            case ValueKind.BYTES:
                return ForeignColumn(type=image_type(probes) or "bytes")
            case ValueKind.ARRAY | ValueKind.FLAT | ValueKind.IMAGE:
                return self._derive_array(probes, key, column)

    def _derive_array(self, headers: Sequence[ArrayHeader], key: str, column: str) -> ForeignColumn:
        encoding = self.header or BARE_ARRAY
        if not headers:
            return ForeignColumn(type=f"{self.type or 'uint8'}[...]", encoding=encoding)
        derived = array_types(headers, encoding, key=key, column=column)
        if self.kind is ValueKind.IMAGE:  # an image is an image, even if the first ones are tiny and of one size
            return ForeignColumn(type=f"{headers[0].dtype}[...]", encoding=encoding)
        return derived

    def retype(self, column: str, type_: str) -> ForeignColumn:
        """Returns the column of a type that a user asks for.

        Raises:
            FormatError: The values cannot be read as this type.
        """
        try:
            canonical = parsed_column(type_).type
        except SchemaError as error:
            raise FormatError(f"{error.what}", column=column, expected=error.expected, got=type_[:80]) from error
        encoding = ""
        if canonical.endswith("[...]"):
            encoding = BARE_ARRAY if self.kind is ValueKind.FLAT else self.header
        target = ForeignColumn(type=canonical, encoding=encoding)
        self.reader(column, target)
        return target

    def reader(self, column: str, target: ForeignColumn) -> ReadValue:
        """Returns the function that finds a value, or parses it, for a column of the target's type.

        Raises:
            FormatError: The values cannot be read as this type.
        """
        parsed = parsed_column(target.type)
        read = self._encoded_reader(parsed, target.encoding) if target.encoding else self._plain_reader(parsed)
        if read is None:
            raise FormatError(
                "the values of a column cannot be read as this type: leave out the type, or ask for bytes",
                column=column, expected=self.name, got=f"{target.type} {target.encoding}".strip(),
            )  # fmt: skip
        return read

    def _encoded_reader(self, target: Column, encoding: str) -> ReadValue | None:
        if target.dtype is None or target.shape is not None:
            return None
        dtype = target.dtype.name
        if self.kind is ValueKind.FLAT and (encoding, dtype) == (BARE_ARRAY, self.type):
            return lambda reader, value: _ranged(value, self._header(reader, value), dtype, None, whole=True)
        if self.kind is ValueKind.ARRAY and encoding == self.header and self.type in ("", dtype):
            return lambda reader, value: _ranged(value, self._header(reader, value), dtype, None, whole=True)
        if self.kind is ValueKind.IMAGE and encoding == self.header:
            return lambda reader, value: _image(value, self._header(reader, value), dtype)
        return None

    def _plain_reader(self, target: Column) -> ReadValue | None:
        if target.type == "bytes":
            return _range
        dtype, shape = (target.dtype.name if target.dtype else ""), target.shape
        match self.kind:
            case ValueKind.BYTES if target.type in BYTE_TYPES:
                return _range
            case ValueKind.BYTES if shape is not None:
                return lambda _, value: _ranged(value, ArrayHeader(dtype, shape, 0), dtype, shape)
            case ValueKind.TEXT | ValueKind.JSON if target.type in ("str", "json"):
                return _range
            case ValueKind.STORED if target.type == self.type:
                return _range
            case ValueKind.INTEGER_TEXT | ValueKind.FLOAT_TEXT if target.type == "str":
                return _range
            case ValueKind.INTEGER_TEXT if shape == () and target.kind is ColumnKind.FIXED and dtype != "bool":
                return _integer
            case ValueKind.FLOAT_TEXT if dtype.startswith("float") and shape == ():
                return _float
            case ValueKind.ARRAY if shape is not None and self.type in ("", dtype):
                return lambda reader, value: _ranged(value, self._header(reader, value), dtype, shape)
            case ValueKind.FLAT if shape is not None and dtype == self.type:
                return lambda _, value: _ranged(value, ArrayHeader(dtype, shape, 0), dtype, shape)
            case ValueKind.PARSED if target.type == "json":
                return self._parsed
        return None

    def _parsed(self, reader: ObjectReader, value: Range) -> object:
        assert self.parse is not None
        return self.parse(reader.read(*value))

    def _header(self, reader: ObjectReader, value: Range) -> ArrayHeader:
        start, end = value
        if self.kind is ValueKind.FLAT:
            size = np.dtype(self.type).itemsize
            if (end - start) % size:
                raise FormatError("an array has part of an element", expected=self.type, got=f"{end - start} bytes")
            return ArrayHeader(self.type, ((end - start) // size,), 0)
        header = read_header(self.header, reader.read(start, min(end, start + MAX_HEADER_BYTES)))
        assert header is not None
        return header if header.dtype else header._replace(dtype=self.type)


def derive_columns(
    values: Mapping[str, SourceValue], samples: Iterable[LaidOutSample], reader: ObjectReader
) -> dict[str, ForeignColumn]:
    """Derives all columns from the first samples of an object.

    Raises:
        FormatError: The samples are damaged, or have values of different types.
    """
    probes: dict[str, list[Any]] = {name: [] for name in values}
    for sample, (_, _, ranges) in enumerate(islice(samples, SNIFFED_SAMPLES)):  # forward, as readers prefer
        for place, (name, value) in enumerate(values.items()):
            try:
                probes[name].append(value.probe(reader, ranges[place]))
            except FormatError as error:
                error.locate(key=reader.name, sample=sample, column=name)
                raise
    return {name: value.derive(probes[name], key=reader.name, column=name) for name, value in values.items()}


def walk_columns(
    values: Mapping[str, SourceValue],
    samples: Iterable[LaidOutSample],
    reader: ObjectReader,
    columns: Mapping[str, ForeignColumn],
) -> Iterator[FoundSample]:
    """Yields the samples of an object with the values of a dataset's columns.

    Raises:
        FormatError: A column is missing, or a value does not fit its column; the error names sample and column.
    """
    missing = [name for name in columns if name not in values]
    if missing:
        raise FormatError("an object lacks a column of the dataset", key=reader.name, column=missing[0])
    reads = [
        (place, name, value.reader(name, columns[name]))
        for place, (name, value) in enumerate(values.items())
        if name in columns
    ]
    for index, (start, end, ranges) in enumerate(samples):
        found = {}
        for place, name, read in reads:
            try:
                found[name] = read(reader, ranges[place])
            except FormatError as error:
                error.locate(key=reader.name, sample=index, column=name)
                raise
        yield FoundSample(f"{reader.name}[{index}]", start, end, found)


def _range(_: ObjectReader, value: Range) -> ByteRange:
    return ByteRange(*value)


def _ranged(
    value: Range, header: ArrayHeader, dtype: str, shape: tuple[int, ...] | None, *, whole: bool = False
) -> ByteRange:
    """Returns the range of an array's elements, or of the whole value, after checking dtype, shape and length."""
    start, end = value
    if header.dtype != dtype or shape not in (None, header.shape):
        raise FormatError(
            "an array has another dtype or shape than its column: pass the type DTYPE[...] for it",
            expected=array_type(dtype, shape) if shape is not None else f"{dtype}[...]",
            got=array_type(header.dtype, header.shape),
        )  # fmt: skip
    length = header.start + np.dtype(dtype).itemsize * math.prod(header.shape)
    if length != end - start:
        raise FormatError("an array does not have the length of its shape", expected=length, got=end - start)
    return ByteRange(start if whole else start + header.start, end)


def _image(value: Range, header: ArrayHeader, dtype: str) -> ByteRange:
    if header.dtype != dtype:
        raise FormatError("an uncompressed image has another dtype than its column", expected=dtype, got=header.dtype)
    start, end = value
    pixels = np.dtype(dtype).itemsize * math.prod(header.shape)
    if dtype == "bool":
        pixels = header.shape[0] * -(-header.shape[1] // 8)
    if header.start + pixels != end - start:
        raise FormatError(
            "an uncompressed image does not have the length of its size", expected=header.start + pixels,
            got=end - start,
        )  # fmt: skip
    return ByteRange(start, end)


def _integer(reader: ObjectReader, value: Range) -> int:
    return int(_number(reader, value, int))


def _float(reader: ObjectReader, value: Range) -> float:
    return float(_number(reader, value, float))


def _number(reader: ObjectReader, value: Range, number: Callable[[str], float]) -> float:
    start, end = value
    if end - start > _MAX_NUMBER_CHARS:
        raise FormatError("a number in text form is too long", expected=_MAX_NUMBER_CHARS, got=end - start)
    text = bytes(reader.read(start, end))
    try:
        return number(text.decode("utf-8"))
    except ValueError as error:
        raise FormatError("a number in text form is not a number", got=text[:40]) from error
