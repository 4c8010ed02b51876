"""Turns values that a peer's reader returned into JSON, and back. No pickle, and no library but NumPy."""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import Any

import numpy as np


def to_json(value: Any) -> Any:
    """Returns a value as JSON; what JSON does not have is a dict with one key that begins with a dollar sign."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$bytes": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if hasattr(value, "getbands"):  # an image of Pillow
        return {"$image": to_json(np.asarray(value))}
    if hasattr(value, "detach"):  # a tensor
        return {"$tensor": to_json(value.numpy())}
    if isinstance(value, np.generic):
        return {"$scalar": to_json(np.asarray(value))}
    if isinstance(value, np.ndarray):
        data = base64.b64encode(value.tobytes()).decode()
        return {"$array": [value.dtype.str, list(value.shape), data]}
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def from_json(value: Any) -> Any:
    """Returns the value; images and tensors become arrays."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or not next(iter(value)).startswith("$"):
        return {key: from_json(item) for key, item in value.items()}
    ((kind, content),) = value.items()
    if kind == "$bytes":
        return base64.b64decode(content)
    if kind == "$decimal":
        return Decimal(content)
    if kind == "$array":
        dtype, shape, data = content
        return np.frombuffer(base64.b64decode(data), dtype).reshape(shape)
    array = from_json(content)
    return array[()] if kind == "$scalar" else array
