"""Derives the types of values from extensions of file names and first values, and parses values that are texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import msgspec

from concurrent_loader.storage.adopt.protocol import ForeignColumn, ObjectReader
from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.images import FORMATS, find_format
from concurrent_loader.storage.ranges import ByteRange
from concurrent_loader.storage.shards.format.npy_codec import NpyCodec, parse_npy_header
from concurrent_loader.storage.shards.format.schema import Column, ColumnKind
from concurrent_loader.storage.shards.format.value_codecs import MAX_SMALL_VALUE_BYTES, JsonCodec

__all__ = ["derive_column", "parse_value"]

_IMAGES = {suffix.removeprefix("."): row.name for row in FORMATS.values() for suffix in row.suffixes}
_TEXTS = {
    **dict.fromkeys(("cls", "cls2", "index", "inx"), ("int64", "str")),
    **dict.fromkeys(("id", "txt", "text", "transcript"), ("str",)),
    **dict.fromkeys(("json", "jsn"), ("json",)),
}
_MAX_DERIVED_BYTES = 1 << 20
_MAX_NUMBER_BYTES = 64
_NPY_HEADER_BYTES = 8192
_BOOLS = {"0": False, "false": False, "1": True, "true": True}


def derive_column(field: str, seen: Sequence[tuple[bytes, ByteRange]], reader: ObjectReader) -> ForeignColumn:
    """Returns the column of a field.

    The last part of the name decides what is tried, and the values decide whether that is right. Everything else is
    bytes.

    Args:
        field: Name of the field, such as ``"seg.png"``.
        seen: First bytes and range of some values.
        reader: Bytes of the object.
    """
    extension = field.rpartition(".")[2]
    if extension in _IMAGES:
        return ForeignColumn(type=_image_type(head for head, _ in seen))
    if extension == "npy":
        return _array_column([place for _, place in seen], reader)
    for type_ in _TEXTS.get(extension, ()):
        if all(_is(type_, place, reader) for _, place in seen):
            return ForeignColumn(type=type_)
    return ForeignColumn(type="bytes")


def _image_type(heads: Iterable[bytes]) -> str:
    found = {find_format(head) for head in heads}
    names = {row.name if row is not None and row.suffixes else "" for row in found}
    if "" in names:
        return "bytes"
    return names.pop() if len(names) == 1 else "image"


def _array_column(places: Sequence[ByteRange], reader: ObjectReader) -> ForeignColumn:
    dtypes, shapes = set(), set()
    try:
        for place in places:
            header = parse_npy_header(reader.read(place.start, min(place.end, place.start + _NPY_HEADER_BYTES)))
            dtypes.add(header.dtype.name)
            shapes.add(header.shape)
    except FormatError:
        return ForeignColumn(type="bytes")
    if len(dtypes) != 1:
        return ForeignColumn(type="bytes")
    (dtype,), shape = dtypes, shapes.pop()
    if shapes or not shape or min(shape) < 1:
        return ForeignColumn(type=f"{dtype}[...]", encoding="npy")
    column = Column("value", f"{dtype}[{','.join(map(str, shape))}]")
    return ForeignColumn(type=column.type, encoding="npy" if column.kind is ColumnKind.PAYLOAD else "")


def _is(type_: str, place: ByteRange, reader: ObjectReader) -> bool:
    if len(place) > _MAX_DERIVED_BYTES:
        return False
    try:
        parse_value(type_, reader.read(place.start, place.end))
    except ValueError:
        return False
    return True


def parse_value(type_: str, data: memoryview) -> object:
    """Returns the value of a type that is not payload, from its text, its JSON, or its ``.npy`` file.

    Args:
        type_: Column type in canonical form.
        data: Bytes of the file.

    Raises:
        ValueError: The bytes are not a value of this type.

    Example:
        >>> from concurrent_loader.storage.adopt.formats.text_values import parse_value
        >>> parse_value("float32", memoryview(b"0.5"))
        0.5
    """
    if len(data) > MAX_SMALL_VALUE_BYTES:
        raise ValueError(f"a value of at most {MAX_SMALL_VALUE_BYTES} bytes is needed, this one has {len(data)}")
    parse = _PARSERS.get(type_.rstrip("0123456789"))
    return _parse_array(type_, data) if parse is None else parse(bytes(data))


def _parse_int(data: bytes) -> int:
    value = int(_number(data))
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"{value} has more than 64 bits")
    return value


def _parse_bool(data: bytes) -> bool:
    try:
        return _BOOLS[_number(data).strip().lower()]
    except KeyError as error:
        raise ValueError(f"one of {', '.join(_BOOLS)} is needed, got {error.args[0]!r}") from None


def _number(data: bytes) -> str:
    if len(data) > _MAX_NUMBER_BYTES:
        raise ValueError(f"a number of at most {_MAX_NUMBER_BYTES} characters is needed, this one has {len(data)}")
    return data.decode()


def _parse_json(data: bytes) -> object:
    try:
        return JsonCodec().decode(data)
    except FormatError as error:
        raise ValueError(str(error)) from error


def _parse_array(type_: str, data: memoryview) -> object:
    """Returns a small array, from a ``.npy`` file or a JSON list."""
    if bytes(data[:6]) != b"\x93NUMPY":
        try:
            return msgspec.json.decode(bytes(data))
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"a .npy file or a JSON list is needed: {error}") from error
    try:
        return _npy_codec(type_).decode(data)
    except FormatError as error:
        raise ValueError(str(error)) from error


@lru_cache(maxsize=64)
def _npy_codec(type_: str) -> NpyCodec:
    return NpyCodec(type_)


_PARSERS: dict[str, Callable[[bytes], object]] = {
    "str": lambda data: data.decode(),
    "json": _parse_json,
    "bool": _parse_bool,
    "int": _parse_int,
    "uint": _parse_int,
    "float": lambda data: float(_number(data)),
}
