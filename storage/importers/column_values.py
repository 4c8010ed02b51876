"""Converts the values of a source to the values of a column, where a format or a user says so. No I/O."""

from __future__ import annotations

import io
import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from concurrent_loader.storage.images import COLUMN_FORMATS
from concurrent_loader.storage.shards.format.schema import Column

__all__ = ["convert", "parse_npy", "to_json"]

_NPY_MAGIC = b"\x93NUMPY"
_BYTES = (bytes, bytearray, memoryview)


def convert(value: Any, column: Column) -> object:
    """Returns a value as the column's type accepts it, or unchanged if it needs no conversion.

    Bytes become text, numbers (from decimal digits), JSON values or arrays (from ``.npy`` files). Arrays of uint8
    become bytes. Numbers become text. NumPy values become JSON values.

    Raises:
        ValueError: The value cannot be converted; the message says why.
    """
    type_ = column.base_type
    if isinstance(value, str | bytes | bytearray | memoryview):
        return _from_text(value, column)
    if type_ == "bytes" or type_ in COLUMN_FORMATS:
        return _to_bytes(value)
    if type_ == "str" and isinstance(value, int | float | np.generic):
        return str(value.item() if isinstance(value, np.generic) else value)
    if type_ == "json":
        return to_json(value)
    return value


def _from_text(value: str | bytes | bytearray | memoryview, column: Column) -> object:
    type_ = column.base_type
    if type_ == "bytes" or type_ in COLUMN_FORMATS:
        return value.encode() if isinstance(value, str) else value
    if type_ == "str":
        return value if isinstance(value, str) else _text(value)
    if type_ == "json":
        # A str is a JSON value already; bytes are JSON text.
        return value if isinstance(value, str) else _json(value)
    if column.dtype is None:
        return value
    if column.shape != ():
        return value if isinstance(value, str) else parse_npy(value)
    return _number(value if isinstance(value, str) else _text(value), column)


def _text(value: bytes | bytearray | memoryview) -> str:
    try:
        return bytes(value).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text: {bytes(value[:20])!r}") from error


def _json(value: bytes | bytearray | memoryview) -> object:
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error


def _number(text: str, column: Column) -> object:
    assert column.dtype is not None
    text = text.strip()
    if column.dtype.kind == "b":
        if text not in ("0", "1", "true", "false", "True", "False"):
            raise ValueError(f"it is not a bool (0, 1, true or false): {text[:40]!r}")
        return text in ("1", "true", "True")
    try:
        return float(text) if column.dtype.kind == "f" else int(text)
    except ValueError as error:
        raise ValueError(f"it is not a number: {text[:40]!r}") from error


def parse_npy(data: bytes | bytearray | memoryview) -> npt.NDArray[Any]:
    """Returns the array of a ``.npy`` file, as a view of its bytes.

    The shape is compared with the length before anything is allocated. Pickled objects are refused.

    Raises:
        ValueError: The bytes are not such a file.
    """
    if bytes(data[: len(_NPY_MAGIC)]) != _NPY_MAGIC:
        raise ValueError(f"it is not an .npy file: {bytes(data[:8])!r}")
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an .npy file of version {version} is not supported")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read_header(file)
    if dtype.hasobject or dtype.kind not in "biuf":
        raise ValueError(f"an .npy file must hold bools or numbers, not {dtype}")
    start = file.tell()
    if any(dim < 0 for dim in shape) or math.prod(shape) * dtype.itemsize != len(data) - start:
        raise ValueError(f"an .npy file does not have the length of its shape {shape}")
    if not math.prod(shape):
        return np.empty(shape, dtype)
    flat: npt.NDArray[Any] = np.frombuffer(data, dtype, offset=start)
    return flat.reshape(shape, order="F" if is_fortran else "C")


def _to_bytes(value: Any) -> object:
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 1:
        return value.tobytes()
    return value.tobytes() if isinstance(value, np.void | np.bytes_) else value


def to_json(value: Any) -> object:
    """Returns a value with arrays and scalars of NumPy as lists and numbers."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {name: to_json(each) for name, each in value.items()}
    return [to_json(each) for each in value] if isinstance(value, list | tuple) else value
