"""What all formats share: names of columns, types derived from the first samples, and values parsed from bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeVar

import msgspec
import numpy as np

from concurrent_loader.storage.adopt.protocol import ForeignColumn
from concurrent_loader.storage.errors import FormatError
from concurrent_loader.storage.images import COLUMN_FORMATS, find_format
from concurrent_loader.storage.media import MEDIA_COLUMNS
from concurrent_loader.storage.shards.format.foreign_headers import ArrayHeader
from concurrent_loader.storage.shards.format.schema import MAX_COLUMNS, MAX_FIXED_VALUE_BYTES, Column, ColumnKind
from concurrent_loader.storage.shards.format.value_codecs import MAX_SMALL_VALUE_BYTES
from concurrent_loader.storage.stores.objects import Buffer

__all__ = [
    "BYTE_TYPES",
    "IMPORT_INSTEAD",
    "MAX_INDEX_BYTES",
    "SNIFFED_SAMPLES",
    "array_type",
    "array_types",
    "column_name",
    "column_names",
    "decode_index",
    "image_type",
    "is_small",
    "is_text",
    "parse_value",
    "parsed_column",
    "safe_key",
]

SNIFFED_SAMPLES = 300
"""Number of samples from which types are derived."""

MAX_INDEX_BYTES = 256 << 20
"""Upper bound of an index file; MosaicML's has about 600 bytes per shard."""

IMPORT_INSTEAD = "import the data instead: concurrent-loader ingest python MODULE:FUNCTION"

BYTE_TYPES = frozenset({"bytes", "str", "json", *COLUMN_FORMATS, *MEDIA_COLUMNS})
"""Types that a value of plain bytes may have."""

_Index = TypeVar("_Index")
_MAX_NAME = 64
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


@lru_cache(maxsize=4096)
def column_name(name: str) -> str:
    """Returns the name of the column for a name in a source.

    A slash becomes a dot (``image/encoded`` is ``image.encoded``). Every other character that a column's name cannot
    have becomes an underscore.

    Raises:
        FormatError: The name is empty or too long.
    """
    column = _UNSAFE.sub("_", name.replace("/", "."))
    if not 1 <= len(column) <= _MAX_NAME:
        raise FormatError(
            f"the name of a field cannot be a column's name: {IMPORT_INSTEAD}",
            expected=f"1 to {_MAX_NAME} characters", got=name[:80],
        )  # fmt: skip
    return column


def column_names(names: Iterable[str], *, key: str) -> dict[str, str]:
    """Returns names of columns for the names in a source, in their order.

    Raises:
        FormatError: Two names are equal or become equal, a name is empty or too long, or there are more than 256.

    Example:
        >>> from concurrent_loader.storage.adopt.formats.foreign_values import column_names
        >>> column_names(["image/encoded", "größe"], key="a.tfrecord")
        {'image/encoded': 'image.encoded', 'größe': 'gr__e'}
    """
    columns: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        try:
            column = column_name(name)
        except FormatError as error:
            error.locate(key=key)
            raise
        if column in taken:
            raise FormatError("two fields have the same name", key=key, column=column)
        if len(columns) == MAX_COLUMNS:
            raise FormatError(f"there are too many fields: {IMPORT_INSTEAD}", key=key, expected=f"<= {MAX_COLUMNS}")
        columns[name] = column
        taken.add(column)
    return columns


def decode_index(data: bytes, type_: type[_Index], *, key: str) -> _Index:
    """Decodes an index file into typed structs; unknown fields are skipped without being stored.

    Raises:
        FormatError: The file is not JSON of this structure.
    """
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise FormatError(f"an index is not of this format: {str(error)[:200]}", key=key) from error


def safe_key(folder: str, name: str, *, index: str) -> str:
    """Returns the key of an object that an index names relative to its folder.

    Raises:
        FormatError: The name is absolute, or leads out of the folder.
    """
    if not name or name.startswith("/") or "\\" in name or "\0" in name or {"", ".", ".."} & set(name.split("/")):
        raise FormatError("an index names a file outside of its folder", key=index, got=name[:200])
    return folder + name


def image_type(starts: Iterable[Buffer]) -> str | None:
    """Returns the column type that fits all values by their first 12 bytes, or None if a value is no image.

    Example:
        >>> from concurrent_loader.storage.adopt.formats.foreign_values import image_type
        >>> image_type([b"GIF89a", b"GIF87a"]), image_type([b"GIF89a", bytes([255, 216, 255])]), image_type([b"text"])
        ('gif', 'image', None)
    """
    found = {image_format.name if (image_format := find_format(start)) else "" for start in starts}
    fitting = [name for name, formats in COLUMN_FORMATS.items() if found and found <= set(formats)]
    return fitting[0] if fitting else None


def is_text(data: Buffer) -> bool:
    """Returns whether bytes are UTF-8 without control characters, which masks and other small numbers have."""
    if _CONTROL.search(data):
        return False
    try:
        str(data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def array_type(dtype: str, shape: tuple[int, ...]) -> str:
    """Returns the type of a column whose values all have this dtype and shape; a number if there are no dimensions."""
    return f"{dtype}[{','.join(map(str, shape))}]" if shape else dtype


def array_types(headers: Iterable[ArrayHeader], encoding: str, *, key: str, column: str) -> ForeignColumn:
    """Derives the column of arrays: small arrays of one shape are values of a fixed type, all others stay encoded.

    Raises:
        FormatError: The arrays have different dtypes.
    """
    found = {(header.dtype, header.shape) for header in headers}
    dtypes = sorted({dtype for dtype, _ in found})
    if len(dtypes) != 1:
        raise FormatError(
            f"the arrays of a column have different dtypes: {IMPORT_INSTEAD}",
            key=key, column=column, got="|".join(dtypes),
        )  # fmt: skip
    dtype = dtypes[0]
    shapes = {shape for _, shape in found}
    if len(shapes) == 1 and is_small(dtype, shape := shapes.pop()):
        return ForeignColumn(type=array_type(dtype, shape))
    return ForeignColumn(type=f"{dtype}[...]", encoding=encoding)


def is_small(dtype: str, shape: tuple[int, ...]) -> bool:
    """Returns whether arrays of this dtype and shape are stored as values of a fixed column."""
    if 0 in shape:
        return False
    return np.dtype(dtype).itemsize * math.prod(shape) <= MAX_FIXED_VALUE_BYTES


@lru_cache(maxsize=1024)
def parsed_column(type_: str) -> Column:
    """Returns a column of a type, to ask for its kind, dtype and shape.

    Raises:
        SchemaError: The type is invalid.
    """
    return Column("value", type_)


def parse_value(type_: str, data: Buffer) -> object:
    """Returns the value of a column that is not payload, from bytes in the stored form of its type.

    Raises:
        ValueError: The bytes are not a value of this type.

    Example:
        >>> from concurrent_loader.storage.adopt.formats.foreign_values import parse_value
        >>> parse_value("int16", bytes([1, 2]))
        513
    """
    column = parsed_column(type_)
    if column.kind is ColumnKind.PAYLOAD:
        raise ValueError(f"values of the type {type_} are payload")
    if len(data) > MAX_SMALL_VALUE_BYTES:
        raise ValueError(
            f"a value of the type {type_} must have at most {MAX_SMALL_VALUE_BYTES} bytes, got {len(data)}"
        )
    try:
        return column.decode(data)
    except FormatError as error:
        raise ValueError(error.what) from error
