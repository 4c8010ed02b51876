"""Turns ranges of adopted objects into the payload of a virtual shard: decompresses them, or decodes a row group.

A virtual shard states the length of its payload, so no more memory is allocated, whatever a compressed range claims.
"""

from __future__ import annotations

import bz2
import io
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

import zstandard

from concurrent_loader.storage.errors import ConfigurationError, FormatError
from concurrent_loader.storage.ranges import ByteRange
from concurrent_loader.storage.shards.format.litdata_frames import unpack_batches, unpack_items
from concurrent_loader.storage.shards.format.parquet_file import ParquetFooter, cut
from concurrent_loader.storage.shards.format.parquet_payload import (
    PayloadField,
    format_fields,
    parse_fields,
    read_payload,
)
from concurrent_loader.storage.stores.objects import Buffer

__all__ = ["MAX_UNIT_BYTES", "check_transform", "is_parquet", "parquet_transform", "transform", "transform_row_group"]

MAX_UNIT_BYTES = 1 << 30
"""Limit of a range that is transformed, and of its payload: both are in memory as a whole."""

_PARQUET = "parquet1:"

_MAX_WINDOW_BYTES = 1 << 27


def _zstd(data: Buffer, max_bytes: int) -> bytes:
    reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).stream_reader(
        io.BytesIO(data), read_across_frames=True
    )
    return reader.read(max_bytes)


def _gzip(data: Buffer, max_bytes: int) -> bytes:
    return zlib.decompressobj(wbits=31).decompress(data, max_bytes)


def _bz2(data: Buffer, max_bytes: int) -> bytes:
    return bz2.BZ2Decompressor().decompress(data, max_bytes)


def _cramjam(name: str, data: Buffer, max_bytes: int) -> bytearray:
    try:
        cramjam = import_module("cramjam")
    except ImportError as error:
        raise ConfigurationError(f"data compressed with {name} is read with cramjam: pip install cramjam") from error
    into = cramjam.brotli.decompress_into if name == "br" else cramjam.snappy.decompress_raw_into
    payload = bytearray(max_bytes)
    try:
        del payload[into(data, payload) :]
    except cramjam.DecompressionError as error:  # also if there is more than fits
        raise ValueError(str(error)) from error
    return payload


_COMPRESSIONS: dict[str, Callable[[Buffer, int], bytes | bytearray]] = {
    "zstd": _zstd,
    "gz": _gzip,
    "bz2": _bz2,
    "br": partial(_cramjam, "br"),
    "snappy": partial(_cramjam, "snappy"),
    "litdata/batch": lambda data, max_bytes: unpack_batches(data, max_bytes=max_bytes),
    "litdata/sample": lambda data, max_bytes: unpack_items(data, max_bytes=max_bytes),
}
"""Functions by name: (range, largest number of bytes to return) -> the first bytes of the payload."""


def transform(name: str, data: Buffer, *, max_bytes: int) -> bytes | bytearray:
    """Returns the payload that a compressed range holds.

    Args:
        name: Name of a compression: ``"zstd"``, ``"gz"``, ``"bz2"``, ``"br"``, ``"snappy"``, ``"litdata/batch"`` or
            ``"litdata/sample"``.
        data: The whole range.
        max_bytes: Largest size of the payload.

    Raises:
        FormatError: The transform is unknown, the range is damaged, or the payload is larger than ``max_bytes``.
        ConfigurationError: br and snappy need cramjam, which is not installed.
    """
    max_bytes = min(max_bytes, MAX_UNIT_BYTES + 7)  # with the padding, where a manifest states the size
    if name not in _COMPRESSIONS:
        raise FormatError(
            "an object's compression cannot be read in place; import the samples with their own library "
            "(`concurrent-loader ingest python MODULE:FUNCTION`)",
            expected=sorted(_COMPRESSIONS), got=name,
        )  # fmt: skip
    try:
        payload = _COMPRESSIONS[name](data, max_bytes + 1)
    except ConfigurationError:
        raise
    except (OSError, EOFError, ValueError, zlib.error, zstandard.ZstdError) as error:
        raise FormatError(f"a compressed range does not decompress: {error}") from error
    if len(payload) > max_bytes:
        raise FormatError("a compressed range holds more than its index states", expected=max_bytes)
    return payload


def check_transform(name: str) -> None:
    """Checks the name of a transform.

    Raises:
        FormatError: This release has no such transform.
    """
    if is_parquet(name):
        parse_fields(name.removeprefix(_PARQUET))
    elif name not in _COMPRESSIONS:
        raise FormatError(
            "an adopted object has an unknown transform; upgrade concurrent-loader",
            expected=[*sorted(_COMPRESSIONS), f"{_PARQUET}COLUMNS"], got=name[:200],
        )  # fmt: skip


def is_parquet(name: str) -> bool:
    """Returns whether a transform decodes row groups of Parquet files, for which it needs the file's footer."""
    return name.startswith(_PARQUET)


def parquet_transform(fields: Sequence[PayloadField]) -> str:
    """Returns the name of the transform that gives these payload columns; empty if there are none."""
    return _PARQUET + format_fields(fields) if fields else ""


def transform_row_group(
    name: str, footer: ParquetFooter, span: ByteRange, data: memoryview, *, max_bytes: int
) -> bytearray:
    """Returns the payload that a row group holds.

    Args:
        name: Name of the transform, made by `parquet_transform`.
        footer: Footer of the file.
        span: Range of the row group's payload columns in the file.
        data: Bytes of the range.
        max_bytes: Largest size of the payload.

    Raises:
        FormatError: The row group is damaged, or its payload is larger than ``max_bytes``.
        ConfigurationError: pyarrow is not installed.
    """
    fields = parse_fields(name.removeprefix(_PARQUET))
    group = footer.row_group_at(span, [field.path for field in fields])
    return read_payload(footer, group, fields, cut(span, data, group), max_bytes)[0]
